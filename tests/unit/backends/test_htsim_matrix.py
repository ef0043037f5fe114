from __future__ import annotations

import pytest

from hespas.backends.htsim import connection_matrix, matrix_text
from hespas.backends.rank_programs import Exchange, Transfer, Wait
from hespas.errors import HespasError


def ring(ranks: int, rounds: int) -> list[list[Exchange]]:
    return [
        [
            Exchange(
                sends=(Transfer(peer=(rank + 1) % ranks, size_bytes=10, tag=0),),
                receives=(Transfer(peer=(rank - 1) % ranks, size_bytes=10, tag=0),),
            )
        ]
        * rounds
        for rank in range(ranks)
    ]


def test_the_matrix_of_a_ring() -> None:
    assert matrix_text(connection_matrix(ring(2, 2))).splitlines() == [
        "Nodes 2",
        "Connections 4",
        "Triggers 1",
        "0->1 id 1 start 0 size 10 send_done_trigger 1",
        "0->1 id 2 trigger 1 size 10",
        "1->0 id 3 start 0 size 10 send_done_trigger 1",
        "1->0 id 4 trigger 1 size 10",
        "trigger id 1 barrier count 2",
    ]


def test_a_matrix_of_one_round_has_no_triggers() -> None:
    assert matrix_text(connection_matrix(ring(2, 1))).splitlines() == [
        "Nodes 2",
        "Connections 2",
        "0->1 id 1 start 0 size 10",
        "1->0 id 2 start 0 size 10",
    ]


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_something_waits_for_every_trigger(rounds: int) -> None:
    """htsim aborts at a barrier without targets: trigger.cpp:60, `_targets.size() > 0`."""
    matrix = connection_matrix(ring(4, rounds))
    fired = {flow.fires for flow in matrix.flows} - {None}
    awaited = {flow.waits_for for flow in matrix.flows} - {None}
    assert fired == awaited == set(range(1, len(matrix.counts) + 1))


def test_groups_that_do_not_meet_have_barriers_of_their_own() -> None:
    pair = ring(2, 2)
    other = [
        [
            Exchange(
                sends=(Transfer(peer=5 - rank, size_bytes=10, tag=0),),
                receives=(Transfer(peer=5 - rank, size_bytes=10, tag=0),),
            )
        ]
        * 2
        for rank in (2, 3)
    ]
    assert connection_matrix([*pair, *other]).counts == (2, 2)


def test_computation_is_counted_where_all_ranks_compute_alike() -> None:
    ranks = [[*computed(2), *each, *computed(1, 4), *each, *computed(3)] for each in ring(2, 1)]
    assert connection_matrix(ranks).computation_ps == 10
    # What is sent in one round or in several comes between.
    tree = [
        [*computed(2), *ring(2, rounds)[rank], *computed(3)] for rank, rounds in ((0, 1), (1, 1))
    ]
    assert connection_matrix(tree).computation_ps == 5


@pytest.mark.parametrize(
    ("first", "second"),
    [((2, 3), (2, 4)), ((0, 5), (5, 0)), ((5, 0), (0, 5))],
)
def test_computation_that_differs_is_refused(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    ranks = [
        [*computed(before), *each, *computed(after)]
        for each, (before, after) in zip(ring(2, 1), (first, second), strict=True)
    ]
    with pytest.raises(HespasError, match=r"device 1 computes at other times than device 0.*sst"):
        connection_matrix(ranks)


def computed(*durations_ps: int) -> list[Wait]:
    return [Wait(duration_ps=duration_ps) for duration_ps in durations_ps]


def test_messages_that_do_not_match_are_refused() -> None:
    (first, second) = ring(2, 1)
    with pytest.raises(HespasError, match="never receives"):
        connection_matrix([first, []])
    alone = [Exchange(sends=(), receives=first[0].receives)]
    with pytest.raises(HespasError, match="never sends"):
        connection_matrix([alone, []])
    assert connection_matrix([first, second]).nodes == 2
