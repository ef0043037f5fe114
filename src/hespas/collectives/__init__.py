"""Describe, verify, write and read collective algorithms.

`hespas.collectives.algorithms.ALGORITHMS` has the common ones by name. For a collective and a
number of members each gives a `hespas.collectives.schedule.Schedule`: rounds of messages, with the
parts that each member sends, their targets, and whether these store or add them. The network models
time schedules.
"""
