"""Partition a sharded program in a process of its own.

`partition.partition` is the entry. The input is StableHLO with Shardy's or GSPMD's annotations; the
output is the StableHLO of one device, with its collectives. `worker` runs XLA's partitioner with
the passes in `passes.json`.
"""
