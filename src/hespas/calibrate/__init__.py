"""Measurements of the user's own cluster become a preset.

In go times of matrix products (`gemm_csv`), kernels (`profile`), whole steps (`steps`, predicted by
`step_model`) and collectives (`nccl_tests`, fitted by `piecewise`, extended by `reach`); `factors`
fits the multipliers of a device, and `preset` writes a node, a link and a system that
``--node`` and ``--system`` take. `report` and `plot` show how well they fit. Measured times are
checked by `samples`, and `lines` reads CSV files with the location of each line; ``validate`` uses
these two as well.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "factors": ("Group", "fit_factors"),
    "gemm_csv": ("gemm_groups",),
    "lines": ("at_line", "check_columns"),
    "nccl_tests": ("CollectiveRun", "KINDS", "read_run"),
    "preset": ("first_link", "write_calibration"),
    "profile": ("profile_groups",),
    "reach": ("check_messages", "with_reach"),
    "report": ("Calibration", "report_json", "report_text"),
    "samples": ("FAR",),
    "step_model": ("PipelineSteps",),
    "steps": ("step_group",),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
