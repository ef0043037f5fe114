"""ASTRA-sim's model: what its analytical simulator says, to the ns, in a fraction of the time.

In go a `hespas.tasks.graph.Job` and a `hespas.hardware.system.System`, out comes a
`hespas.simulate.timeline.Timeline`. `simulate.simulate` is the entry, `streamed` simulates traces
as they are read. The engine runs one device of each symmetry class (`folding`) by closed forms
(`classes`, `durations`), or all devices message by message (`events`). `dataflow` is a fast path
for devices that differ: all at once, as arrays. `plan` says how a system runs a collective.
"""
