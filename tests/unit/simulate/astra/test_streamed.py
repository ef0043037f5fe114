"""Traces that are simulated as they are read give what they give when they are read first."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from hespas.errors import DeviceCountError, SimulationError, TraceError
from hespas.hardware.system import System
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.astra.streamed import simulate_streamed
from hespas.simulate.options import ContentionModel
from hespas.simulate.timeline import ClassTimeline, Timeline
from hespas.tasks.chakra.reader import read_traces
from hespas.tasks.chakra.writer import write_traces
from hespas.tasks.graph import CollectiveTask, Job, Task, TaskGraph
from small_jobs import MakeSystem, all_reduce, compute, graph, send

HALVES = ((0, 1), (2, 3))


def drawn(seed: int, *, tables: bool, count: int = 60) -> TaskGraph:
    """Return computations and collectives that depend on some of the eight before them."""
    rng = Random(seed)  # noqa: S311 - nothing here is secret
    tasks: list[Task] = []
    for number in range(1, count):
        near = range(max(1, number - 8), number)
        after = rng.sample(near, min(len(near), rng.randrange(1, 4))) if near else []
        # One collective after another, as programs have them: else devices would mix them up.
        if rng.random() < 0.3:
            last = [task.id for task in tasks if isinstance(task, CollectiveTask)][-1:]
            table = 0 if tables and rng.random() < 0.5 else None
            after = [*dict.fromkeys((*after, *last))]
            tasks.append(all_reduce(number, *after, size=rng.choice((400, 800)), table=table))
        else:
            tasks.append(compute(number, *after, ns=rng.choice((10, 25, 333))))
    return graph(4, tasks, HALVES) if tables else graph(4, tasks)


def figures(timeline: Timeline, device: int) -> tuple[int, ...]:
    one: ClassTimeline = timeline.of_device(device)
    return one.finish_ps, one.compute_ps, one.communication_ps, one.overlap_ps


def both(job: Job | TaskGraph, system: System, directory: Path) -> tuple[Timeline, Timeline]:
    write_traces(job, directory)
    prefix, groups = directory / "dev", directory / "comm_group.json"
    whole = simulate(read_traces(prefix, groups), system)
    return whole, simulate_streamed(prefix, groups, system)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("tables", [False, True])
def test_the_figures_are_those_of_traces_read_first(
    seed: int, tables: bool, make_system: MakeSystem, tmp_path: Path
) -> None:
    system = make_system(("FullyConnected", 4))
    whole, streamed = both(drawn(seed, tables=tables), system, tmp_path)
    for device in range(4):
        assert figures(streamed, device) == figures(whole, device)
    assert streamed.finish_ps == whole.finish_ps


def test_devices_that_differ_wait_for_each_other(make_system: MakeSystem, tmp_path: Path) -> None:
    slow = [compute(1, ns=900), all_reduce(2, 1), compute(3, 2)]
    fast = [compute(1, ns=10), all_reduce(2, 1), compute(3, 2)]
    job = Job(graphs=(graph(4, fast), graph(4, slow)), graph_of_device=(0, 0, 1, 0))
    whole, streamed = both(job, make_system(("FullyConnected", 4)), tmp_path)
    for device in range(4):
        assert figures(streamed, device) == figures(whole, device)
    assert len(streamed.classes) == 4


def test_memory_does_not_grow_with_the_trace(make_system: MakeSystem, tmp_path: Path) -> None:
    system = make_system(("FullyConnected", 4))
    peaks: list[int] = []
    for count in (1_000, 11_000):
        tasks: list[Task] = [compute(1)]
        for number in range(2, count, 2):
            tasks += [compute(number, number - 1), all_reduce(number + 1, number)]
        directory = tmp_path / str(count)
        write_traces(graph(4, tasks), directory)
        tracemalloc.start()
        simulate_streamed(directory / "dev", directory / "comm_group.json", system)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 10_000 * 100, peaks


def test_what_cannot_be_streamed_is_refused(make_system: MakeSystem, tmp_path: Path) -> None:
    system = make_system(("FullyConnected", 4))
    write_traces(graph(4, [send(1, pairs=((0, 1), (1, 0)))]), tmp_path / "s")
    with pytest.raises(TraceError, match="only computations and collectives"):
        simulate_streamed(tmp_path / "s" / "dev", None, system)
    write_traces(graph(4, [compute(2), compute(1)]), tmp_path / "c")
    with pytest.raises(TraceError, match="its id is not above"):
        simulate_streamed(tmp_path / "c" / "dev", None, system)
    write_traces(graph(4, [compute(1)]), tmp_path / "w")
    with pytest.raises(DeviceCountError, match="4 devices"):
        simulate_streamed(tmp_path / "w" / "dev", None, make_system(("Switch", 8)))
    aware = ContentionModel.CONGESTION_AWARE
    with pytest.raises(SimulationError, match="without contention"):
        simulate_streamed(tmp_path / "w" / "dev", None, system, network=aware)


def test_a_collective_that_others_never_start_is_an_error(
    make_system: MakeSystem, tmp_path: Path
) -> None:
    with_one, without = [compute(1), all_reduce(2, 1)], [compute(1)]
    job = Job(graphs=(graph(4, with_one), graph(4, without)), graph_of_device=(0, 0, 1, 0))
    write_traces(job, tmp_path)
    groups, system = tmp_path / "comm_group.json", make_system(("FullyConnected", 4))
    with pytest.raises(SimulationError, match="device 2 never did"):
        simulate_streamed(tmp_path / "dev", groups, system)


def test_orders_that_differ_are_an_error(make_system: MakeSystem, tmp_path: Path) -> None:
    small, large = all_reduce(1, table=0), all_reduce(2, table=1)
    tables = (HALVES, ((0, 2), (1, 3)))
    forth = graph(4, [small, replace(large, depends_on=(1,))], *tables)
    back = graph(4, [replace(large, id=1), replace(small, id=2, depends_on=(1,))], *tables)
    job = Job(graphs=(forth, back), graph_of_device=(0, 1, 1, 0))
    write_traces(job, tmp_path)
    with pytest.raises(SimulationError, match=r"but devices? .* never did"):
        simulate_streamed(
            tmp_path / "dev", tmp_path / "comm_group.json", make_system(("FullyConnected", 4))
        )


def test_a_group_that_is_not_there_is_an_error(make_system: MakeSystem, tmp_path: Path) -> None:
    job = graph(4, [replace(all_reduce(1), group_table=0)], HALVES)
    write_traces(job, tmp_path)
    with pytest.raises(SimulationError, match="is not there"):
        simulate_streamed(tmp_path / "dev", None, make_system(("FullyConnected", 4)))
