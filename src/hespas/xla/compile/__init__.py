"""Compile for an accelerator that is not attached; `hespas.compile` starts the process.

`messages` is what the two processes exchange. In the process, `worker` reads the request, `prepare`
rewrites what the compilers refuse, `topology` makes the devices, and `recover` reads the dump of a
module that could not become an executable. `flags`, another process, asks a compiler which flags it
takes. `kernels` reads a GPU's kernels from the dump.
"""
