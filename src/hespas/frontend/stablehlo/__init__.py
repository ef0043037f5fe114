"""StableHLO text, bytecode and portable artifacts to `Program`.

`load.read_stablehlo` takes a parsed MLIR module and returns the program of one device, or says why
a sharded module has none yet. `attributes` turns attribute text into typed attributes, `sharding`
decides whether a program is of one device and opens JAX's ``shard_map``.
"""
