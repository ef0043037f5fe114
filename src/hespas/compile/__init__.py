"""StableHLO to the optimised, scheduled HLO of an accelerator that is not attached.

`compiler.compile_program` compiles for a target, `for_node.compile_for_node` for the node and
system of a prediction. The result is a `compiled.CompiledProgram`, which `cache.CompiledCache`
keeps between runs. `options` are the compiler's, `targets` lists the accelerators, `job` is a
compilation as the cache's key sees it, `packages` are the installed compilers, `recipe` and
`settle` are the flags of recipes and what of them is passed, and `origin` notes a program that was
compiled for another part than it is priced on.
"""
