"""Descriptions of machines, in SI units: from preset files or a user's own to devices and systems.

In goes a name or a path, out comes a `device.Device` (one accelerator's rates), a `system.System`
(a cluster: network dimensions and how collectives run) or a `links.Link` (bandwidth, latency and
measured collectives). Other folders load them with `presets` (`load_device`, `load_system`,
`node_info`), `links.load_link`, `microarchitecture.load_microarchitecture` and
`cluster.read_cluster` (imperfections). `interconnect.interconnect_of` returns the network that
hespas' own network model simulates. `astra_sim_files` alone knows ASTRA-sim's keys and
units.

Values that a file holds in the same form are msgspec structs, decoded as they are; the types of
their figures are in `figures`.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "cluster": ("Cluster", "Distribution", "Jitter", "LinkOverride", "read_cluster"),
    "device": ("Device", "at_fastest", "factor_of", "table_of"),
    "faster_links": ("LinkFactors", "with_link_bandwidths", "with_links"),
    "graph": ("Edge", "Graph"),
    "interconnect": (
        "Dimension",
        "Dimensions",
        "Dragonfly",
        "Fabric",
        "Interconnect",
        "Shape",
        "interconnect_of",
    ),
    "links": (
        "Link",
        "LinkParameters",
        "MeasuredCollective",
        "Protocol",
        "link_names",
        "load_link",
    ),
    "microarchitecture": (
        "Microarchitecture",
        "load_microarchitecture",
        "microarchitecture_at",
        "read_microarchitecture",
    ),
    "parts": ("part_warnings",),
    "power": (
        "BoardEnergy",
        "BoardPower",
        "Draw",
        "POWER",
        "Sustained",
        "clock_in_loop",
        "energy",
        "mean_w",
        "network_w",
        "sustained_clock",
    ),
    "presets": (
        "MICROARCHITECTURE",
        "NodeInfo",
        "PRESETS_DIRECTORY",
        "device_file",
        "device_names",
        "found_path",
        "is_tpu",
        "load_device",
        "load_hardware",
        "load_system",
        "node_directory",
        "node_info",
        "node_name",
        "part_of",
        "presets_that_fit",
        "system_directory",
        "system_names",
    ),
    "sized": ("find_system", "names_system"),
    "slices": ("Slice",),
    "system": (
        "CollectiveKind",
        "LinkBandwidth",
        "NetworkDimension",
        "RemoteMemory",
        "RemoteMemoryKind",
        "System",
        "Topology",
        "bare_system",
    ),
    "tensor_core": ("TensorCore", "faster"),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
