"""Laws of pipelines: closed forms of the bubble and of memory, and what holds for any durations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.errors import ConfigError
from hespas.tasks.pipelining.schedule import (
    Action,
    Pass,
    Schedule,
    check_schedule,
    chunks_named,
    ideal_bubble,
    read_schedule,
    schedule_named,
)
from hespas.tasks.pipelining.timing import Durations, timed
from pipeline_schedules import in_flight

UNIT_PS = 1000
STAGES = st.integers(1, 9)
ROUNDS = st.integers(1, 5)
NAMES = st.sampled_from(("gpipe", "1f1b", "interleaved:2", "interleaved:5", "zero-bubble"))


def equal(schedule: Schedule) -> Durations:
    """Passes whose stages are equal; a stage's chunks divide its time."""
    parts = 1 if schedule.splits_backward else 2
    lasts = {Pass.FORWARD: 1, Pass.BACKWARD: parts, Pass.WEIGHTS: 1}
    return Durations(
        pass_ps=lambda _, action: UNIT_PS * lasts[action.kind],
        message_ps=lambda _source, _target: 0,
    )


def always(backward_ps: int, forward_ps: int) -> Callable[[int, Action, Action], tuple[int, int]]:
    """Passes side by side that are shorter by the same on every stage."""
    return lambda _stage, _backward, _forward: (backward_ps, forward_ps)


def made(name: str, stages: int, rounds: int) -> Schedule:
    return schedule_named(name, stages=stages, micro_batches=stages * rounds)


def most_in_flight(name: str, *, stages: int, micro_batches: int, stage: int) -> int:
    """Return how many chunks of micro-batches a stage holds at most, in closed form.

    GPipe holds all; 1F1B as many as there are stages from this one on; with ``V`` chunks a stage,
    ``2 (p - 1 - s) + (V - 1) p + 1``; with zero-bubble the number of
    stages.

    """
    chunks = chunks_named(name)
    behind = stages - 1 - stage
    match name:
        case "gpipe":
            return micro_batches
        case "zero-bubble":
            return min(micro_batches, stages)
        case _ if chunks == 1:
            return min(micro_batches, behind + 1)
        case _:
            return min(micro_batches * chunks, 2 * behind + (chunks - 1) * stages + 1)


def schedule_text(schedule: Schedule) -> str:
    """Return a schedule as text, as `read_schedule` reads it."""
    lines = [f"{stage}: {' '.join(map(str, each))}" for stage, each in enumerate(schedule.order)]
    return "\n".join(lines) + "\n"


@given(NAMES, STAGES, ROUNDS)
def test_the_bubble_has_a_closed_form(name: str, stages: int, rounds: int) -> None:
    schedule = made(name, stages, rounds)
    wanted = ideal_bubble(name, stages=stages, micro_batches=schedule.micro_batches)
    assert timed(schedule, equal(schedule)).bubble == pytest.approx(wanted, abs=1e-12)


@given(st.sampled_from(("gpipe", "1f1b")), STAGES, st.integers(1, 40))
def test_gpipe_and_1f1b_wait_for_p_minus_1_passes(name: str, stages: int, number: int) -> None:
    schedule = schedule_named(name, stages=stages, micro_batches=number)
    bubble = timed(schedule, equal(schedule)).bubble
    assert bubble == pytest.approx((stages - 1) / (number + stages - 1), abs=1e-12)


@given(st.integers(2, 9), ROUNDS, st.integers(2, 8))
def test_interleaving_divides_the_waiting_by_the_chunks(
    stages: int, rounds: int, chunks: int
) -> None:
    whole, cut = made("1f1b", stages, rounds), made(f"interleaved:{chunks}", stages, rounds)
    times = timed(whole, equal(whole)), timed(cut, equal(cut))
    # A chunk takes as long here as a whole stage there: chunks times as much is computed.
    waits = [each.finish_ps - each.busy_ps(0) for each in times]
    assert waits[0] == waits[1] == (stages - 1) * 3 * UNIT_PS
    assert times[1].busy_ps(0) == chunks * times[0].busy_ps(0)


@given(NAMES, STAGES, st.integers(1, 24))
def test_micro_batches_in_flight_have_a_closed_form(name: str, stages: int, number: int) -> None:
    if chunks_named(name) > 1:
        number *= stages
    schedule = schedule_named(name, stages=stages, micro_batches=number)
    for stage in range(stages):
        wanted = most_in_flight(name, stages=stages, micro_batches=number, stage=stage)
        assert in_flight(schedule, stage) == wanted


@given(NAMES, st.integers(1, 24), st.integers(1, 10**6), st.integers(1, 10**6))
def test_one_stage_is_no_pipeline(name: str, number: int, forward: int, backward: int) -> None:
    schedule = schedule_named(name, stages=1, micro_batches=number)
    lasts = {Pass.FORWARD: forward, Pass.BACKWARD: backward, Pass.WEIGHTS: 1}
    durations = Durations(
        pass_ps=lambda _, action: lasts[action.kind], message_ps=lambda _source, _target: 10**9
    )
    times = timed(schedule, durations)
    weights = number if schedule.splits_backward else 0
    assert times.finish_ps == number * schedule.chunks * (forward + backward) + weights
    assert times.bubble == 0


