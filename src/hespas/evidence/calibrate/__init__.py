"""Measurements of the user's own cluster become a preset.

In go times of matrix products (`gemm_csv`), kernels (`profile`), whole steps (`steps`, predicted by
`step_model`) and collectives (`nccl_tests`, fitted by `piecewise`, extended by `reach`); `factors`
fits the multipliers of a device, and `preset` writes a node, a link and a system that
``--node`` and ``--system`` take. `report` and `plot` show how well they fit. Measured times are
checked by `samples`, and `lines` reads CSV files with the location of each line; ``validate`` uses
these two as well.
"""
