"""ASTRA-sim's model: what its analytical simulator says, to the ns, in a fraction of the time.

In go a `hespas.tasks.graph.Job` and a `hespas.hardware.system.System`, out comes a
`hespas.simulate.timeline.Timeline`. `simulate.simulate` is the entry. It chooses among engines
that give the same result: `class_engine` runs one device of each symmetry class (`folding`), with
collectives as long as closed forms say (`closed_forms`, `staggered`, `durations`); `dataflow` runs
all devices at once, as arrays; `events` runs every message of every device; `streamed` runs traces
as they are read.

Other folders use `simulate.simulate`, `streamed.simulate_streamed`, `options`, `replay.is_replay`
and `roofline.with_durations`.
"""
