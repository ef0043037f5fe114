"""A step with one round of each loop, multiplied, is the step with all of them."""

from __future__ import annotations

from dataclasses import replace

from hespas.hardware.presets import load_system
from hespas.schedule.build import RegionTime, build_task_graph
from hespas.schedule.tasks import TaskGraph
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.rounds import Stretch, multiplied
from hespas.simulate.timeline import Timeline
from hespas.split.scheduled import split_scheduled
from scheduled import done, kernel, scheduled, start

ROUNDS = 5


def round_of(number: int) -> list[str]:
    return [
        kernel(f"k{number}", "a"),
        start(f"r{number}", f"k{number}"),
        kernel(f"l{number}", "a"),
        done(f"d{number}", f"r{number}"),
        kernel(f"m{number}", f"d{number}"),
    ]


def simulated(*lines: str) -> tuple[TaskGraph, Timeline]:
    regions = split_scheduled(scheduled(*lines))
    collectives = {region.id for region in regions.collective_regions}
    times = [
        None if region.id in collectives else RegionTime(duration_ps=1_000_001, label="mhlo.fusion")
        for region in regions.regions
    ]
    graph = build_task_graph(regions, times, name="step")
    return graph, simulate(graph, load_system("H100_80GB_4GPU"))


def test_rounds_that_are_multiplied_take_what_unrolled_ones_take() -> None:
    rounds = [line for number in range(ROUNDS) for line in round_of(number)]
    _, whole = simulated(kernel("first", "a"), *rounds, kernel("last", "a"))
    graph, one = simulated(kernel("first", "a"), *round_of(0), kernel("last", "a"))
    ids = [task.id for task in graph.tasks]
    stretches = [
        Stretch(tasks=frozenset(ids[:1]), count=1),
        Stretch(tasks=frozenset(ids[1:-1]), count=ROUNDS),
        Stretch(tasks=frozenset(ids[-1:]), count=1),
    ]
    found = multiplied(one, stretches)
    assert found is not None
    assert found.finish_ps == whole.finish_ps > one.finish_ps
    assert found.parts == whole.parts
    assert [each.overlap_ps for each in found.classes] == [
        each.overlap_ps for each in whole.classes
    ]
    assert sum(found.slowest.exposed_ps.values()) == sum(whole.slowest.exposed_ps.values()) > 0


def test_what_is_under_way_between_two_stretches_is_not_multiplied() -> None:
    graph, one = simulated(*round_of(0))
    ids = [task.id for task in graph.tasks]
    # The collective starts in the first stretch and ends in the second one.
    stretches = [
        Stretch(tasks=frozenset(ids[:2]), count=1),
        Stretch(tasks=frozenset(ids[2:]), count=ROUNDS),
    ]
    assert multiplied(one, stretches) is None


def test_devices_that_are_not_as_specified_are_not_multiplied() -> None:
    graph, one = simulated(*round_of(0))
    stretches = [Stretch(tasks=frozenset(task.id for task in graph.tasks), count=ROUNDS)]
    assert multiplied(one, stretches) is not None
    assert multiplied(replace(one, as_specified=one.slowest), stretches) is None


def test_devices_that_end_a_round_at_different_times_are_not_multiplied() -> None:
    graph, one = simulated(kernel("k", "a"))
    stretches = [Stretch(tasks=frozenset(task.id for task in graph.tasks), count=ROUNDS)]
    late = {task: (begin, end + 1) for task, (begin, end) in one.slowest.nodes.items()}
    apart = replace(one, classes=(one.slowest, replace(one.slowest, nodes=late)))
    assert multiplied(apart, stretches) is None
