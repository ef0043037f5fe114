"""Measurements of the user's own cluster become a preset.

In go times of matrix products (`gemm_csv`), kernels (`profile`), whole steps (`steps`) and
collectives (`nccl_tests`, fitted by `piecewise`); `factors` fits the multipliers of a device, and
`preset` writes a node, a link and a system that ``--node`` and ``--system`` take, and a report of
how well they fit. Measured times are read and checked by `samples`, which ``validate`` uses as
well.
"""
