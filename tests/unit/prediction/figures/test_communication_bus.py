"""The most that a group of devices can reach, by hand and on the systems of the presets."""

from __future__ import annotations

import pytest

from hespas.base.units import PS_PER_S
from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape
from hespas.hardware.links import LinkParameters
from hespas.hardware.presets import load_system, system_names
from hespas.hardware.system import interconnect_of
from hespas.prediction.figures.communication import Bus, bus_of, sent_bytes
from hespas.program.collectives import CollectiveKind
from hespas.simulate.flow.simulate import simulate_flow
from hespas.tasks.graph import CollectiveTask, TaskGraph

DIVISIBLE = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)
GB = 10**9
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.ALL_TO_ALL,
)


def dimension(
    size: int, bandwidth: float, *, shape: Shape = Shape.SWITCH, reduces: bool = False
) -> Dimension:
    link = LinkParameters(bandwidth_bytes_per_s=bandwidth, latency_s=0.0, reduces_in_switch=reduces)
    return Dimension(shape=shape, size=size, parameters=link)


NODES = Bus(dimensions=(dimension(8, 450e9), dimension(4, 50e9)))
"""4 nodes of 8 devices, each with a link of its own to the other nodes."""


@pytest.mark.parametrize(
    ("kind", "members", "limit"),
    [
        (ALL_GATHER, range(4), 450e9),
        # A device in each node: what it gets comes over its own link.
        (ALL_GATHER, range(0, 32, 8), 50e9),
        # Two in each of four nodes: 6 of 7 parts come from other nodes, to two devices.
        (ALL_GATHER, range(0, 32, 4), 7 / 6 * 2 * 50e9),
        (ALL_REDUCE, range(0, 32, 4), 7 / 6 * 2 * 50e9),
        # In all-to-all each device has its own bytes to send to 6 of 7 others.
        (ALL_TO_ALL, range(0, 32, 4), 7 / 6 * 50e9),
        # All of them: what a device has in links decides before what a node has to others.
        (ALL_GATHER, range(32), 450e9 + 50e9),
        (CollectiveKind.BROADCAST, range(32), 8 * 50e9),
        # Not a product of positions along the dimensions.
        (ALL_GATHER, (0, 9), None),
        (ALL_GATHER, (3,), None),
        # A message from one node to another, on the narrower link.
        (None, (0, 9), 50e9),
        (None, (0, 1), 450e9),
    ],
)
def test_the_narrowest_cut_decides(
    kind: CollectiveKind | None, members: tuple[int, ...], limit: float | None
) -> None:
    found = NODES.limit_bytes_per_s(kind, members)
    assert found == (None if limit is None else pytest.approx(limit))


def test_the_shape_says_how_many_links_a_device_has() -> None:
    for shape, links in ((Shape.RING, 2), (Shape.FULLY_CONNECTED, 3), (Shape.SWITCH, 1)):
        bus = Bus(dimensions=(dimension(4, 1e9, shape=shape),))
        assert bus.limit_bytes_per_s(ALL_GATHER, range(4)) == pytest.approx(links * 1e9)


def test_switches_that_reduce_halve_what_an_all_reduce_sends() -> None:
    bus = Bus(dimensions=(dimension(8, 1e9, reduces=True),))
    assert bus.limit_bytes_per_s(ALL_REDUCE, range(8)) == pytest.approx(2 * 7 / 8 * 1e9)
    assert bus.limit_bytes_per_s(ALL_GATHER, range(8)) == pytest.approx(1e9)


def test_the_dimensions_are_those_that_the_model_sees() -> None:
    system = load_system("H100_80GB_8GPU_32")
    own, astra = bus_of(system, model="hespas"), bus_of(system, model="astra-sim")
    assert own is not None
    assert astra is not None
    assert own.used([range(0, 32, 4)]) == (0, 1)
    bandwidths = [each.bandwidth_bytes_per_s for each in system.dimensions]
    assert [each.parameters.bandwidth_bytes_per_s for each in astra.dimensions] == bandwidths


def _folded(devices: int, stride: int, size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(block + offset + stride * at for at in range(size))
        for block in range(0, devices, stride * size)
        for offset in range(stride)
    )


def _reached(
    network: Interconnect, task: CollectiveTask, groups: tuple[tuple[int, ...], ...]
) -> float:
    graph = TaskGraph(
        name="g", device_count=network.device_count, tasks=(task,), group_tables=(groups,)
    )
    start, end = simulate_flow(graph, network).of_device(0).nodes[0]
    return sent_bytes(task.kind, len(groups[0]), task.size_bytes) * PS_PER_S / (end - start)


@pytest.mark.parametrize("name", system_names())
def test_no_more_is_reached_on_systems_of_the_presets(name: str) -> None:
    network = interconnect_of(load_system(name))
    assert isinstance(network.fabric, Dimensions)
    bus, devices = Bus(dimensions=network.fabric.dimensions), network.device_count
    for stride in (1, 2, 4, 8):
        for size in {2, 4, 8, devices // stride} - {0, 1}:
            if devices % (stride * size):
                continue
            groups = _folded(devices, stride, size)
            for kind in DIVISIBLE:
                task = CollectiveTask(
                    id=0, name="k", depends_on=(), kind=kind, size_bytes=GB, group_table=0
                )
                limit = bus.limit_bytes_per_s(kind, groups[0])
                if limit is not None:
                    assert _reached(network, task, groups) <= limit * (1 + 1e-5), (kind, groups[0])
