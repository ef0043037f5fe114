"""Run steps on this machine's devices, beside predictions.

The input is a workload and how to run it (`measured.MeasureOptions`). `measured.measure_step`
compiles it for the devices of this machine, or of several, and times steps in a process of its own;
the result is a `measured.Measurement`. `report.compare` predicts the same step and returns the
error, and `report` shows both: as text, as JSON, and as a line of the table that
`hespas.evidence.validate` reads.
"""
