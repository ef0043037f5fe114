from __future__ import annotations

from pathlib import Path

import pytest

from hespas.collectives.algorithms import ALGORITHMS, algorithms_for
from hespas.collectives.schedule import schedule_text
from hespas.errors import AlgorithmError
from hespas.program.collectives import CollectiveKind

GOLDEN = Path(__file__).with_name("schedules.txt")
ALL = [(name, of) for name, algorithm in ALGORITHMS.items() for of in algorithm.rounds]


def test_the_text_of_every_schedule_is_as_recorded() -> None:
    texts = [schedule_text(ALGORITHMS[name].schedule(of, 4)) for name, of in ALL]

    assert "\n\n".join(texts) + "\n" == GOLDEN.read_text()


@pytest.mark.parametrize(("name", "of"), ALL)
def test_every_message_has_the_size_of_its_rounds(name: str, of: CollectiveKind) -> None:
    schedule = ALGORITHMS[name].schedule(of, 8)

    for rounds, message, parts in schedule.messages():
        assert message.source != message.target
        if name != "in-switch":
            assert len(parts) == rounds.size_parts


def test_a_ring_among_a_million_members_is_two_kinds_of_rounds() -> None:
    schedule = ALGORITHMS["ring"].schedule(CollectiveKind.ALL_REDUCE, 1_000_000)

    assert [rounds.count for rounds in schedule.rounds] == [999_999, 999_999]
    assert schedule.message_bytes(schedule.rounds[0], 2**30) == 1073


def test_only_a_power_of_two_can_halve() -> None:
    names = [one.name for one in algorithms_for(CollectiveKind.ALL_GATHER, 6)]

    assert names == ["ring", "bidirectional-ring", "direct", "in-switch"]
    with pytest.raises(AlgorithmError, match="6 ranks, which is not a power of two"):
        ALGORITHMS["halving-doubling"].schedule(CollectiveKind.ALL_GATHER, 6)


def test_what_an_algorithm_cannot_run_is_an_error() -> None:
    with pytest.raises(AlgorithmError, match="there is no ring algorithm for barrier"):
        ALGORITHMS["ring"].schedule(CollectiveKind.BARRIER, 4)
    with pytest.raises(AlgorithmError, match="ring among 1 ranks"):
        ALGORITHMS["ring"].schedule(CollectiveKind.ALL_REDUCE, 1)
