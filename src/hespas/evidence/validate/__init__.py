"""Measured steps against predicted ones.

In goes a table of measured steps (`measurements.read_steps`), out come predictions of the same
steps by `hespas.prediction` (`recompute.recompute`), and tables of both with their errors
(`tables`). Of every published step that is at hand (`measurements.read_rows`),
`every.predict_rows` predicts each in a process of its own (`worker`).
"""
