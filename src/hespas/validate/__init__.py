"""Measured steps against predicted ones.

In goes a table of measured steps (`measurements.read_steps`), out come predictions of the same
steps by `hespas.pipeline` (`recompute.recompute`), their errors (`comparison`) and tables of both
(`tables`). Of every published step that is at hand (`published.read_rows`), `every.predict_rows`
predicts each in a process of its own (`worker`), and `every_table` reports them.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "every": ("HowToPredict", "PredictedRow", "predict_rows", "row_cache"),
    "every_table": ("every_json", "every_text"),
    "published": ("Row", "chosen", "read_rows"),
    "measurements": ("MeasuredStep", "PUBLISHED", "add_step", "read_steps"),
    "recompute": ("Recomputed", "Sources", "check_step", "recompute"),
    "tables": ("validation_json", "validation_text"),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
