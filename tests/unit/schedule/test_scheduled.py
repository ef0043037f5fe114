"""The trace of a scheduled program, run on a system: what overlaps, and what waits."""

from __future__ import annotations

from hespas.hardware.presets import load_system
from hespas.program.program import Program
from hespas.schedule.build import RegionTime, build_task_graph
from hespas.schedule.tasks import CollectiveTask
from hespas.simulate.astra.simulate import simulate
from hespas.split.regions import Compute
from hespas.split.scheduled import split_scheduled
from scheduled import done, kernel, scheduled, start, sync

KERNEL_PS = 1_000_000_000


def spans(program: Program) -> dict[str, tuple[int, int]]:
    graph = split_scheduled(program)
    times = [
        RegionTime(duration_ps=KERNEL_PS, label="mhlo.fusion")
        if isinstance(region, Compute)
        else None
        for region in graph.regions
    ]
    tasks = build_task_graph(graph, times, name="step")
    (one,) = simulate(tasks, load_system("H100_80GB_4GPU")).classes
    return {task.name: one.nodes[task.id] for task in tasks.tasks}


def test_a_collective_hides_behind_the_kernels_up_to_its_end() -> None:
    found = spans(
        scheduled(
            kernel("k0", "a"),
            start("r", "k0"),
            kernel("k1", "a"),
            done("d", "r"),
            kernel("k2", "d"),
        )
    )
    assert found["r"][0] == found["k1"][0] == KERNEL_PS
    assert found["r"][1] < 2 * KERNEL_PS
    assert found["k2"][0] == 2 * KERNEL_PS


def test_what_waits_for_a_collective_that_lasts_longer_starts_at_its_end() -> None:
    found = spans(scheduled(kernel("k0", "a"), start("r", "k0"), done("d", "r"), kernel("k1", "d")))
    assert found["r"][0] == KERNEL_PS
    assert found["k1"][0] == found["r"][1] > KERNEL_PS


def test_nothing_hides_a_synchronous_collective() -> None:
    found = spans(scheduled(kernel("k0", "a"), sync("r", "k0"), kernel("k1", "a")))
    assert found["k1"][0] == found["r"][1]


def test_collectives_follow_each_other_on_one_stream() -> None:
    program = scheduled(
        start("r", "a"), start("s", "a"), kernel("k", "a"), done("d", "r"), done("e", "s")
    )
    found = spans(program)
    assert found["s"][0] == found["r"][1]
    tasks = build_task_graph(
        split_scheduled(program), [None, None, RegionTime(duration_ps=1, label="")], name="step"
    )
    collectives = [task for task in tasks.tasks if isinstance(task, CollectiveTask)]
    assert [task.order_only for task in collectives] == [(), ()]
