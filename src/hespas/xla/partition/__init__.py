"""Partition a sharded program: `partition.partition` is the entry, the rest runs in its process.

In comes StableHLO with Shardy's or GSPMD's annotations; out comes the StableHLO of one device, with
its collectives. `worker` runs XLA's partitioner with the passes in `passes`, or Shardy's own
(`shardy`) for more devices than XLA's CPU client takes.
"""
