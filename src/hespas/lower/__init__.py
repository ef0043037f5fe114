"""Model XLA's GPU pipeline, for nodes that no compiler serves.

In goes a `Program` as exported, out comes one whose operations are kernels in the order in which
they start, as from a compiler, but marked as modelled. `expand.expanded` opens operations that GPUs
have no kernel for, and `fused.fused` does the rest: `simplify`; the rules of `fused.RULES` (`dots`,
`reductions`, `collectives`, `convolutions`, `sorts`); layouts (`assign`, with the orders of
`layouts`, and `loops`); kernels (`group`, with what is `written` in between and products'
`epilogues`, and `merge`), written by `build`; then collectives that run beside them (`collectives`,
`pipelined`), as memory allows (`overlap`). `library` has kernels that only libraries have. `loops`
has libtpu's rules too. `beside` moves shared experts beside the all-to-alls of routed ones, in
compiled programs as well.
"""
