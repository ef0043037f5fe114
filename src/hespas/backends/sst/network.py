"""The Python file that SST runs: a network of merlin's, and the job that plays the traces.

One dimension with a switch is merlin's single router, rings are a torus. Registration and matching
delays of firefly's are 0: they are of the host's processor. A link carries no more than a buffer in
the time in which a credit comes back, so that buffers hold more than it carries meanwhile.
"""

from __future__ import annotations

from math import ceil

from hespas.backends.network_program import dimensions_text
from hespas.errors import SimulationError
from hespas.hardware.system import NetworkDimension, System, Topology

_ROUND_TRIPS, _LEAST_BUFFER_BYTES = 2, 16_000_000
"""How many round trips of a link a buffer holds at least, and the size that was tried."""
_HINT = "simulate it by hespas: --backend hespas"


def network_text(system: System, *, prefix: str) -> str:
    """Return the file for a system whose ranks' traces are ``PREFIX.RANK``.

    Raises `SimulationError` for a network that merlin's single router or torus is not.
    """
    topology = _topology(system)
    link = link_of(system)
    bandwidth, latency = f"{link.bandwidth_bytes_per_s:.12g}B/s", f"{link.latency_s * 1e9:.12g}ns"
    round_trip_bytes = link.bandwidth_bytes_per_s * 2 * link.latency_s
    buffer = f"{max(_LEAST_BUFFER_BYTES, ceil(_ROUND_TRIPS * round_trip_bytes))}B"
    lines = [
        "# Written by hespas. Run it with: sst network.py",
        "import sst",
        "from sst.merlin.base import *",
        "from sst.merlin.endpoint import *",
        "from sst.merlin.interface import *",
        "from sst.merlin.topology import *",
        "from sst.ember import *",
        "",
        'PlatformDefinition.setCurrentPlatform("firefly-defaults")',
        "",
        *topology,
        f'topology.link_latency = "{latency}"',
        "",
        "router = hr_router()",
        f'router.link_bw = "{bandwidth}"',
        f'router.xbar_bw = "{bandwidth}"',
        'router.flit_size = "64B"',
        'router.input_latency = "0ns"',
        'router.output_latency = "0ns"',
        f'router.input_buf_size = "{buffer}"',
        f'router.output_buf_size = "{buffer}"',
        "router.num_vns = 2",
        'router.xbar_arb = "merlin.xbar_arb_lru"',
        "topology.router = router",
        "",
        "interface = ReorderLinkControl()",
        f'interface.link_bw = "{bandwidth}"',
        f'interface.input_buf_size = "{buffer}"',
        f'interface.output_buf_size = "{buffer}"',
        "",
        f"job = EmberMPIJob(0, {system.device_count})",
        "job.network_interface = interface",
        "job.os.ctrl.regRegionBaseDelay_ns = 0",
        "job.os.ctrl.regRegionPerPageDelay_ns = 0",
        "job.os.ctrl.matchDelay_ns = 0",
        'job.addMotif("Init")',
        f'job.addMotif("SIRIUSTrace traceprefix={prefix}")',
        'job.addMotif("Fini")',
        "",
        "system = System()",
        "system.setTopology(topology)",
        'system.allocateNodes(job, "linear")',
        "system.build()",
    ]
    return "\n".join(lines) + "\n"


def link_of(system: System) -> NetworkDimension:
    """Return a dimension of the network; `SimulationError` where there is none."""
    used = next((each for each in system.dimensions if each.npus_count > 1), None)
    if used is None:
        raise SimulationError("there is no network to simulate", location=system.name, hint=_HINT)
    return used


def _topology(system: System) -> list[str]:
    """Return the lines that make the topology."""
    first = link_of(system)
    dimensions = [each for each in system.dimensions if each.npus_count > 1]
    if len(dimensions) == 1 and first.topology is Topology.SWITCH:
        return ["topology = topoSingle()", f"topology.num_ports = {first.npus_count}"]
    kinds = {each.topology for each in dimensions}
    rates = {(each.bandwidth_bytes_per_s, each.latency_s) for each in dimensions}
    if kinds != {Topology.RING} or len(rates) > 1:
        raise SimulationError(
            "SST's network is written for one switch, or for rings of equal links, and the system "
            f"is {dimensions_text(system)}",
            location=system.name,
            hint=_HINT,
        )
    shape = "x".join(str(each.npus_count) for each in dimensions)
    width = "x".join("1" for _ in dimensions)
    return [
        "topology = topoTorus()",
        f'topology.shape = "{shape}"',
        f'topology.width = "{width}"',
        "topology.local_ports = 1",
    ]