@given(NAMES, st.integers(1, 24), st.integers(0, 10**6))
def test_one_stage_waits_for_its_weights_alone(name: str, number: int, ready_ps: int) -> None:
    schedule = schedule_named(name, stages=1, micro_batches=number)
    ready = {(0, chunk): ready_ps for chunk in range(schedule.chunks)}
    times = timed(schedule, replace(equal(schedule), ready_ps=ready))
    assert times.held_ps == (ready_ps,)
    assert times.bubble == 0
    assert times.finish_ps == ready_ps + times.busy_ps(0)


@given(NAMES, STAGES, ROUNDS, st.data())
def test_longer_passes_and_messages_end_no_step_earlier(
    name: str, stages: int, rounds: int, data: st.DataObject
) -> None:
    schedule = made(name, stages, rounds)
    drawn = st.integers(0, 1000)
    before = {(stage, kind): data.draw(drawn) for stage in range(stages) for kind in Pass}
    changed = data.draw(st.sampled_from(sorted(before, key=str)))
    after = before | {changed: before[changed] + data.draw(drawn)}
    message = data.draw(drawn)

    def finish(lasts: dict[tuple[int, Pass], int], message_ps: int) -> int:
        durations = Durations(
            pass_ps=lambda stage, action: lasts[stage, action.kind],
            message_ps=lambda _source, _target: message_ps,
        )
        return timed(schedule, durations).finish_ps

    assert finish(before, message) <= finish(after, message) <= finish(after, message + 7)


@given(NAMES, STAGES, ROUNDS)
def test_passes_wait_for_what_they_need(name: str, stages: int, rounds: int) -> None:
    schedule = made(name, stages, rounds)
    durations = Durations(
        pass_ps=lambda stage, action: 7 + stage + action.chunk,
        message_ps=lambda source, _: 3 + source,
    )
    times = timed(schedule, durations)
    for stage, order in enumerate(schedule.order):
        ends = [times.passes[stage][action] for action in order]
        assert all(first[1] <= second[0] for first, second in pairwise(ends))
        for action in order:
            for source, need in schedule.inputs(stage, action):
                arrives = times.passes[source][need][1]
                arrives += durations.message_ps(source, stage) if source != stage else 0
                assert arrives <= times.passes[stage][action][0]


@given(NAMES, STAGES, ROUNDS)
def test_a_schedule_is_read_as_it_is_written(name: str, stages: int, rounds: int) -> None:
    schedule = made(name, stages, rounds)
    check_schedule(schedule)
    assert read_schedule(schedule_text(schedule), name=schedule.name) == schedule


@given(st.integers(2, 6), ROUNDS, st.randoms(use_true_random=False))
def test_a_shuffled_schedule_runs_or_is_refused(stages: int, rounds: int, random: object) -> None:
    schedule = made("1f1b", stages, rounds)
    orders = [list(each) for each in schedule.order]
    for each in orders:
        random.shuffle(each)  # type: ignore[attr-defined]
    shuffled = Schedule(
        name="shuffled",
        micro_batches=schedule.micro_batches,
        chunks=1,
        order=tuple(tuple(each) for each in orders),
    )
    times = None
    with suppress(ConfigError):
        times = timed(shuffled, equal(shuffled))
    if times is None:
        with pytest.raises(ConfigError, match="deadlocks"):
            timed(shuffled, equal(shuffled))
        return
    assert all(len(each) == 2 * schedule.micro_batches for each in times.passes)


@given(NAMES, STAGES, ROUNDS, st.integers(0, 900), st.integers(0, 900), st.integers(0, 500))
def test_what_runs_side_by_side_was_ready(  # noqa: PLR0917 - drawn
    name: str, stages: int, rounds: int, backward: int, forward: int, message: int
) -> None:
    """Both passes end together, and what waits for either waits for both."""
    schedule = made(name, stages, rounds)
    alone = equal(schedule)
    durations = Durations(
        pass_ps=alone.pass_ps,
        message_ps=lambda _source, _target: message,
        hidden=always(backward, forward),
    )
    times = timed(schedule, durations)
    ends: dict[tuple[int, Action], int] = {}
    starts: dict[tuple[int, Action], int] = {}
    for stage, order in enumerate(schedule.order):
        passes, hidden = times.passes[stage], times.hidden_ps[stage]
        whole = sum(alone.pass_ps(stage, action) for action in order)
        assert times.busy_ps(stage) == whole - sum(hidden.values())
        for action, (start, end) in passes.items():
            starts[stage, action], ends[stage, action] = start, end
        for one, other in pairwise(order):
            assert passes[one][1] <= passes[other][0]
            if {one, other} <= hidden.keys() and one.kind is Pass.BACKWARD:
                assert (hidden[one], hidden[other]) == (backward, forward)
                ends[stage, one] = ends[stage, other]
                starts[stage, other] = starts[stage, one]
    for (stage, action), start in starts.items():
        for source, waited in schedule.inputs(stage, action):
            assert ends[source, waited] + message * (source != stage) <= start


@given(st.integers(2, 9), st.integers(2, 5), st.integers(2, 5))
def test_every_steady_pass_of_an_interleaved_pipeline_has_another_beside_it(
    stages: int, rounds: int, chunks: int
) -> None:
    schedule = made(f"interleaved:{chunks}", stages, rounds)
    durations = replace(equal(schedule), hidden=always(1, 1))
    times = timed(schedule, durations)
    for stage, order in enumerate(schedule.order):
        pairs = [
            pair
            for pair in pairwise(order)
            if [each.kind for each in pair] == [Pass.BACKWARD, Pass.FORWARD]
        ]
        assert len(times.hidden_ps[stage]) == 2 * len(pairs)
