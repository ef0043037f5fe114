from __future__ import annotations

from typing import Any

import pytest

from hespas.backends.rank_programs import Exchange, Wait, rank_programs
from hespas.errors import HespasError
from hespas.schedule.tasks import (
    CollectiveTask,
    CommunicationKind,
    ComputeTask,
    ReceiveTask,
    SendTask,
    TaskGraph,
    spmd_job,
)


def collective(kind: CommunicationKind, size_bytes: int, **given: Any) -> CollectiveTask:
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
        (CommunicationKind.ALL_REDUCE, 2 * 3 * 100),
        (CommunicationKind.ALL_GATHER, 3 * 400),
        (CommunicationKind.REDUCE_SCATTER, 3 * 100),
        (CommunicationKind.ALL_TO_ALL, 3 * 100),
    ],
)
def test_a_rank_sends_what_the_collective_moves(kind: CommunicationKind, moved: int) -> None:
    programs = rank_programs(spmd_job(graph(collective(kind, 400))))
    for actions in programs.ranks:
        sent = sum(t.size_bytes for a in actions if isinstance(a, Exchange) for t in a.sends)
        heard = sum(t.size_bytes for a in actions if isinstance(a, Exchange) for t in a.receives)
        assert sent == heard == moved


def test_what_one_sends_another_receives() -> None:
    tables = (((0, 2), (1, 3)),)
    job = spmd_job(
        graph(
            compute(5), collective(CommunicationKind.ALL_REDUCE, 64, group_table=0), tables=tables
        )
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
    for actions in rank_programs(spmd_job(graph(send, receive, devices=2))).ranks:
        (one,) = actions
        assert isinstance(one, Exchange)
        assert len(one.sends) == len(one.receives) == 1


REFUSED = [
    (collective(CommunicationKind.ALL_REDUCE, 8, recorded_ps=5), "recorded"),
    (
        collective(CommunicationKind.ALL_REDUCE, 8, involved_dimensions=(True, False)),
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
        rank_programs(spmd_job(graph(task)))


def test_an_algorithm_that_there_is_not() -> None:
    task = collective(CommunicationKind.ALL_REDUCE, 8)
    with pytest.raises(HespasError, match="no algorithm is called 'auto'"):
        rank_programs(spmd_job(graph(task)), algorithm="auto")
