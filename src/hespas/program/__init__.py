"""The intermediate representation that all stages read: data only.

`program` has the values, operations, blocks, functions and the `Program` that holds them, `attrs`
and `types` what operations and values carry, `groups` the devices of a collective and `kernels` a
compiler's kernels. `devices` settles how many devices a program runs on, `rewrite` copies
operations and opens calls, `text` prints MLIR, and `canonical` recognises equal computations.
Nothing here knows where a program came from or what it costs.
"""
