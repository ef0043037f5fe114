"""Read StableHLO text, bytecode and portable artifacts as a `Program`.

`load.read_stablehlo` takes a parsed MLIR module and returns the program of one device, or says why
a sharded module has none yet. `sharding` decides whether a program is of one device and opens JAX's
``shard_map``.
"""
