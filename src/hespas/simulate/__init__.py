"""Simulate a task graph on a system, as a timeline.

The inputs are the tasks of all devices (`hespas.tasks`) and a system (`hespas.hardware`); the
output is a `timeline.Timeline`: when each task runs on each class of equal devices.

* `models`: the network models, `simulate_job`, which runs a job by one of them, and jobs with slow
  devices, bad links and several programs.
* `engine` runs classes of `devices`, and asks a network when communication ends: `astra`, which
  reproduces ASTRA-sim's analytical simulators to the nanosecond, or `flow`, hespas' own, in which
  streams overlap and transfers share links max-min fairly. `waits` says why tasks never end.
* `communicators` (who communicates with whom) and `kernel` (clock, queue, actors, and message
  matching) are below both.
* `rounds` joins kernels that follow each other, and multiplies the iterations of loops.
"""
