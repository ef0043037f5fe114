"""Split a program into regions of computation and communication, and the graph that they form.

`strategies.split_program` returns a `regions.RegionGraph`: regions in program order, each with the
ids of the regions that it waits for. `flatten` first makes every collective a top-level operation;
`scheduled` does the same along the schedule of a compiled program; `merge` joins regions without
delaying a collective. `modules.region_modules` finds equal regions, and `modules.stablehlo_text`
returns one as a StableHLO module. `names` says which phase and module of the user's program
operations belong to, `carried` whose tensors a combined collective carries.
"""
