"""From what compilers write to a `Program`.

In goes StableHLO (text, bytecode, portable artifacts) or HLO (text, protos); out comes the program
of one device. `load` is the public face: `load_program` reads a file, `load_per_device` reads bytes
and reports which of the user's `overrides` had an effect, `load_source` reads a program that must
be partitioned already, `load_compiled` takes a compiler's result.

`stablehlo` and `hlo` read their formats and return `loaded.Loaded` or `loaded.Unpartitioned`; a
sharded program is then partitioned and read again as the text of one device. Both use `loops` (how
often a loop runs) and `meshes` (replica groups by mesh axes). `whole` reads what a sharded source
says of all devices together, and `kept_mesh` keeps its mesh in what it is divided to. `tables`
gives kernels of TPUs the constants that they read.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "experts": ("Capacity", "with_expert_load"),
    "kept_mesh": ("with_device_order", "with_mesh"),
    "load": (
        "PARTITIONED",
        "check_source",
        "is_false_first",
        "load_per_device",
        "load_source",
        "load_undivided",
        "read_source",
    ),
    "loaded": ("Loaded",),
    "overrides": ("LoadOptions",),
    "whole": ("kept_whole", "whole_cache", "whole_of_source"),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
