"""Everything that touches jaxlib's internals; no other folder does.

* `mlir`: parse StableHLO and MLIR bytecode, read its text, and walk functions into operations.
* `hlo`: read HLO text and protos with the schema that jaxlib embeds, and convert HLO to StableHLO.
* `partition`: a sharded program to the program of one device, in a process of its own.
* `compile`: a program to optimised HLO for an accelerator that is not attached, in a process of
  its own, and the kernels that a GPU's compiler wrote.
* `run`: compile and time modules on this machine, in a process that stays, and whole steps on its
  devices, in a process of their own.
* `cpu`: start JAX on the CPU alone.

Code that starts a process imports only the process's `messages`; the `worker` modules run inside
it, as ``python -m hespas.xla.compile.worker``.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "compile.kernels": ("read_kernels", "read_starts"),
    "compile.messages": (
        "Accelerator",
        "CompileRequest",
        "FLAGS_FILE",
        "FlagsQuestion",
        "FlagsTaken",
        "GpuHosts",
        "MemoryAnalysis",
        "Refused",
        "TAKEN_FILE",
        "SLICES_ATTRIBUTE",
        "TARGET_ATTRIBUTE",
        "TpuSlice",
        "part_name",
    ),
    "compile.topology": (
        "TPU_GENERATIONS",
        "TPU_NAMES",
        "check_topology",
        "topology_settings",
        "tpu_topology_shape",
    ),
    "cpu": ("use_cpu",),
    "hlo.attribute": ("with_attribute",),
    "hlo.forms": ("is_hlo",),
    "hlo.module": ("HloModule", "read_hlo_module", "stablehlo_of_hlo", "stablehlo_of_module"),
    "hlo.schema": ("enum_names",),
    "mlir.chlo": ("RAGGED_DOT", "legalise_chlo"),
    "mlir.functions": ("FunctionReader", "OpRecord"),
    "mlir.module": (
        "BYTECODE_MAGIC",
        "MlirModule",
        "Symbol",
        "declared_devices",
        "is_jax_export",
        "module_attributes",
        "module_symbols",
        "operation_names",
        "parse_mlir",
        "printed",
    ),
    "mlir.mosaic": ("read_mosaic",),
    "mlir.triton": ("read_triton",),
    "mlir.trial": ("check_bytecode",),
    "mlir.text": (
        "read_dense_integers",
        "read_dense_numbers",
        "read_fields",
        "read_integer",
        "read_integers",
        "read_mesh_axes",
        "read_rows",
        "read_symbols",
        "read_type",
        "split_list",
    ),
    "partition.partition": (
        "DEFAULT_LIMITS",
        "Partitioned",
        "partition",
        "partition_cache",
        "partition_module",
    ),
    "run.messages": (
        "ANSWER_FILE",
        "PROGRAM_FILE",
        "Processes",
        "REQUEST_FILE",
        "StepAnswer",
        "StepRequest",
        "decode_answer",
        "encode",
    ),
    "run.worker": ("EMPTY_MODULE",),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
