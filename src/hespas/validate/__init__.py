"""Measured steps against predicted ones.

In goes a table of measured steps (`measurements.read_steps`), out come predictions of the same
steps by `hespas.pipeline` (`recompute.recompute`), their errors (`comparison`) and tables of both
(`tables`). The face for other folders is `measurements` and `recompute`.
"""
