"""Compute the memory that a program's step needs.

The entry point is `usage.memory_use`: it returns `MemoryUse`, with the peak and the buffers that
are live at it. `buffers` says which operations work in place, `liveness` how long each buffer is
live; `allocation` puts buffers into the memory of outputs and packs the others as XLA does;
`caching` is PyTorch's allocator.
"""
