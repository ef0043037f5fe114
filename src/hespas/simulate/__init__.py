"""From a task graph and a system to a timeline.

In come the tasks of all devices (`hespas.tasks`) and a system (`hespas.hardware`); out comes a
`timeline.Timeline`: when each task runs on each class of equal devices.

* `models`: the network models and `simulate_job`, which runs a job by one of them.
* `engine` runs classes of devices (`device`), and asks a network when communication ends: `astra`,
  which computes what ASTRA-sim's analytical simulators do, to the nanosecond, or `flow`, hespas'
  own, in which streams overlap and transfers share links max-min fairly.
* `kernel` (clock, queue, actors) and `matching` (messages and collectives that wait for their
  partners) are below the engine.
* `jobs` puts slow devices, bad links and several programs into a job; `rounds` joins kernels that
  follow each other, and multiplies the rounds of loops.
"""
