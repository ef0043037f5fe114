from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hespas.errors import ConfigError, HespasError, SimulationError, TraceError
from hespas.hardware.system import RemoteMemory, RemoteMemoryKind, System
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.algorithms import tree_node
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.flow.simulate import simulate_flow
from hespas.simulate.kernel import ActorQueue, Kernel
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    GroupTable,
    MemoryTask,
    Task,
    TaskGraph,
)

MakeSystem = Callable[..., System]


def graph(devices: int, *tasks: Task, tables: tuple[GroupTable, ...] = ()) -> TaskGraph:
    return TaskGraph(name="g", device_count=devices, tasks=tasks, group_tables=tables)


def compute(number: int, *after: int, ns: int = 10, is_on_host: bool = False) -> ComputeTask:
    return ComputeTask(
        id=number, name="c", depends_on=after, duration_ps=ns * 1000, is_on_host=is_on_host
    )


def all_reduce(number: int, table: int | None = None) -> CollectiveTask:
    return CollectiveTask(
        id=number,
        name="ar",
        depends_on=(),
        kind=CollectiveKind.ALL_REDUCE,
        size_bytes=400,
        group_table=table,
    )


def load(number: int, *after: int) -> MemoryTask:
    return MemoryTask(id=number, name="m", depends_on=after, size_bytes=100, is_store=False)


def test_events_of_an_instant_keep_their_order() -> None:
    clock = Kernel()
    seen: list[str] = []
    clock.at(5, lambda _: clock.at(5, seen.append, "set meanwhile"))
    clock.at(5, seen.append, "second")
    clock.at(3, seen.append, "earlier")

    clock.run()

    assert seen == ["earlier", "second", "set meanwhile"]


def test_alarms_of_a_device_ring_where_the_first_of_them_was_set() -> None:
    clock = Kernel()
    one, other = ActorQueue(clock), ActorQueue(clock)
    seen: list[str] = []
    one.after(5, seen.append, "one")
    other.after(5, seen.append, "other")
    one.after(5, seen.append, "one again")

    clock.run()

    assert seen == ["one", "one again", "other"]


@pytest.mark.parametrize("members", [2, 4, 8, 64])
@pytest.mark.parametrize("is_mirrored", [False, True])
def test_a_tree_joins_all_members(members: int, is_mirrored: bool) -> None:
    nodes = [tree_node(members, at, is_mirrored=is_mirrored) for at in range(members)]

    (root,) = [at for at, node in enumerate(nodes) if node.parent is None]
    assert root == (0 if is_mirrored else members - 1)
    assert {(child, at) for at, node in enumerate(nodes) for child in node.children} == {
        (at, node.parent) for at, node in enumerate(nodes) if node.parent is not None
    }


def test_the_cpu_computes_beside_the_device(make_system: MakeSystem) -> None:
    tasks = (compute(1, ns=30, is_on_host=True), compute(2, is_on_host=True), compute(3))

    timeline = simulate(graph(1, *tasks), make_system(("Switch", 1)))

    one = timeline.of_device(0)
    assert one.nodes == {1: (0, 30_000), 2: (30_000, 40_000), 3: (0, 10_000)}
    assert one.compute_ps == 10_000


def test_what_follows_nothing_waits_for_the_next_end(make_system: MakeSystem) -> None:
    empty = EmptyTask(id=1, name="e", depends_on=())

    timeline = simulate(graph(1, empty, compute(2, 1), compute(3)), make_system(("Switch", 1)))

    assert timeline.of_device(0).nodes == {1: (0, 0), 2: (10_000, 20_000), 3: (0, 10_000)}
    with pytest.raises(SimulationError, match=r"device 0 never end task 2 \(c\)"):
        simulate(graph(1, empty, compute(2, 1)), make_system(("Switch", 1)))


