"""A step with a few rounds of each loop, one of them repeated, is the step with all of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from hespas.hardware.presets import load_system
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.rounds import Repeat, extended
from hespas.simulate.timeline import Timeline
from hespas.split.flatten import split_scheduled
from hespas.tasks.build import RegionTime, build_task_graph
from hespas.tasks.graph import TaskGraph
from scheduled import done, kernel, scheduled, start


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


def of_rounds(count: int, *, tail: str = "last") -> tuple[TaskGraph, Timeline]:
    rounds = [line for number in range(count) for line in round_of(number)]
    return simulated(kernel("first", "a"), *rounds, kernel(tail, "a"))


def repeat_of(graph: TaskGraph, count: int) -> tuple[Repeat, dict[int, int]]:
    """Return the second and the third of four rounds, of which the third runs ``count`` times."""
    ids, size = [task.id for task in graph.tasks], len(round_of(0)) - 1
    second, third = ids[1 + size : 1 + 2 * size], ids[1 + 2 * size : 1 + 3 * size]
    counts = dict.fromkeys(ids, 1) | dict.fromkeys(third, count)
    return Repeat(before=tuple(second), again=tuple(third), count=count), counts


@pytest.mark.parametrize("count", [5, 6, 11])
def test_rounds_that_are_left_out_take_what_unrolled_ones_take(count: int) -> None:
    _, whole = of_rounds(count)
    graph, four = of_rounds(4)
    repeat, counts = repeat_of(graph, count - 3)
    found = extended(four, [repeat], counts)
    assert found is not None
    assert found.finish_ps == whole.finish_ps > four.finish_ps
    for name in ("compute_ps", "communication_ps", "exposed_communication_ps", "slowed_ps"):
        assert getattr(found.specified, name) == getattr(whole.specified, name)
    assert [each.overlap_ps for each in found.classes] == [
        each.overlap_ps for each in whole.classes
    ]
    assert sum(found.slowest.exposed_ps.values()) == sum(whole.slowest.exposed_ps.values()) > 0


def moved(timeline: Timeline, tasks: Collection[int], start_ps: int, end_ps: int) -> Timeline:
    """Return a timeline in which tasks start and end later."""
    one = timeline.slowest
    nodes = {
        task: (begin + start_ps, end + end_ps) if task in tasks else (begin, end)
        for task, (begin, end) in one.nodes.items()
    }
    return replace(timeline, classes=(replace(one, nodes=nodes), *timeline.classes[1:]))


@pytest.mark.parametrize("lasts_ps", [0, 1])
def test_a_round_that_differs_from_the_one_before_says_nothing(lasts_ps: int) -> None:
    graph, four = of_rounds(4)
    repeat, counts = repeat_of(graph, 7)
    later = moved(four, repeat.again[1:2], 1 - lasts_ps, 1)
    assert extended(later, [repeat], counts) is None


def test_what_was_begun_two_rounds_ago_says_nothing() -> None:
    graph, four = of_rounds(4)
    repeat, counts = repeat_of(graph, 7)
    first = graph.tasks[0].id
    assert extended(moved(four, {first}, 0, four.finish_ps), [repeat], counts) is None


def test_what_follows_the_loop_and_starts_within_a_round_says_nothing() -> None:
    graph, four = of_rounds(4)
    repeat, counts = repeat_of(graph, 7)
    last = graph.tasks[-1].id
    early_ps = four.slowest.nodes[repeat.again[0]][0] - four.slowest.nodes[last][0]
    assert extended(moved(four, {last}, early_ps, 0), [repeat], counts) is None


def test_devices_that_are_not_as_specified_are_simulated_whole() -> None:
    graph, four = of_rounds(4)
    repeat, counts = repeat_of(graph, 7)
    assert extended(four, [repeat], counts) is not None
    assert extended(replace(four, as_specified=four.slowest), [repeat], counts) is None


def test_windows_that_cross_are_simulated_whole() -> None:
    graph, four = of_rounds(4)
    repeat, counts = repeat_of(graph, 7)
    ids = [task.id for task in graph.tasks]
    shifted = Repeat(
        before=tuple(ids[ids.index(each) + 2] for each in repeat.before),
        again=tuple(ids[ids.index(each) + 2] for each in repeat.again),
        count=7,
    )
    assert extended(four, [repeat, shifted], counts) is None
