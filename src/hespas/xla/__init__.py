"""All use of jaxlib's internals; no other folder uses them.

* `mlir`: parse StableHLO and MLIR bytecode, read its text, and walk functions into operations.
* `hlo`: read HLO text and protos with the schema that jaxlib embeds, and convert HLO to StableHLO.
* `partition`: turn a sharded program into the program of one device, in a process of its own.
* `compile`: compile a program to optimised HLO for an accelerator that is not attached, in a
  process of its own, and read the kernels that a GPU's compiler wrote.
* `run`: compile and time modules on this machine, in a process that stays, and whole steps on its
  devices, in a process of their own.
* `trial`: read possibly damaged programs in a process of its own first.
* `cpu`: start JAX on the CPU alone.

Code that starts a process does not import its `worker`, which runs inside it, as ``python -m
hespas.xla.compile.worker``.
"""
