"""HLO modules, optimised and scheduled or not, to `Program`.

`load.read_hlo` takes a parsed module and returns the program of one device, or says why a sharded
module has none yet. `reader` walks computations into blocks; `opcodes` lists the opcodes that are
one operation; `instructions` and `asynchronous` read the others. `attributes`, `collectives`,
`config` and `types` read the parts of an instruction, and `mlir` prints attributes as MLIR does.
"""
