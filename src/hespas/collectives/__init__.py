"""Collective algorithms: described once, verified, written out, and read from files.

`hespas.collectives.algorithms.ALGORITHMS` has the common ones by name. Each gives, for a collective
and a number of members, a `hespas.collectives.schedule.Schedule`: rounds of messages, with who
sends which parts to whom, to be added or stored. The network models time schedules.
"""
