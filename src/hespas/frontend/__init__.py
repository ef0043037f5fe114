"""From what compilers write to a `Program`.

In goes StableHLO (text, bytecode, portable artifacts) or HLO (text, protos); out comes the program
of one device. `load` is the public face: `load_program` reads a file, `load_per_device` reads bytes
and reports which of the user's `overrides` had an effect, `load_source` reads a program that must
be partitioned already, `load_compiled` takes a compiler's result.

`stablehlo` and `hlo` read their formats and return `overrides.Loaded` or `overrides.Unpartitioned`;
a sharded program is then partitioned and read again as the text of one device. Both use `loops`
(how often a loop runs) and `meshes` (replica groups by mesh axes). `whole` reads what a sharded
source says of all devices together and keeps its mesh in what it is divided to. `tables` gives
kernels of TPUs the constants that they read.
"""
