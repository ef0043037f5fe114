"""In the switch: members send what they have once, and get the result once.

Source: NVIDIA's SHARP and NVLink SHARP. The pattern stands for the load of links: a message to
another member crosses the link up to the switch and the link down from it.
"""

from __future__ import annotations

from hespas.collectives.patterns import shift
from hespas.collectives.schedule import (
    Collective,
    CollectiveAlgorithm,
    Message,
    Operation,
    Rounds,
    Schedule,
    cut_evenly,
)


def _once(collective: Collective, members: int) -> Schedule:
    is_gather = collective is Collective.ALL_GATHER
    # The link down to a member carries what all others have.
    size_parts = members - 1 if is_gather else members

    def parts(_: Message) -> range:
        return range(members)

    rounds = Rounds(
        pattern=shift(1), parts=parts, size_parts=size_parts, operation=Operation.IN_SWITCH
    )
    return cut_evenly("in-switch", collective, members, (rounds,))


ALGORITHM = CollectiveAlgorithm(
    name="in-switch",
    schedules={
        Collective.ALL_REDUCE: lambda members: _once(Collective.ALL_REDUCE, members),
        Collective.REDUCE_SCATTER: lambda members: _once(Collective.REDUCE_SCATTER, members),
        Collective.ALL_GATHER: lambda members: _once(Collective.ALL_GATHER, members),
        Collective.BROADCAST: lambda members: _once(Collective.BROADCAST, members),
        Collective.REDUCE: lambda members: _once(Collective.REDUCE, members),
    },
)
