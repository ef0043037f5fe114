"""From a task graph and a system to a timeline.

In come the tasks of all devices (`schedule`) and a system (`hardware`); out comes a
`timeline.Timeline`: when each task runs on each class of equal devices.

* `models`: the network models and `simulate_job`, which runs a job by one of them.
* `astra`: what ASTRA-sim's analytical simulators compute, to the nanosecond. `flow`: hespas' own
  model, in which streams overlap and transfers share links max-min fairly.
* `kernel` (clock, queue, actors) and `matching` (messages and collectives that wait for their
  partners) run every event loop; `deadlock` reports what never ends.
* `imperfect` puts slow devices, bad links and several programs into a job, `chains` joins kernels
  that follow each other, `rounds` multiplies those of loops, `memory_guard` refuses jobs too large
  for the memory that is there.
"""
