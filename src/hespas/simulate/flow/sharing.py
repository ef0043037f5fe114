"""Flows that share links max-min fairly, in exact integers.

All flows grow at the same pace until a link is full; those through it keep their rate, the others
grow on. Source: D. Bertsekas, R. Gallager, Data Networks, section 6.5.2. A flow may consist of
several messages on one link, which grow alike and count as often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from hespas.simulate.kernel import Kernel

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

    >>> short = Demand(uses=((0, 1),), limit=1000)
    >>> long = Demand(uses=((0, 1), (1, 1)), limit=1000)
    >>> fair_rates({7: short, 8: long}, {0: 100, 1: 20})
    {8: 20, 7: 80}
    """
    return _Filling(demands, capacities).run()


class _Filling:
    """Progressive filling: fix the rates at the smallest share or limit, and go on."""

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
                self._fix({flow for _, link in full for flow in self._flows[link]}, share)
            else:
                self._fix((limits[at][1],), limits[at][0])
        return self._rates

    def _share(self, link: int) -> int:
        return self._left[link] // self._messages[link]

    def _fullest(self, links: list[tuple[int, int]], limit: int) -> list[tuple[int, int]]:
        """Take the links with the smallest share off the heap, unless ``limit`` is smaller.

        Shares only grow, so that the heap's figures are never too large.
        """
        fullest: list[tuple[int, int]] = []
        while links and links[0][0] <= (fullest[0][0] if fullest else limit):
            _, link = heappop(links)
            if not self._messages[link]:
                continue
            entry = (self._share(link), link)
            if links and entry > links[0]:
                heappush(links, entry)
            elif entry[0] <= (fullest[0][0] if fullest else limit):
                fullest.append(entry)
            else:
                heappush(links, entry)
                break
        return fullest

    def _fix(self, flows: Iterable[int], rate: int) -> None:
        for number in flows:
            if number in self._rates:
                continue
            self._rates[number] = rate
            for link, messages in self._demands[number].uses:
                self._left[link] -= rate * messages
                self._messages[link] -= messages


class Flow:
    """``left`` is what is still to be moved, in rate units times ps, as of ``updated_ps``."""

    __slots__ = ("demand", "end_ps", "left", "number", "rate", "updated_ps")

    def __init__(self, number: int, demand: Demand, left: int, now_ps: int) -> None:
        self.number = number
        self.demand = demand
        self.left = left
        self.updated_ps = now_ps
        self.rate = 0
        self.end_ps = -1


class Flows:
    """Flows by number, which share links of some ``capacities`` (rate units) max-min fairly.

    Rates change when a flow starts or ends, and only those of flows that are joined to it by
    links. A flow ends with the first ps at which all has been moved; ``on_end`` is then called
    with its number.
    """

    def __init__(
        self, kernel: Kernel, capacities: Mapping[int, int], on_end: Callable[[int], None]
    ) -> None:
        self._kernel = kernel
        self._capacities = capacities
        self._on_end = on_end
        self._flows: dict[int, Flow] = {}
        self._on_link: dict[int, dict[int, Flow]] = {}
        self._changed: dict[int, None] = {}

    def start(self, number: int, demand: Demand, work: int) -> None:
        """Start to move ``work``; `settle` gives it a rate."""
        flow = self._flows[number] = Flow(number, demand, work, self._kernel.now_ps)
        for link, _ in demand.uses:
            self._on_link.setdefault(link, {})[number] = flow
            self._changed[link] = None
        if not demand.uses:
            self._set_rate(flow, demand.limit)

    def stop(self, number: int) -> int:
        """Take a flow away before its end; return what it has still to move."""
        flow = self._flows[number]
        self._remove(flow)
        return max(0, flow.left - flow.rate * (self._kernel.now_ps - flow.updated_ps))

    def _remove(self, flow: Flow) -> None:
        del self._flows[flow.number]
        for link, _ in flow.demand.uses:
            del self._on_link[link][flow.number]
            self._changed[link] = None

    def settle(self) -> None:
        """Give every flow its fair rate after the changes of an instant."""
        if not self._changed:
            return
        joined = self._joined()
        self._changed.clear()
        if len(joined) == 1:
            (flow,) = joined.values()
            shares = [self._capacities[link] // count for link, count in flow.demand.uses]
            self._set_rate(flow, min(flow.demand.limit, *shares))
            return
        demands = {number: flow.demand for number, flow in joined.items()}
        for number, rate in fair_rates(demands, self._capacities).items():
            self._set_rate(joined[number], rate)

    def _joined(self) -> dict[int, Flow]:
        """Return the flows that are joined to a changed link by other flows and links."""
        joined: dict[int, Flow] = {}
        links = list(self._changed)
        seen = set(links)
        while links:
            for number, flow in self._on_link[links.pop()].items():
                if number in joined:
                    continue
                joined[number] = flow
                fresh = [link for link, _ in flow.demand.uses if link not in seen]
                seen.update(fresh)
                links += fresh
        return joined

    def _set_rate(self, flow: Flow, rate: int) -> None:
        if rate == flow.rate:
            return
        now_ps = self._kernel.now_ps
        flow.left = max(0, flow.left - flow.rate * (now_ps - flow.updated_ps))
        flow.updated_ps = now_ps
        flow.rate = rate
        flow.end_ps = now_ps - (-flow.left // rate)
        self._kernel.at(flow.end_ps, self._end, flow)

    def _end(self, flow: Flow) -> None:
        # The end that was scheduled before a change of the rate no longer counts.
        if flow.end_ps == self._kernel.now_ps and self._flows.get(flow.number) is flow:
            self._remove(flow)
            self._on_end(flow.number)
