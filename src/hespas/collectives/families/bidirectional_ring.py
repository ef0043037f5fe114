"""The bidirectional ring: half of every part goes around in each direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hespas.collectives.families import ring
from hespas.collectives.patterns import Form, Pattern
from hespas.collectives.schedule import (
    Collective,
    CollectiveAlgorithm,
    Message,
    Rounds,
    Schedule,
    cut_evenly,
)


def _both_ways(one_way: Callable[[int], Schedule], members: int) -> Schedule:
    """Return a ring whose halves of part k, 2 k and 2 k + 1, go around in opposite directions."""
    schedule = one_way(members)

    def both(rounds: Rounds) -> Rounds:
        def parts(message: Message) -> range:
            # In the other direction, members are numbered backwards.
            source = -message.source % members if message.channel else message.source
            (part,) = rounds.parts(message._replace(source=source))
            half = 2 * (-part % members if message.channel else part) + message.channel
            return range(half, half + 1)

        return replace(rounds, pattern=Pattern(Form.NEIGHBOURS), parts=parts)

    rounds = tuple([both(one) for one in schedule.rounds])
    return cut_evenly("bidirectional-ring", schedule.collective, members, rounds, channels=2)


ALGORITHM = CollectiveAlgorithm(
    name="bidirectional-ring",
    schedules={
        Collective.ALL_REDUCE: lambda members: _both_ways(ring.all_reduce, members),
        Collective.REDUCE_SCATTER: lambda members: _both_ways(ring.reduce_scatter, members),
        Collective.ALL_GATHER: lambda members: _both_ways(ring.all_gather, members),
    },
)
