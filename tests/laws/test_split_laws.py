from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hespas.program.program import Op
from hespas.split.flatten import flatten
from hespas.split.modules import canonical_text, region_modules
from hespas.split.options import SplitOptions, SplitStrategy
from hespas.split.regions import (
    Collective,
    Compute,
    Region,
    RegionGraph,
    is_constant,
    operations_of,
)
from hespas.split.strategies import split_program
from programs import Straight, settled, straight_programs

INDIVIDUAL = SplitOptions(strategy=SplitStrategy.INDIVIDUAL)
MERGED = SplitOptions(strategy=SplitStrategy.INDIVIDUAL, merge=True)
EVERY_WAY = (
    SplitOptions(),
    SplitOptions(block_limit=3),
    SplitOptions(merge=True),
    INDIVIDUAL,
    MERGED,
    SplitOptions(strategy=SplitStrategy.INDIVIDUAL, merge=True, block_limit=4),
)

ways = st.sampled_from(EVERY_WAY)


def operations(graph: RegionGraph) -> list[Op]:
    return [op for region in graph.regions for op in operations_of(region)]


@given(straight_programs(), ways)
def test_every_operation_but_constants_is_kept_once(drawn: Straight, options: SplitOptions) -> None:
    program = settled(drawn.text)
    expected = [op for op in flatten(program).operations if not is_constant(op)]
    found = operations(split_program(program, options))
    assert len(found) == len(expected)
    assert set(found) == set(expected)
    if not options.merge:
        assert found == expected


@given(straight_programs(), ways)
def test_operations_of_a_region_stay_in_order(drawn: Straight, options: SplitOptions) -> None:
    program = settled(drawn.text)
    position = {op: at for at, op in enumerate(flatten(program).operations)}
    graph = split_program(program, options)
    firsts = [position[operations_of(region)[0]] for region in graph.regions]
    assert firsts == sorted(firsts)
    for region in graph.regions:
        places = [position[op] for op in operations_of(region)]
        assert places == sorted(places)
        assert isinstance(region, Collective) or len(places) <= (options.block_limit or 1024)


@given(straight_programs(), ways)
def test_edges_point_from_producers_to_consumers(drawn: Straight, options: SplitOptions) -> None:
    graph = split_program(settled(drawn.text), options)
    made_by = {value: region.id for region in graph.regions for value in region.outputs}
    for region, producers in zip(graph.regions, graph.producers, strict=True):
        outside = set(region.inputs) - set(graph.arguments)
        assert producers == tuple(sorted({made_by[value] for value in outside}))
        assert all(producer < region.id for producer in producers)


@given(straight_programs(), ways)
def test_outputs_are_what_others_use(drawn: Straight, options: SplitOptions) -> None:
    graph = split_program(settled(drawn.text), options)
    used = set(graph.results).union(*(region.inputs for region in graph.regions))
    for region in graph.regions:
        made = [value for op in operations_of(region) for value in op.results]
        assert list(region.outputs) == [value for value in made if value in used]
        copied = [value for op in region.constants for value in op.results]
        known = {*region.inputs, *copied, *made}
        assert all(known.issuperset(op.operands) for op in operations_of(region))


def waits_for(graph: RegionGraph) -> dict[Op, set[Op]]:
    """Return what each collective waits for, directly or not."""
    before: list[set[Op]] = []
    for producers in graph.producers:
        direct = [{*operations_of(graph.regions[at])} | before[at] for at in producers]
        before.append(set[Op]().union(*direct))
    return {region.operation: before[region.id] for region in graph.collective_regions}


@given(straight_programs(), st.integers(2, 6) | st.none())
def test_merging_makes_no_collective_wait_for_more(drawn: Straight, limit: int | None) -> None:
    program = settled(drawn.text)
    merged = SplitOptions(strategy=SplitStrategy.INDIVIDUAL, merge=True, block_limit=limit)
    alone = waits_for(split_program(program, INDIVIDUAL))
    assert waits_for(split_program(program, merged)) == alone


class Schedule(Enum):
    """How a device runs what a graph holds."""

    IN_ORDER = "computation in program order; collectives beside it, when they are ready"
    ONE_BY_ONE = "the same, and each collective after the one before it"
    UNLIMITED = "everything as soon as it is ready"
    EARLIEST_READY = "of the computation that is ready, the earliest; collectives when ready"


