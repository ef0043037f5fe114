"""Machines in SI units, from presets or own files.

In goes a name or a path, out comes a `device.Device` (one accelerator's rates), a `system.System`
(a cluster: network dimensions and how collectives run) or a `links.Link` (bandwidth, latency and
measured collectives). Other folders load them with `presets` (`load_device`, `load_system`,
`node_info`, `load_microarchitecture`), `links.load_link` and `cluster.read_cluster`
(imperfections). `system.interconnect_of` returns the network that hespas' own network model
simulates. `system.read_system` alone knows ASTRA-sim's keys and units.

Values that a file holds in the same form are msgspec structs, decoded as they are; the types of
their figures are in `hespas.base.figures`.
"""
