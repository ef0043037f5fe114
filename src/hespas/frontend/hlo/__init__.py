"""Read HLO modules as a `Program`.

`load.read_hlo` takes a parsed module, optimised and scheduled or not, and returns the program of
one device, or says why a sharded module has none yet. `reader` walks computations into blocks;
`attributes` lists the opcodes that are one operation and prints attributes as MLIR does;
`instructions`, `asynchronous` and `slices` read the others. `config` and `types` read the parts of
an instruction.
"""
