"""Compile for an accelerator that is not attached.

`hespas.compile` starts a process of its own for it. `messages` is what the two processes exchange.
In the process, `worker` reads the request, `prepare` rewrites what the compilers refuse, and
`topology` makes the devices. `flags`, another process, asks a compiler which flags it takes.
`kernels` reads a GPU's kernels from the dump.
"""
