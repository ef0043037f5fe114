"""Measured steps against predicted ones.

In goes a table of measured steps (`measurements.read_steps`), out come predictions of the same
steps by `hespas.prediction` (`recompute.recompute`), their errors (`comparison`) and tables of both
(`tables`). Of every published step that is at hand (`published.read_rows`), `every.predict_rows`
predicts each in a process of its own (`worker`), and `every_table` reports them.
"""
