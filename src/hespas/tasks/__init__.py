"""Schedules: the tasks of all devices, with dependencies, and the files that hold them.

`build.estimated_tasks` turns a region graph and its estimates into a `graph.TaskGraph`, which
describes all devices of one program; a `graph.Job` holds several graphs and which device follows
which, and `graph.Roles` what a single device does. `chakra/` writes and reads jobs as Chakra
traces; `pipelining/` orders the passes of stages.
"""
