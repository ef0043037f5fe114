"""Max-min fair rates, by progressive filling, in exact integers.

All flows grow at the same pace until a link is full; those through it keep their rate, the others
grow on. Source: D. Bertsekas, R. Gallager, Data Networks, section 6.5.2. A flow may consist of
several messages on one link, which grow alike and count as often.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

RATE_UNITS = 1 << 20
"""Rates are integers of 1 / RATE_UNITS bytes per second: fine enough for any link, and exact."""

Use = tuple[int, int]
"""A link, and how many messages of a flow cross it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a flow crosses, and the rate of one of its messages that it never exceeds."""

    uses: tuple[Use, ...]
    limit: int


def rate_units(bytes_per_ns: float) -> int:
    """Return a bandwidth in units of rates.

    >>> rate_units(1.0) == 10**9 * RATE_UNITS
    True
    """
    return int(bytes_per_ns * 1e9 * RATE_UNITS)


def fair_rates(demands: Mapping[int, Demand], capacities: Mapping[int, int]) -> dict[int, int]:
    """Return the rate of a message of each flow, by the flow's number.

    ``capacities`` are those of all links that the flows use. On no link do rates times messages
    exceed the capacity. The result doesn't depend on the order of anything.

    >>> one = Demand(uses=((0, 1),), limit=1000)
    >>> other = Demand(uses=((0, 1), (1, 1)), limit=1000)
    >>> fair_rates({7: one, 8: other}, {0: 100, 1: 20})
    {8: 20, 7: 80}
    """
    return _Filling(demands, capacities).run()


class _Filling:
    def __init__(self, demands: Mapping[int, Demand], capacities: Mapping[int, int]) -> None:
        self._demands = demands
        self._left: dict[int, int] = {}
        self._messages: dict[int, int] = {}
        self._flows: dict[int, list[int]] = {}
        for number, demand in demands.items():
            for link, messages in demand.uses:
                if link not in self._left:
                    self._left[link] = capacities[link]
                    self._messages[link] = 0
                    self._flows[link] = []
                self._messages[link] += messages
                self._flows[link].append(number)
        self._rates: dict[int, int] = {}

    def run(self) -> dict[int, int]:
        links = [(self._share(link), link) for link in self._left]
        limits = sorted((demand.limit, number) for number, demand in self._demands.items())
        heapify(links)
        at = 0
        while len(self._rates) < len(self._demands):
            while limits[at][1] in self._rates:
                at += 1
            full = self._fullest(links, limits[at][0])
            if full:
                share = full[0][0]
                self._settle({flow for _, link in full for flow in self._flows[link]}, share)
            else:
                self._settle((limits[at][1],), limits[at][0])
        return self._rates

    def _share(self, link: int) -> int:
        return self._left[link] // self._messages[link]

    def _fullest(self, links: list[tuple[int, int]], limit: int) -> list[tuple[int, int]]:
        """Take the links with the smallest share off the heap, unless ``limit`` is smaller.

        Shares only grow, so that what the heap knows of one is never too large.
        """
        found: list[tuple[int, int]] = []
        while links and links[0][0] <= (found[0][0] if found else limit):
            _, link = heappop(links)
            if not self._messages[link]:
                continue
            entry = (self._share(link), link)
            if links and entry > links[0]:
                heappush(links, entry)
            elif entry[0] <= (found[0][0] if found else limit):
                found.append(entry)
            else:
                heappush(links, entry)
                break
        return found

    def _settle(self, flows: Iterable[int], rate: int) -> None:
        for number in flows:
            if number in self._rates:
                continue
            self._rates[number] = rate
            for link, messages in self._demands[number].uses:
                self._left[link] -= rate * messages
                self._messages[link] -= messages
