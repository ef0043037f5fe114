"""Split a program into a graph of computation and communication regions.

`strategies.split_program` returns a `regions.RegionGraph`: regions in program order, each with the
ids of the regions that it waits for. `flatten` makes every collective a top-level operation, of a
program or along the schedule of a compiled one. `modules.region_modules` finds equal regions, and
`modules.stablehlo_text` returns one as a StableHLO module. `names` says which phase and module of
the user's program operations belong to, and whose tensors a combined collective carries.
"""
