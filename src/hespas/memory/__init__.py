"""The memory that one device needs for a step, from a `Program` alone.

`usage.memory_use` is the public face: it returns `MemoryUse`, with the peak and the buffers that
are live at it. `buffers` says which operations work in place, `liveness` how long each buffer is
live, `allocation` reuses outputs' memory and packs the rest as XLA does.
"""
