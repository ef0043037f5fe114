"""Direct: every member sends to every other at once."""

from __future__ import annotations

from hespas.collectives.patterns import Form, Pattern, shift
from hespas.collectives.schedule import (
    Collective,
    CollectiveAlgorithm,
    Message,
    Operation,
    Rounds,
    Schedule,
    cut_evenly,
)


def _part_of_target(message: Message) -> range:
    return range(message.target, message.target + 1)


def _part_of_source(message: Message) -> range:
    return range(message.source, message.source + 1)


def _scattered(members: int) -> Rounds:
    return Rounds(
        pattern=shift(1, members - 1),
        parts=_part_of_target,
        operation=Operation.REDUCE,
        is_staged=True,
    )


def _gathered(members: int) -> Rounds:
    return Rounds(pattern=shift(1, members - 1), parts=_part_of_source)


def all_reduce(members: int) -> Schedule:
    """Return the direct reduce-scatter, and then the direct all-gather."""
    rounds = (_scattered(members), _gathered(members))
    return cut_evenly("direct", Collective.ALL_REDUCE, members, rounds)


def reduce_scatter(members: int) -> Schedule:
    """Return the round in which every member gets all parts of its share."""
    return cut_evenly("direct", Collective.REDUCE_SCATTER, members, (_scattered(members),))


def all_gather(members: int) -> Schedule:
    """Return the round in which every member sends its part to every other."""
    return cut_evenly("direct", Collective.ALL_GATHER, members, (_gathered(members),))


def all_to_all(members: int) -> Schedule:
    """Return the round in which every member sends every other the part for it."""

    def parts(message: Message) -> range:
        part = message.source * members + message.target
        return range(part, part + 1)

    rounds = Rounds(pattern=shift(1, members - 1), parts=parts)
    return cut_evenly("direct", Collective.ALL_TO_ALL, members, (rounds,))


def gather(members: int) -> Schedule:
    """Return the round in which all others send their part to the root."""
    rounds = Rounds(pattern=Pattern(Form.TO_ROOT), parts=_part_of_source)
    return cut_evenly("direct", Collective.GATHER, members, (rounds,))


def scatter(members: int) -> Schedule:
    """Return the round in which the root sends all others their part."""
    rounds = Rounds(pattern=Pattern(Form.FROM_ROOT), parts=_part_of_target)
    return cut_evenly("direct", Collective.SCATTER, members, (rounds,))


ALGORITHM = CollectiveAlgorithm(
    name="direct",
    schedules={
        Collective.ALL_REDUCE: all_reduce,
        Collective.REDUCE_SCATTER: reduce_scatter,
        Collective.ALL_GATHER: all_gather,
        Collective.ALL_TO_ALL: all_to_all,
        Collective.GATHER: gather,
        Collective.SCATTER: scatter,
    },
    usual_for=(Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER),
)
