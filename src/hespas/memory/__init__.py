"""The memory that one device needs for a step, from a `Program` alone.

`usage.memory_use` is the public face: it returns `MemoryUse`, with the peak and the buffers that
are live at it (`buffers.HeldBuffer`). `liveness` determines how long each buffer is live and which
operations work in place, `allocation` reuses outputs' memory and packs the rest as XLA does.
`over_time.memory_of_operations` gives the memory in use while each operation runs, and
`between_passes.held_between` what one pass of a program holds for the next one.
"""
