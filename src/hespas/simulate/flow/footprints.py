"""Which links each group's messages cross, and how many of them at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hespas.simulate.flow.arrangement import Group, pattern_positions, simplest
from hespas.simulate.flow.patterns import Pattern
from hespas.simulate.flow.ways import Wiring

if TYPE_CHECKING:
    from hespas.simulate.flow.ways import Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Entries: at a place, ``messages`` of a pattern (by its number) cross a link."""

    place: Integers
    pattern: Integers
    link: Integers
    messages: Integers


def footprint(
    wiring: Wiring,
    group: Group,
    pattern: Pattern,
    *,
    places: Integers,
    members: Integers,
    number: int,
) -> Footprint:
    """Return what places that are all like ``group`` cross: a row of ``members`` each."""
    import numpy as np  # noqa: PLC0415 - numpy takes 60 ms to import

    simple, times = simplest(pattern, group)
    sources, targets = pattern_positions(simple, group)
    ways = wiring.routes(members[:, sources].ravel(), members[:, targets].ravel())
    row = ways.message // len(sources) if len(sources) else ways.message
    span = int(ways.link.max()) + 1 if len(ways.link) else 1
    key, count = np.unique(row * span + ways.link, return_counts=True)
    return Footprint(
        place=places[key // span],
        pattern=np.full(len(key), number, dtype=np.int64),
        link=key % span,
        messages=count.astype(np.int64) * times,
    )


def joined(parts: list[Footprint]) -> Footprint:
    """Return all entries in one."""
    import numpy as np  # noqa: PLC0415 - as above

    empty = [np.zeros(0, dtype=np.int64)]
    return Footprint(
        place=np.concatenate([part.place for part in parts] or empty),
        pattern=np.concatenate([part.pattern for part in parts] or empty),
        link=np.concatenate([part.link for part in parts] or empty),
        messages=np.concatenate([part.messages for part in parts] or empty),
    )


def same_links(one: Footprint, other: Footprint) -> bool:
    """Return whether two patterns cross the same links equally often."""
    import numpy as np  # noqa: PLC0415 - as above

    return (
        np.array_equal(one.place, other.place)
        and np.array_equal(one.link, other.link)
        and np.array_equal(one.messages, other.messages)
    )
