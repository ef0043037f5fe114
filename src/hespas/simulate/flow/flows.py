"""The flows under way on shared links, and when each of them ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hespas.simulate.flow.rates import Demand, fair_rates
from hespas.simulate.kernel import Kernel


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
