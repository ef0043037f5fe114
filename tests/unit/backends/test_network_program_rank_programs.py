from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hespas.backends.rank_programs import Action, Exchange, Wait, rank_programs
from hespas.errors import HespasError
from hespas.program.collectives import CollectiveKind
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    ReceiveTask,
    SendTask,
    TaskGraph,
    as_job,
)


def collective(kind: CollectiveKind, size_bytes: int, **given: Any) -> CollectiveTask:
    return CollectiveTask(
        id=1, name="c", depends_on=(), kind=kind, size_bytes=size_bytes,
        group_table=given.pop("group_table", None), **given,
    )  # fmt: skip


def compute(duration_ps: int, number: int = 0) -> ComputeTask:
    return ComputeTask(id=number, name="k", depends_on=(), duration_ps=duration_ps)


def graph(*tasks: Any, devices: int = 4, tables: Any = ()) -> TaskGraph:
    return TaskGraph(name="g", device_count=devices, tasks=tasks, group_tables=tables)


@pytest.mark.parametrize(
    ("kind", "moved"),
    [
        (CollectiveKind.ALL_REDUCE, 2 * 3 * 100),
        (CollectiveKind.ALL_GATHER, 3 * 400),
        (CollectiveKind.REDUCE_SCATTER, 3 * 100),
        (CollectiveKind.ALL_TO_ALL, 3 * 100),
    ],
)
def test_a_rank_sends_what_the_collective_moves(kind: CollectiveKind, moved: int) -> None:
    programs = rank_programs(as_job(graph(collective(kind, 400))))
    for actions in programs.ranks:
        sent = sum(t.size_bytes for a in actions if isinstance(a, Exchange) for t in a.sends)
        heard = sum(t.size_bytes for a in actions if isinstance(a, Exchange) for t in a.receives)
        assert sent == heard == moved


def test_what_one_sends_another_receives() -> None:
    tables = (((0, 2), (1, 3)),)
    job = as_job(
        graph(compute(5), collective(CollectiveKind.ALL_REDUCE, 64, group_table=0), tables=tables)
    )
    ranks = rank_programs(job).ranks
    sends = sorted(
        (rank, each.peer, each.size_bytes)
        for rank, actions in enumerate(ranks)
        for action in actions
        if isinstance(action, Exchange)
        for each in action.sends
    )
    receives = sorted(
        (each.peer, rank, each.size_bytes)
        for rank, actions in enumerate(ranks)
        for action in actions
        if isinstance(action, Exchange)
        for each in action.receives
    )
    assert sends == receives
    assert {frozenset((a, b)) for a, b, _ in sends} == {frozenset((0, 2)), frozenset((1, 3))}
    assert all(actions[0] == Wait(duration_ps=5) for actions in ranks)


def test_a_permutation_is_one_exchange() -> None:
    pairs = ((0, 1), (1, 0))
    send = SendTask(id=1, name="s", depends_on=(), pairs=pairs, size_bytes=8, tag=3)
    receive = ReceiveTask(id=2, name="r", depends_on=(), pairs=pairs, size_bytes=8, tag=3)
    for actions in rank_programs(as_job(graph(send, receive, devices=2))).ranks:
        (one,) = actions
        assert isinstance(one, Exchange)
        assert len(one.sends) == len(one.receives) == 1


REFUSED = [
    (collective(CollectiveKind.ALL_REDUCE, 8, recorded_ps=5), "recorded"),
    (
        collective(CollectiveKind.ALL_REDUCE, 8, involved_dimensions=(True, False)),
        "some dimensions",
    ),
    (
        ComputeTask(id=0, name="k", depends_on=(), duration_ps=0, has_duration=False),
        "no duration",
    ),
]


@pytest.mark.parametrize(("task", "message"), REFUSED)
def test_what_messages_do_not_say_is_refused(task: Any, message: str) -> None:
    with pytest.raises(HespasError, match=message):
        rank_programs(as_job(graph(task)))


def test_an_algorithm_that_there_is_not() -> None:
    task = collective(CollectiveKind.ALL_REDUCE, 8)
    for name in ("auto", "in-switch"):
        with pytest.raises(HespasError, match=f"no algorithm of messages .* is called '{name}'"):
            rank_programs(as_job(graph(task)), algorithm=name)


def sent_bytes(*tasks: Any, devices: int = 4) -> list[int]:
    ranks = rank_programs(as_job(graph(*tasks, devices=devices))).ranks
    return [t.size_bytes for actions in ranks for a in exchanges(actions) for t in a.sends]


def exchanges(actions: Sequence[Action]) -> list[Exchange]:
    return [each for each in actions if isinstance(each, Exchange)]


def test_a_broadcast_is_messages_whatever_a_trace_says_of_its_duration() -> None:
    """Every member but the root gets all of it, of a chain each piece once."""
    sent = sent_bytes(collective(CollectiveKind.BROADCAST, 2**20, recorded_ps=1000))
    assert sum(sent) == pytest.approx(3 * 2**20, rel=1e-4)


def test_a_barrier_and_a_collective_of_nothing_are_messages() -> None:
    """A dissemination barrier has ceil(log2(n)) rounds, in which each sends one message."""
    assert sent_bytes(collective(CollectiveKind.BARRIER, 0), devices=5) == [1] * 5 * 3
    assert sent_bytes(collective(CollectiveKind.ALL_REDUCE, 0)) == [1] * 4 * 6
    notes = rank_programs(as_job(graph(collective(CollectiveKind.BARRIER, 0)))).notes
    assert any("messages without a byte" in note for note in notes)


def test_messages_of_2_gib_are_cut() -> None:
    sent = sent_bytes(collective(CollectiveKind.ALL_GATHER, 5 * 2**30), devices=2)
    assert sum(sent) == 2 * 5 * 2**30
    assert max(sent) < 2**31


def test_a_message_of_fewer_bytes_than_none_is_refused() -> None:
    with pytest.raises(HespasError, match="-4 bytes"):
        rank_programs(as_job(graph(collective(CollectiveKind.ALL_GATHER, -4))))
