from __future__ import annotations

import pytest

from hespas.backends.htsim.matrix import connection_matrix, matrix_text
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
        "Triggers 2",
        "0->1 id 1 start 0 size 10 send_done_trigger 1",
        "0->1 id 2 trigger 1 size 10 send_done_trigger 2",
        "1->0 id 3 start 0 size 10 send_done_trigger 1",
        "1->0 id 4 trigger 1 size 10 send_done_trigger 2",
        "trigger id 1 barrier count 2",
        "trigger id 2 barrier count 2",
    ]


def test_groups_that_do_not_meet_have_barriers_of_their_own() -> None:
    pair = ring(2, 1)
    other = [
        [
            Exchange(
                sends=(Transfer(peer=5 - rank, size_bytes=10, tag=0),),
                receives=(Transfer(peer=5 - rank, size_bytes=10, tag=0),),
            )
        ]
        for rank in (2, 3)
    ]
    assert connection_matrix([*pair, *other]).counts == (2, 2)


def test_computation_is_counted_as_left_out() -> None:
    ranks = [[Wait(duration_ps=10**12), *each] for each in ring(2, 1)]
    assert connection_matrix(ranks).left_out_s == 1.0


def test_messages_that_do_not_match_are_refused() -> None:
    (first, second) = ring(2, 1)
    with pytest.raises(HespasError, match="never receives"):
        connection_matrix([first, []])
    alone = [Exchange(sends=(), receives=first[0].receives)]
    with pytest.raises(HespasError, match="never sends"):
        connection_matrix([alone, []])
    assert connection_matrix([first, second]).nodes == 2
