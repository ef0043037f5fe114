"""Compare measured steps with predicted ones.

The input is a table of measured steps (`measurements.read_steps`), the output predictions of the
same steps by `hespas.prediction` (`recompute.recompute`), and tables of both with their errors
(`tables`). `every.predict_rows` predicts each of all published steps (`measurements.read_rows`) in
a process of its own (`worker`).
"""
