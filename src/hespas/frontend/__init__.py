"""Read compilers' output as a `Program`.

The input is StableHLO (text, bytecode, portable artifacts), HLO (text, protos) or a recorded step
of PyTorch; the output is the program of one device. `load` is the public interface: `load_program`
reads a file, `load_per_device` reads bytes and reports which of the user's `overrides` had an
effect, `load_source` reads a program that must be partitioned already.

`stablehlo`, `hlo` and `recorded` read their formats and return `overrides.Loaded` or
`overrides.Unpartitioned`; a sharded program is then partitioned, and the text for one device is
read. `attributes` turns attribute text into typed attributes, `loops` finds trip counts,
`host_memory` marks values in host memory. `mesh` reads the mesh and the undivided inputs of a
sharded source and keeps its mesh in the partitioned program. `experts` applies the load of experts,
`tables` gives TPU kernels the constants that they read.
"""
