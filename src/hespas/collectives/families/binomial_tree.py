"""The binomial tree: each round, every member that has the data sends it to one that has not."""

from __future__ import annotations

from hespas.collectives.patterns import Form, Pattern
from hespas.collectives.schedule import (
    Collective,
    CollectiveAlgorithm,
    Message,
    Operation,
    Rounds,
    Schedule,
    cut_evenly,
)


def _everything(_: Message) -> range:
    return range(1)


def _reaches(members: int) -> list[int]:
    return [1 << level for level in range((members - 1).bit_length())]


def broadcast(members: int) -> Schedule:
    """Return rounds in which the first 1, 2, 4 ... members send on what the root had."""
    rounds = [
        Rounds(pattern=Pattern(Form.SPREAD, reach), parts=_everything)
        for reach in _reaches(members)
    ]
    return cut_evenly("binomial-tree", Collective.BROADCAST, members, tuple(rounds), parts=1)


def reduce(members: int) -> Schedule:
    """Return the broadcast backwards, where each adds what comes to what it has."""
    rounds = [
        Rounds(pattern=Pattern(Form.COLLECT, reach), parts=_everything, operation=Operation.REDUCE)
        for reach in reversed(_reaches(members))
    ]
    return cut_evenly("binomial-tree", Collective.REDUCE, members, tuple(rounds), parts=1)


ALGORITHM = CollectiveAlgorithm(
    name="binomial-tree",
    schedules={Collective.BROADCAST: broadcast, Collective.REDUCE: reduce},
)
