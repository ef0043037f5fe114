"""Build all devices' task graphs and store them as traces.

`build.estimated_tasks` turns a region graph and its estimates into a `graph.TaskGraph`, which
describes all devices of one program; a `graph.Job` holds several graphs and assigns one to each
device, and `graph.Roles` describes what a single device does. `chakra/` writes and reads jobs as
Chakra traces; `pipelining/` orders the passes of stages.
"""
