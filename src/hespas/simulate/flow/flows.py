"""The flows under way on shared links, and when each of them ends."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

from hespas.simulate.flow.rates import Demand, fair_rates


class Flow:
    """``left`` is what is still to be moved, in rate units times ticks, as of ``updated``."""

    __slots__ = ("demand", "end", "left", "number", "rate", "updated")

    def __init__(self, number: int, demand: Demand, left: int, now: int) -> None:
        self.number = number
        self.demand = demand
        self.left = left
        self.updated = now
        self.rate = 0
        self.end = -1


class Flows:
    """Flows by number. Time is an integer of ticks; rates are per tick.

    Rates change when a flow starts or ends, and only those of flows that are joined to it by
    links. A flow ends with the first tick at which all has been moved.
    """

    def __init__(self, capacities: Mapping[int, int]) -> None:
        self._capacities = capacities
        self._flows: dict[int, Flow] = {}
        self._on_link: dict[int, dict[int, Flow]] = {}
        self._changed: dict[int, None] = {}
        self._ends: list[tuple[int, int]] = []

    def start(self, number: int, demand: Demand, work: int, now: int) -> None:
        """Start to move ``work``; `settle` gives it a rate."""
        flow = self._flows[number] = Flow(number, demand, work, now)
        for link, _ in demand.uses:
            self._on_link.setdefault(link, {})[number] = flow
            self._changed[link] = None
        if not demand.uses:
            self._set_rate(flow, demand.limit, now)

    def end(self, number: int) -> None:
        """Take a flow away, ended or not."""
        flow = self._flows.pop(number)
        for link, _ in flow.demand.uses:
            del self._on_link[link][number]
            self._changed[link] = None

    def left(self, number: int, now: int) -> int:
        """Return what a flow has still to move."""
        flow = self._flows[number]
        return max(0, flow.left - flow.rate * (now - flow.updated))

    def settle(self, now: int) -> None:
        """Give every flow its fair rate after changes."""
        if not self._changed:
            return
        joined = self._joined()
        self._changed.clear()
        if len(joined) == 1:
            (flow,) = joined.values()
            shares = [self._capacities[link] // count for link, count in flow.demand.uses]
            self._set_rate(flow, min(flow.demand.limit, *shares), now)
            return
        demands = {number: flow.demand for number, flow in joined.items()}
        for number, rate in fair_rates(demands, self._capacities).items():
            self._set_rate(joined[number], rate, now)

    def _joined(self) -> dict[int, Flow]:
        """Return the flows that are joined to a changed link by other flows and links."""
        found: dict[int, Flow] = {}
        links = list(self._changed)
        seen = set(links)
        while links:
            for number, flow in self._on_link[links.pop()].items():
                if number in found:
                    continue
                found[number] = flow
                fresh = [link for link, _ in flow.demand.uses if link not in seen]
                seen.update(fresh)
                links += fresh
        return found

    def _set_rate(self, flow: Flow, rate: int, now: int) -> None:
        if rate == flow.rate:
            return
        flow.left = max(0, flow.left - flow.rate * (now - flow.updated))
        flow.updated = now
        flow.rate = rate
        flow.end = now - (-flow.left // rate)
        heappush(self._ends, (flow.end, flow.number))

    def next_end(self) -> int | None:
        """Return when the next flow ends; None if there is none."""
        ends = self._ends
        while ends:
            end, number = ends[0]
            flow = self._flows.get(number)
            if flow is not None and flow.end == end:
                return end
            heappop(ends)
        return None

    def take_ended(self, now: int) -> list[int]:
        """Take away the flows that end now, and return their numbers in order."""
        ended: list[int] = []
        while self.next_end() == now:
            _, number = heappop(self._ends)
            self.end(number)
            ended.append(number)
        return ended
