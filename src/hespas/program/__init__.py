"""Hold the intermediate representation that all stages read: data only.

`program` has values, operations, blocks, functions and the `Program` that holds them, `uses` the
producers and readers of each value, `rewrite` patterns and copies of operations, `operations` the
facts of each kind of operation, `attrs` and `types` what operations and values carry. `groups` and
`devices` say which devices take part in a collective, `scopes` read the framework's name stacks,
`kernels` holds kernels of compilers and of authors, `text` prints MLIR and recognises equal
computations. Nothing in this package depends on where a program came from or what it costs.
"""
