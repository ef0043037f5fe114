"""Describe an accelerator and a network that have no preset, and see what more bandwidth brings.

Devices and systems are values. The same can be written into files: docs/how-to/own-hardware.md.
"""

from dataclasses import replace

from msgspec import structs

import hespas
from hespas.hardware.device import Device
from hespas.hardware.interconnect import Dimension
from hespas.hardware.presets import load_system

mine = Device(
    name="mine",
    peak_flops=10e12,  # element types that have no rate of their own
    per_datatype_flops={"bf16": 200e12, "f32": 20e12},
    memory_bandwidth_bytes_per_s=1.2e12,
)
# Four devices, all connected to each other, without the measurements of their links.
system = replace(load_system("A100_SXM_40GB_4GPU"), interconnect=None)
twice = replace(mine, name="twice", memory_bandwidth_bytes_per_s=2.4e12)


def twice_as_fast(dimension: Dimension) -> Dimension:
    """Return a dimension whose links have twice the bandwidth."""
    links = dimension.parameters
    faster = structs.replace(links, bandwidth_bytes_per_s=2 * links.bandwidth_bytes_per_s)
    return replace(dimension, parameters=faster)


fast_links = replace(system, dimensions=tuple(map(twice_as_fast, system.dimensions)))

for title, node, network in (
    ("as it is", mine, system),
    ("memory twice as fast", twice, system),
    ("links twice as fast", mine, fast_links),
):
    step = hespas.predict("examples/attention_block.mlir", node, network, fidelity="exported")
    print(f"{title:<22}{step.step_time_s * 1e6:6.2f} us")