@pytest.mark.parametrize(
    ("kind", "ends_ns"),
    [
        (RemoteMemoryKind.PER_NPU_MEMORY_EXPANSION, [57, 57, 57, 57]),
        (RemoteMemoryKind.PER_NODE_MEMORY_EXPANSION, [57, 114, 57, 114]),
        (RemoteMemoryKind.MEMORY_POOL, [57, 114, 171, 228]),
    ],
)
def test_shared_memory_serves_one_at_a_time(
    kind: RemoteMemoryKind, ends_ns: list[int], make_system: MakeSystem
) -> None:
    memory = RemoteMemory(
        kind=kind, latency_s=7.9e-9, bandwidth_bytes_per_s=2e9, nodes=2, npus_per_node=2
    )
    system = replace(make_system(("Switch", 4)), remote_memory=memory)

    timeline = simulate(graph(4, load(1)), system)

    assert [timeline.of_device(d).nodes[1][1] // 1000 for d in range(4)] == ends_ns


def test_work_without_a_duration_is_refused_unless_a_roofline_prices_it(
    make_system: MakeSystem,
) -> None:
    roofline = replace(
        make_system(("Switch", 1), options={"roofline-enabled": 1, "peak-perf": 2}),
        local_memory_bandwidth_bytes_per_s=100e9,
    )
    untimed = replace(compute(1), operations=1000, tensor_bytes=5_000, has_duration=False)

    assert simulate(graph(1, untimed), roofline).finish_ps == 50_000
    assert simulate_flow(graph(1, untimed), roofline).finish_ps == 50_000
    for options in ({}, {"replay-only": 1, "roofline-enabled": 1, "peak-perf": 2}):
        for run in (simulate, simulate_flow):
            with pytest.raises(
                SimulationError,
                match=r"task 1 \(c\) has num_ops or tensor_size and no duration; .*set "
                "roofline-enabled, peak-perf and local-mem-bw in system.json",
            ):
                run(graph(1, untimed), make_system(("Switch", 1), options=options))


def test_a_roofline_gives_durations(make_system: MakeSystem) -> None:
    system = replace(
        make_system(("Switch", 1), options={"roofline-enabled": 1, "peak-perf": 2}),
        local_memory_bandwidth_bytes_per_s=100e9,
    )
    bound_by_memory = replace(compute(1), operations=1000, tensor_bytes=5_000)
    bound_by_peak = replace(compute(2, 1), operations=10**6, tensor_bytes=100)

    timeline = simulate(graph(1, bound_by_memory, bound_by_peak), system)

    assert timeline.of_device(0).nodes == {1: (0, 50_000), 2: (50_000, 550_000)}
    with pytest.raises(
        SimulationError, match=r"task 1 \(c\): .* needs num_ops, above 0, and tensor_size"
    ):
        simulate(graph(1, compute(1)), system)


@pytest.fixture
def work_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"all-reduce-implementation-custom": ["a"]}, TraceError, "a.0.et: cannot be read"),
        ({"per-node-custom-implementation": "list.yml"}, ConfigError, "not a map from ids"),
        ({"per-node-custom-implementation": "map.yml"}, ConfigError, "is not an id and a prefix"),
    ],
)
def test_a_bad_custom_collective_is_named(
    options: dict[str, object],
    error: type[HespasError],
    message: str,
    make_system: MakeSystem,
    work_directory: Path,
) -> None:
    (work_directory / "list.yml").write_text("[1]")
    (work_directory / "map.yml").write_text("one: a")

    with pytest.raises(error, match=message):
        simulate(graph(4, all_reduce(1)), make_system(("Ring", 4), options=options))


def test_a_custom_collective_needs_a_sorted_group(make_system: MakeSystem) -> None:
    system = make_system(("Ring", 4), options={"all-reduce-implementation-custom": ["a"]})
    work = graph(4, all_reduce(1, table=0), tables=(((1, 0), (2, 3)),))

    with pytest.raises(SimulationError, match="list its members in ascending order"):
        simulate(work, system)


def test_a_tree_among_six_is_refused(make_system: MakeSystem) -> None:
    system = make_system(("FullyConnected", 6), algorithms=("doubleBinaryTree",))

    with pytest.raises(SimulationError, match="doubleBinaryTree among 6, which is not a power"):
        simulate(graph(6, all_reduce(1)), system)
