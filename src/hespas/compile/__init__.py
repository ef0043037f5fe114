"""Compile StableHLO to optimised, scheduled HLO for accelerators that are not attached.

`compiler.compile_program` compiles for a target, `compiler.compile_for_node` for the node and
system of a prediction. The result is a `job.CompiledProgram`, which `cache.CompiledCache` keeps
between runs. `options` are the compiler's, `targets` lists the accelerators, `job` is a compilation
as the cache's key sees it, `packages` are the installed compilers, `recipe` reads the flags of
recipes. `compiler` passes the recipes that are taken, and `origin` notes a program that was
compiled for another part than it is priced on.
"""
