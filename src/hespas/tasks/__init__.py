"""Schedules: the tasks of all devices, with dependencies, and the files that hold them.

`build.estimated_tasks` turns a region graph and its estimates into a `tasks.TaskGraph`, which
describes all devices of one program; a `tasks.Job` holds several graphs and which device follows
which. `roles` computes from a graph what a single device does. `chakra/` writes and reads jobs
as Chakra traces; `intervals` has unions and differences of time intervals.
"""
