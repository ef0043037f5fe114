"""The dissemination barrier: in round k, each notifies the member 2**k further.

Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization" (1988).
"""

from __future__ import annotations

from hespas.collectives.patterns import shift
from hespas.collectives.schedule import (
    Collective,
    CollectiveAlgorithm,
    Message,
    Rounds,
    Schedule,
    cut_evenly,
)


def _nothing(_: Message) -> range:
    return range(0)


def barrier(members: int) -> Schedule:
    """Return rounds of messages without data, after which all have heard of all."""
    rounds = [
        Rounds(pattern=shift(1 << level), parts=_nothing, size_parts=0)
        for level in range((members - 1).bit_length())
    ]
    return cut_evenly("dissemination", Collective.BARRIER, members, tuple(rounds), parts=0)


ALGORITHM = CollectiveAlgorithm(name="dissemination", schedules={Collective.BARRIER: barrier})
