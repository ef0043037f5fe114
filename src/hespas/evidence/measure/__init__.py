"""Steps that run on the devices that are there, held against their predictions.

In goes a workload and how to run it (`measured.MeasureOptions`). `measured.measure_step` compiles
it for the devices of this machine, or of several, and times steps in a process of its own; out
comes a `measured.Measurement`. `report.compare` predicts the same step and says how far off that
is, and `report` shows both: as text, as JSON, and as a line of the table that
`hespas.evidence.validate` reads.
"""
