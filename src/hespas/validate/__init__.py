"""Measured steps against predicted ones.

In goes a table of measured steps (`measurements.read_steps`), out come predictions of the same
steps by `hespas.pipeline` (`recompute.recompute`), their errors (`comparison`) and tables of both
(`tables`). The face for other folders is `measurements` and `recompute`.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "measurements": ("MeasuredStep", "PUBLISHED", "add_step", "read_steps"),
    "recompute": ("Recomputed", "Sources", "check_step", "recompute"),
    "tables": ("validation_json", "validation_text"),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
