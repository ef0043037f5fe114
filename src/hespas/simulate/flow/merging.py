"""Links that are alike taken together, and what one link of a class carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hespas.simulate.flow.colours import Colours, Joins, alike
from hespas.simulate.flow.footprints import Footprint

if TYPE_CHECKING:
    from hespas.simulate.flow.ways import Integers, Reals

Uses = tuple[tuple[int, int], ...]
"""Link classes, and how many messages cross each of their links at a time."""


def merged(loads: Footprint, bandwidths: Reals) -> tuple[Footprint, Integers]:
    """Keep one of several links that the same messages cross, as the wires up and down are.

    Returns what is left, with its links numbered anew, and the old numbers of these.
    """
    import numpy as np  # noqa: PLC0415 - numpy takes 60 ms to import

    weight = (loads.pattern << 32) + loads.messages
    joins = Joins(one=loads.place, other=loads.link, weight=weight)
    numbers = alike(bandwidths.view(np.int64), joins)
    _, first = np.unique(numbers, return_index=True)
    is_first = np.zeros(len(numbers), dtype=bool)
    is_first[first] = True
    (chosen,) = np.nonzero(is_first[loads.link])
    kept = Footprint(
        place=loads.place[chosen],
        pattern=loads.pattern[chosen],
        link=numbers[loads.link[chosen]],
        messages=loads.messages[chosen],
    )
    return kept, first


def split(colours: Integers) -> list[Integers]:
    """Return the things of each colour, ascending, in the order of colours."""
    import numpy as np  # noqa: PLC0415 - as above

    if not len(colours):
        return []
    order = np.argsort(colours, kind="stable")
    starts = np.flatnonzero(np.diff(colours[order], prepend=-1))
    return np.split(order, starts[1:])


class Merging:
    """What the links that stand for their classes carry."""

    def __init__(self, loads: Footprint, colours: Colours) -> None:
        import numpy as np  # noqa: PLC0415 - as above

        self.first_link = [int(links[0]) for links in split(colours.links)]
        stands = np.zeros(len(colours.links), dtype=bool)
        stands[self.first_link] = True
        (chosen,) = np.nonzero(stands[loads.link])
        self._uses: dict[tuple[int, int], dict[int, int]] = {}
        self._on_link: dict[tuple[int, int], set[tuple[int, int]]] = {}
        entries = zip(
            colours.places[loads.place[chosen]].tolist(),
            loads.place[chosen].tolist(),
            loads.pattern[chosen].tolist(),
            colours.links[loads.link[chosen]].tolist(),
            loads.messages[chosen].tolist(),
            strict=True,
        )
        is_alone = len(split(colours.places)) == len(colours.places)
        for colour, place, pattern, link, messages in entries:
            on = self._uses.setdefault((colour, pattern), {})
            on[link] = on.get(link, 0) + messages
            if not is_alone:
                self._on_link.setdefault((colour, link), set()).add((place, pattern))

    def uses(self, place_class: int, pattern: int) -> Uses:
        """Return the links that a pattern crosses at the places of a class."""
        return tuple(sorted(self._uses.get((place_class, pattern), {}).items()))

    def are_rivals(self, place_class: int, patterns: set[int]) -> bool:
        """Return whether several places of a class load the same link with some patterns."""
        links = {link for pattern in patterns for link, _ in self.uses(place_class, pattern)}
        return any(
            len({
                place
                for place, pattern in self._on_link.get((place_class, link), ())
                if pattern in patterns
            })
            > 1
            for link in links
        )  # fmt: skip
