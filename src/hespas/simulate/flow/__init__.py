"""hespas' own network model.

Streams of collectives and messages overlap, and share links max-min fairly.

In goes a job (task graphs of all devices), a system or an interconnect, and optionally a cluster's
overrides; out comes a `hespas.simulate.timeline.Timeline`. The public face is
`simulate.simulate_flow`, `measured.nearest_size`, and for judges `topology.make_topology`.

A job passes through the modules in this order: `groups` finds who communicates with whom,
`planning` chooses an algorithm and returns one of `plans` (its steps and their prices:
`algorithms`; as GPU libraries run it: `libraries`, from tables of links, `measured`, and across
nodes, `nccl`), `symmetry` divides devices, groups and links into classes, and
`simulate` runs one device of each class and its `transfers`, beside which computation has fewer
multiprocessors.
"""
