"""Devices that differ, without events where formulas still hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import pytest

from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra import events
from hespas.simulate.astra.simulate import simulate
from hespas.tasks.graph import CollectiveTask, ComputeTask, GroupTable, Job, Task, TaskGraph

MakeSystem = Callable[..., System]
ROWS: GroupTable = ((0, 1, 2, 3), (4, 5, 6, 7))
COLUMNS: GroupTable = ((0, 4), (1, 5), (2, 6), (3, 7))
KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


def tasks(speed: int, kind: CollectiveKind) -> tuple[Task, ...]:
    """Return computation and collectives of rows, columns and all devices, by turns."""
    found: list[Task] = []
    for number in range(0, 18, 2):
        before = (number - 1,) if number else ()
        found.append(
            ComputeTask(id=number, name="c", depends_on=before, duration_ps=speed * 700_000)
        )
        found.append(
            CollectiveTask(
                id=number + 1,
                name="k",
                depends_on=(number,),
                kind=kind,
                size_bytes=800,
                group_table=(0, 1, None)[number // 2 % 3],
            )
        )
    return tuple(found)


def job(kind: CollectiveKind, speeds: tuple[int, ...] = (1, 1, 1, 9, 1, 2, 1, 1)) -> Job:
    graphs = [
        TaskGraph(name="g", device_count=8, tasks=tasks(speed, kind), group_tables=(ROWS, COLUMNS))
        for speed in speeds
    ]
    return Job(graphs=tuple(graphs), graph_of_device=tuple(range(8)))


@pytest.fixture
def without_events(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes the event engine fail."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise AssertionError("every message was an event")

    return lambda: monkeypatch.setattr(events, "run_events", fail)


# The halves of a direct all-reduce overlap, and halving-doubling has no all-to-all.
ALGORITHMS = [
    *(("ring", kind) for kind in KINDS),
    *(("direct", kind) for kind in KINDS[1:]),
    *(("halvingDoubling", kind) for kind in KINDS[:3]),
]


@pytest.mark.parametrize(("algorithm", "kind"), ALGORITHMS)
@pytest.mark.parametrize("is_row", [True, False])
def test_devices_that_differ_need_no_events(
    kind: CollectiveKind,
    algorithm: str,
    *,
    is_row: bool,
    make_system: MakeSystem,
    without_events: Callable[[], None],
) -> None:
    system = make_system(("Ring", 4), ("Switch", 2), algorithms=(algorithm, algorithm))
    system = replace(system, local_memory_bandwidth_bytes_per_s=0.9e9)
    work = job(kind)
    if not is_row:
        # A computation beside: it competes with others for its slot, if not for long.
        beside = ComputeTask(id=99, name="b", depends_on=(), duration_ps=1_500_123)
        graphs = [replace(graph, tasks=(*graph.tasks, beside)) for graph in work.graphs]
        work = replace(work, graphs=tuple(graphs))
    by_events = simulate(work, system, by_events=True)

    without_events()
    found = simulate(work, system)

    assert found.as_json(with_nodes=True) == by_events.as_json(with_nodes=True)
    assert found.of_device(3).finish_ps != found.of_device(4).finish_ps or algorithm != "ring"


def test_devices_that_end_alike_are_reported_together(
    make_system: MakeSystem, without_events: Callable[[], None]
) -> None:
    system = make_system(("Switch", 8), algorithms=("direct",))
    work = job(CollectiveKind.ALL_GATHER, speeds=(1, 2))
    work = replace(work, graph_of_device=(0, 0, 0, 0, 0, 0, 0, 1))

    without_events()

    classes = [one.devices for one in simulate(work, system).classes]
    assert sorted(device for devices in classes for device in devices) == list(range(8))
    assert len(classes) < 8


def test_a_device_that_takes_no_part_goes_on(
    make_system: MakeSystem, without_events: Callable[[], None]
) -> None:
    group = CollectiveTask(
        id=2,
        name="k",
        depends_on=(1,),
        kind=CollectiveKind.ALL_REDUCE,
        size_bytes=800,
        group_table=0,
    )
    graphs = [
        TaskGraph(
            name="g",
            device_count=4,
            tasks=(
                ComputeTask(id=1, name="a", depends_on=(), duration_ps=1000 * ns),
                group,
                ComputeTask(id=3, name="b", depends_on=(2,), duration_ps=1000),
            ),
            group_tables=(((0, 1, 2),),),
        )
        for ns in (10, 20)
    ]
    work = Job(graphs=tuple(graphs), graph_of_device=(0, 0, 1, 1))
    system = make_system(("Switch", 4))
    by_events = simulate(work, system, by_events=True)

    without_events()

    found = simulate(work, system)
    assert found.as_json(with_nodes=True) == by_events.as_json(with_nodes=True)
    assert found.of_device(3).nodes == {1: (0, 20_000), 3: (20_000, 21_000)}


def test_devices_that_differ_can_still_not_start_for_free(make_system: MakeSystem) -> None:
    system = replace(make_system(("Switch", 8)), endpoint_delay_s=0)
    group = CollectiveTask(
        id=1,
        name="k",
        depends_on=(),
        kind=CollectiveKind.ALL_REDUCE,
        size_bytes=800,
        group_table=None,
    )
    work = job(CollectiveKind.ALL_REDUCE)
    graphs = tuple([replace(graph, tasks=(group,)) for graph in work.graphs])

    with pytest.raises(SimulationError, match="takes no time at the very start"):
        simulate(replace(work, graphs=graphs), system)


@pytest.mark.parametrize("is_row", [True, False])
def test_parts_of_a_collective_that_spans_some_dimensions_do_not_wait_for_each_other(
    *, is_row: bool, make_system: MakeSystem
) -> None:
    # One algorithm for two dimensions: the collective stays within the first.
    system = make_system(("Ring", 4), ("Switch", 2), algorithms=("ring",))
    collective = CollectiveTask(
        id=2,
        name="k",
        depends_on=(1,),
        kind=CollectiveKind.ALL_REDUCE,
        size_bytes=800,
        group_table=None,
    )
    beside = ComputeTask(id=3, name="b", depends_on=(1,) if is_row else (), duration_ps=1000)
    graphs = [
        TaskGraph(
            name="g",
            device_count=8,
            tasks=(
                ComputeTask(id=1, name="a", depends_on=(), duration_ps=1000 * ns),
                collective,
                beside,
            ),
            group_tables=(),
        )
        for ns in (10, 5000)
    ]
    work = Job(graphs=tuple(graphs), graph_of_device=(0,) * 7 + (1,))
    by_events = simulate(work, system, by_events=True)

    for is_folded in (True, False):
        found = simulate(work, system, is_folded=is_folded)
        assert found.as_json(with_nodes=True) == by_events.as_json(with_nodes=True)
    assert by_events.of_device(0).finish_ps < 5_000_000 < by_events.of_device(4).finish_ps