def starts(graph: RegionGraph, durations: Mapping[Op, int], schedule: Schedule) -> dict[Op, int]:
    """Return when each collective starts."""
    times = [sum(durations[op] for op in operations_of(region)) for region in graph.regions]
    if schedule is Schedule.EARLIEST_READY:
        return earliest_ready_first(graph, times)
    ends: list[int] = []
    started: dict[Op, int] = {}
    compute_free = network_free = 0
    for region, producers in zip(graph.regions, graph.producers, strict=True):
        start = max((ends[at] for at in producers), default=0)
        if isinstance(region, Collective):
            start = max(start, network_free if schedule is Schedule.ONE_BY_ONE else 0)
            network_free = start + times[region.id]
            started[region.operation] = start
        elif schedule is not Schedule.UNLIMITED:
            start = max(start, compute_free)
            compute_free = start + times[region.id]
        ends.append(start + times[region.id])
    return started


def earliest_ready_first(graph: RegionGraph, times: Sequence[int]) -> dict[Op, int]:
    started: dict[Op, int] = {}
    ends: dict[int, int] = {}
    waiting: list[Region] = [*graph.regions]
    now = compute_free = 0

    def is_ready(region: Region) -> bool:
        return all(ends.get(at, now + 1) <= now for at in graph.producers[region.id])

    while waiting:
        ready = [region for region in waiting if is_ready(region)]
        collectives = [region for region in ready if isinstance(region, Collective)]
        started.update((region.operation, now) for region in collectives)
        chosen: list[Region] = [*collectives]
        computing = [region for region in ready if isinstance(region, Compute)]
        if computing and compute_free <= now:
            chosen.append(computing[0])
            compute_free = now + times[computing[0].id]
        ends.update((region.id, now + times[region.id]) for region in chosen)
        waiting = [region for region in waiting if region not in chosen]
        now = now if chosen else min(end for end in ends.values() if end > now)
    return started


@settings(max_examples=300)
@given(
    straight_programs(),
    st.sampled_from(Schedule),
    st.sampled_from(SplitStrategy),
    st.integers(2, 6) | st.none(),
    st.data(),
)
def test_merging_delays_no_collective(
    drawn: Straight,
    schedule: Schedule,
    strategy: SplitStrategy,
    limit: int | None,
    data: st.DataObject,
) -> None:
    program = settled(drawn.text)
    graph = split_program(program, SplitOptions(strategy=strategy))
    merged = split_program(program, SplitOptions(strategy=strategy, merge=True, block_limit=limit))
    if strategy is SplitStrategy.LINEAR and limit is not None:
        graph = split_program(program, SplitOptions(strategy=strategy, block_limit=limit))
    durations = {op: data.draw(st.integers(1, 50)) for op in operations(graph)}
    before, after = (starts(each, durations, schedule) for each in (graph, merged))
    assert before.keys() == after.keys()
    assert all(after[op] <= before[op] for op in before)


def test_merging_keeps_an_early_all_reduce_early() -> None:
    # An all-reduce that was ready at 881 us became ready at 3524 us in the published prototype.
    drawn = Straight.from_lines("tanh 0", "all_reduce 1", "negate 0", "add 2 3", results=(4,))
    graph = split_program(settled(drawn.text), MERGED)
    durations_us = {"tanh": 881, "all_reduce": 500, "negate": 2643, "add": 10}
    durations = {op: durations_us[op.kind] for op in operations(graph)}
    assert [*starts(graph, durations, Schedule.ONE_BY_ONE).values()] == [881]
    assert [[op.kind for op in operations_of(region)] for region in graph.regions] == [
        ["tanh"], ["all_reduce"], ["negate"], ["add"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("tanh 0", "negate 1", "add 1 2"), [["tanh", "negate", "add"]]),
        # Nothing waits for either: they may run together.
        (("tanh 0", "negate 0"), [["tanh", "negate"]]),
        # The second waits for a collective, the first doesn't.
        (("all_reduce 0", "tanh 0", "add 1 2"), [["all_reduce"], ["tanh"], ["add"]]),
        # A collective between two operations that feed another one stays between.
        (
            ("tanh 0", "all_reduce 0", "negate 1", "all_reduce 3"),
            [["tanh", "negate"], ["all_reduce"], ["all_reduce"]],
        ),
    ],
)
def test_what_merging_joins(lines: tuple[str, ...], expected: list[list[str]]) -> None:
    drawn = Straight.from_lines(*lines, results=(len(lines),))
    graph = split_program(settled(drawn.text), MERGED)
    assert [[op.kind for op in operations_of(region)] for region in graph.regions] == expected


@given(straight_programs(), ways)
def test_regions_share_a_module_if_they_share_their_text(
    drawn: Straight, options: SplitOptions
) -> None:
    program = settled(drawn.text)
    graph = split_program(program, options)
    modules = region_modules(graph)
    texts = [canonical_text(region, program) for region in graph.regions]
    assert len(modules.modules) == len(set(texts))
    for region, number in zip(graph.regions, modules.module_of_region, strict=True):
        assert modules.modules[number].canonical_text == texts[region.id]
        assert modules.modules[number].first_region <= region.id
