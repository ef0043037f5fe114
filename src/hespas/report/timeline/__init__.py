"""A step as a timeline for Perfetto and Chrome.

`write.Chart` describes it: a process for each class of devices that behave alike, with tracks of
nested slices, counters, and flows from one slice to another, and is written as Trace Event JSON or
in Perfetto's format. `step` makes a chart of a simulated timeline, or of stages, with `details` of
its program, and the causes of waiting.
"""
