"""Turn measurements of the user's cluster into a preset.

The inputs are times of matrix products (`gemm_csv`), kernels (`profile`), whole steps (`steps`) and
collectives (`nccl_tests`, fitted by `piecewise`), and per-rank step times (`ranks`). `factors` fits
the multipliers of a device, and `preset` writes a node, a link and a system that ``--node`` and
``--system`` take, and a report of how well they fit. `samples` reads and checks measured times;
``validate`` uses it too.
"""
