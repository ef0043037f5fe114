"""From a task graph and a system to a timeline.

In come the tasks of all devices (`hespas.tasks`) and a system (`hespas.hardware`); out comes a
`timeline.Timeline`: when each task runs on each class of equal devices.

* `models`: the network models, `simulate_job`, which runs a job by one of them, and jobs with slow
  devices, bad links and several programs.
* `engine` runs classes of devices, and asks a network when communication ends: `astra`, which
  computes what ASTRA-sim's analytical simulators do, to the nanosecond, or `flow`, hespas' own, in
  which streams overlap and transfers share links max-min fairly.
* `kernel` (clock, queue, actors, and what waits for its partners) is below the engine.
* `rounds` joins kernels that follow each other, and multiplies the rounds of loops.
"""
