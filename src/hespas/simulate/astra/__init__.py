"""Reproduce ASTRA-sim's analytical simulators to the ns, much faster.

The inputs are a `hespas.tasks.graph.Job` and a `hespas.hardware.system.System`, the output is a
`hespas.simulate.timeline.Timeline`. `simulate.simulate` is the entry point, `streamed` simulates
traces as they are read. The engine runs one device of each symmetry class (`folding`) by closed
forms (`classes`, `durations`), or all devices message by message (`events`). `dataflow` is a fast
path for devices that differ: all at once, as arrays. `plan` says how a system runs a collective.
"""
