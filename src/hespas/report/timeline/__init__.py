"""A step as people look at it: tracks of slices, for Perfetto and Chrome.

`chart.Chart` describes it: a process for each class of devices that behave alike, with tracks of
nested slices, counters, and flows from one slice to another. `step` makes a chart of a simulated
timeline; `chrome` and `perfetto` write a chart as Trace Event JSON and as Perfetto's protobuf, and
`write` chooses between them by the name of the file.
"""
