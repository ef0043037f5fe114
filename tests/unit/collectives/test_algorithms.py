from __future__ import annotations

from hespas.collectives.patterns import Form, Pattern
from hespas.collectives.program import program
from hespas.collectives.schedule import CollectiveAlgorithm, Message, Rounds
from hespas.collectives.verify import verify
from hespas.program.collectives import CollectiveKind


def hypercube(_: CollectiveKind, members: int) -> tuple[Rounds, ...]:
    """All-gather by recursive doubling from the nearest, described by someone else."""

    def of_distance(bit: int) -> Rounds:
        def parts(message: Message) -> range:
            first = message.source & ~(bit - 1)
            return range(first, first + bit)

        return Rounds(pattern=Pattern(Form.EXCHANGE, bit), parts=parts, size_parts=bit)

    return tuple([of_distance(1 << level) for level in range(members.bit_length() - 1)])


def test_an_algorithm_is_its_rounds() -> None:
    algorithm = CollectiveAlgorithm(
        name="hypercube", rounds={CollectiveKind.ALL_GATHER: hypercube}, needs_power_of_two=True
    )

    schedule = algorithm.schedule(CollectiveKind.ALL_GATHER, 8)

    assert [schedule.message_bytes(rounds, 100) for rounds in schedule.rounds] == [100, 200, 400]
    links = verify(program(schedule)).chunks_by_link()
    assert (links[0, 1], links[0, 2], links[0, 4]) == (1, 2, 4)
