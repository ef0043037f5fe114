from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hespas.collectives.algorithms import ALGORITHMS, algorithms_for
from hespas.collectives.patterns import Along, Form, Pattern
from hespas.collectives.schedule import Message, Rounds, Schedule
from hespas.errors import AlgorithmError
from hespas.program.collectives import CollectiveKind

GOLDEN = Path(__file__).with_name("schedules.txt")
ALL = [(name, of) for name, algorithm in ALGORITHMS.items() for of in algorithm.rounds]


def schedule_text(schedule: Schedule) -> str:
    """Return its rounds, and every message as ``source>target[parts]``."""
    cut = f"{_count(schedule.parts, 'part')}, {schedule.input_parts} in each input"
    lines = [f"{schedule.name} {schedule.collective.value} among {schedule.members}: {cut}"]
    first = 1
    for rounds in schedule.rounds:
        lines.append(_rounds_text(rounds))
        for number in range(rounds.count):
            sent = [
                _message_text(message, parts)
                for of, message, parts in replace(schedule, rounds=(rounds,)).messages()
                if of is rounds and message.round == number
            ]
            lines.append(f"  {first}: {' '.join(sent)}")
            first += 1
    return "\n".join(lines)


def _rounds_text(rounds: Rounds) -> str:
    size = _count(rounds.size_parts, "part")
    staged = ", through scratch memory" if rounds.is_staged else ""
    deep = f", in a pipeline of depth {rounds.depth}" if rounds.depth > 1 else ""
    count = _count(rounds.count, "round")
    return (
        f"{count}: {pattern_text(rounds.pattern)}; {size}, {rounds.operation.value}{staged}{deep}"
    )


def _message_text(message: Message, parts: range) -> str:
    shown = ",".join(map(str, parts))
    if parts.step == 1 and len(parts) > 1:
        shown = f"{parts[0]}-{parts[-1]}"
    channel = f"/{message.channel}" if message.channel else ""
    return f"{message.source}>{message.target}{channel}[{shown}]"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def pattern_text(pattern: Pattern) -> str:
    """Return a pattern in words."""
    text = pattern.form.value.format(first=pattern.first, last=pattern.last)
    if pattern.form is Form.SHIFT and pattern.first == pattern.last:
        text = f"each to the member {pattern.first} further"
    match pattern.line:
        case None:
            return text
        case Along():
            return f"{text}, {pattern.line.value}"
        case int():
            return f"{text}, along dimension {pattern.line}"


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
