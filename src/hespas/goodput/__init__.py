"""What of a long run's time is progress, with failures, checkpoints, restarts and spares.

`model` has the closed forms, `simulation` plays a run through with a seed and agrees with them,
`failures` is how often parts fail, with sources, and `options` is what a user says of a run.
"""

from __future__ import annotations

PUBLIC: dict[str, tuple[str, ...]] = {
    "failures": (
        "CHECKPOINT_BYTES_PER_S",
        "CHECKPOINT_SOURCE",
        "FAILURES",
        "failure_interval",
    ),
    "model": ("Goodput", "LongRun", "best_interval_s", "goodput_of"),
    "options": ("DEFAULT_REPAIR_S", "DEFAULT_START_S", "GoodputOptions"),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
