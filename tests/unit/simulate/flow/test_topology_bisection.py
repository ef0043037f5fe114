"""All-to-alls on rings and tori take as long as the bisection allows, and no less."""

from __future__ import annotations

from math import prod

import pytest

from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape
from hespas.hardware.links import LinkParameters
from hespas.program.collectives import CollectiveKind
from hespas.simulate.flow.simulate import simulate_flow
from hespas.tasks.graph import CollectiveTask, TaskGraph

LINK = LinkParameters(bandwidth_bytes_per_s=1e9, latency_s=0.0)
SIZE = 64 << 20


@pytest.mark.parametrize("sides", [(4,), (8,), (16,), (4, 4), (8, 4), (4, 4, 4), (5,), (3, 3)])
def test_all_to_alls_reach_the_bisection(sides: tuple[int, ...]) -> None:
    assert taken_s(sides) == pytest.approx(bound_s(sides), rel=1e-6)


@pytest.mark.parametrize("sides", [(6,), (10,), (14,)])
def test_sides_of_twice_an_odd_number_come_near(sides: tuple[int, ...]) -> None:
    # A message is not divided, so that some links carry one more than others.
    assert bound_s(sides) < taken_s(sides) < 1.12 * bound_s(sides)


def taken_s(sides: tuple[int, ...]) -> float:
    """Return how long an all-to-all takes on rings of these sizes."""
    rings = [Dimension(shape=Shape.RING, size=side, parameters=LINK) for side in sides]
    network = Interconnect(name="torus", fabric=Dimensions(dimensions=tuple(rings)))
    task = CollectiveTask(
        id=1,
        name="all_to_all",
        depends_on=(),
        size_bytes=SIZE,
        kind=CollectiveKind.ALL_TO_ALL,
        group_table=None,
    )
    graph = TaskGraph(name="step", device_count=prod(sides), tasks=(task,), group_tables=())
    return simulate_flow(graph, network, algorithm="direct").finish_ps / 1e12


def bound_s(sides: tuple[int, ...]) -> float:
    """Return the time below which no all-to-all ends."""
    # Along a ring of n, each device has SIZE / n for each other coordinate, and messages to all of
    # them go n^2 / 4 links ((n^2 - 1) / 4 of an odd ring) over two links a device. For even n that
    # is SIZE n / 8 B, as the bisection allows: half of the devices send half of their data over
    # 2 links. The longest side is the narrowest.
    longest = max(sides)
    return (longest**2 - longest % 2) / 4 / 2 * SIZE / longest / 1e9
