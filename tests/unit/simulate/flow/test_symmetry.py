"""Devices in pairs: one message of each stands for all where nothing else uses their links."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape
from hespas.hardware.links import LinkParameters
from hespas.program.collectives import CollectiveKind
from hespas.simulate.flow import groups, symmetry
from hespas.simulate.flow.simulate import simulate_flow
from hespas.tasks.graph import CollectiveTask, GroupTable, Task, TaskGraph

GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
EXCHANGE = CollectiveKind.ALL_TO_ALL
ALL = CollectiveKind.ALL_REDUCE
WORLD: GroupTable = (tuple(range(8)),)
NODES: GroupTable = ((0, 1, 2, 3), (4, 5, 6, 7))
OTHERS: GroupTable = ((0, 2), (1, 3), (4, 6), (5, 7))
RAILS: GroupTable = ((0, 4), (1, 5), (2, 6), (3, 7))


def network(*sizes: tuple[Shape, int]) -> Interconnect:
    link = LinkParameters(bandwidth_bytes_per_s=1e9, latency_s=1e-7)
    dimensions = [Dimension(shape=shape, size=size, parameters=link) for shape, size in sizes]
    return Interconnect(name="pairs", fabric=Dimensions(dimensions=tuple(dimensions)))


PAIRS = network((Shape.FULLY_CONNECTED, 8))
TWO_NODES = network((Shape.FULLY_CONNECTED, 4), (Shape.SWITCH, 2))


def job(*tasks: tuple[CollectiveKind, GroupTable, int]) -> TaskGraph:
    """Return collectives that all start at once."""
    tables = list(dict.fromkeys(table for _, table, _ in tasks))
    made: Iterable[Task] = (
        CollectiveTask(
            id=number,
            name="c",
            depends_on=(),
            kind=kind,
            size_bytes=size,
            group_table=tables.index(table),
        )
        for number, (kind, table, size) in enumerate(tasks, 1)
    )
    return TaskGraph(name="g", device_count=8, tasks=tuple(made), group_tables=tuple(tables))


JOBS = {
    "alone": job((ALL, WORLD, 8000)),
    "after each other": job((SCATTER, WORLD, 8000), (GATHER, WORLD, 1000), (EXCHANGE, WORLD, 800)),
    "nodes": job((ALL, NODES, 8000), (EXCHANGE, NODES, 4000)),
    "nodes and rails": job((ALL, NODES, 8000), (ALL, RAILS, 8000)),
    "nodes and others": job((ALL, NODES, 8000), (ALL, OTHERS, 80000)),
    "everyone and others": job((ALL, WORLD, 8000), (ALL, OTHERS, 80000)),
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("algorithm", ["direct", "auto", "hierarchical"])
@pytest.mark.parametrize("system", [PAIRS, TWO_NODES], ids=["pairs", "nodes"])
def test_what_is_left_out_decides_nothing(
    name: str, algorithm: str, system: Interconnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = simulate_flow(JOBS[name], system, algorithm=algorithm)
    monkeypatch.setattr(symmetry, "_exclusive_dimensions", _none)
    whole = simulate_flow(JOBS[name], system, algorithm=algorithm)
    for device in range(8):
        assert short.of_device(device).nodes == whole.of_device(device).nodes


def _none(_blocks: object) -> frozenset[int]:
    return frozenset()


def test_others_on_the_same_links_count() -> None:
    """A direct exchange of all and one of pairs share the links between the pairs."""
    alone = simulate_flow(job((EXCHANGE, OTHERS, 80_000)), PAIRS, algorithm="direct").finish_ps
    both = job((EXCHANGE, OTHERS, 80_000), (EXCHANGE, WORLD, 80_000))
    assert simulate_flow(both, PAIRS, algorithm="direct").finish_ps > 1.1 * alone


def test_thousands_of_devices_in_pairs_take_little() -> None:
    devices = 4096
    graph = TaskGraph(
        name="direct",
        device_count=devices,
        tasks=(
            CollectiveTask(
                id=1, name="c", depends_on=(), kind=ALL, size_bytes=1 << 26, group_table=None
            ),
        ),
        group_tables=(),
    )
    system = network((Shape.FULLY_CONNECTED, devices))
    part = (1 << 26) // devices
    # Scattered and gathered: a part to each other device on its own link, twice.
    expected_ns = 2 * (100 + part)
    found = simulate_flow(graph, system, algorithm="direct").finish_ps / 1000
    assert found == pytest.approx(expected_ns, rel=1e-6)


SECOND = LinkParameters(bandwidth_bytes_per_s=2e9, latency_s=1e-7)


def faster(system: Interconnect, *numbers: int) -> Interconnect:
    """Return a network whose numbered dimensions have twice the bandwidth."""
    dimensions = tuple([
        replace(dimension, parameters=SECOND) if number in numbers else dimension
        for number, dimension in enumerate(system.dimensions)
    ])  # fmt: skip
    return replace(system, fabric=Dimensions(dimensions=dimensions))


@pytest.mark.parametrize("numbers", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("name", JOBS)
def test_what_an_earlier_simulation_found_decides_nothing(
    name: str, numbers: tuple[int, ...]
) -> None:
    system = faster(TWO_NODES, *numbers)
    forget()
    alone = simulate_flow(JOBS[name], system)
    for earlier, before in ((JOBS[name], TWO_NODES), (JOBS["nodes and others"], system)):
        forget()
        simulate_flow(earlier, before)
        assert simulate_flow(JOBS[name], system) == alone


def forget() -> None:
    """Forget the groups and classes of earlier simulations."""
    for found in (groups.found_groups, symmetry.placed_groups, symmetry.alike):
        found.cache_clear()


def test_faster_links_and_other_times_have_the_same_classes() -> None:
    forget()
    simulate_flow(JOBS["nodes and rails"], TWO_NODES)
    simulate_flow(JOBS["nodes and rails"], faster(TWO_NODES, 0, 1))
    assert symmetry.alike.cache_info().hits == 1
    simulate_flow(JOBS["nodes and rails"], faster(TWO_NODES, 0))
    assert symmetry.alike.cache_info().misses == 2
