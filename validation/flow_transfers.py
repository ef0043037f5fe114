"""Transfers with dependencies on a network, each one a flow, for judges of how links are shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hespas.errors import SimulationError
from hespas.hardware.interconnect import Interconnect
from hespas.simulate.flow.topology import make_topology
from hespas.simulate.flow.transfers import Demand, Phase, Transfers, rate_units
from hespas.simulate.flow.transfers import Transfer as PhasesOfTransfer
from hespas.simulate.kernel import Kernel

_TICKS_PER_NS = 1_000_000
"""The kernel's clock counts millionths of a ps: sums of many rounded times still agree with real
numbers to 1e-9."""
_TICKS_PER_S = 1_000_000_000 * _TICKS_PER_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """``size_bytes`` from one device to another, once the transfers ``depends_on`` have ended.

    ``depends_on`` holds positions in the list of transfers, each before this one's own.
    """

    source: int
    target: int
    size_bytes: int
    depends_on: tuple[int, ...] = ()


def simulate_transfers(
    interconnect: Interconnect, transfers: Sequence[Transfer]
) -> tuple[float, ...]:
    """Return when each transfer ends, in seconds from the start.

    A transfer first waits for the latencies of its links, one after the other, without using them;
    then its bytes flow over all of them at once, at its max-min fair share of their bandwidths.
    Raises `SimulationError` for a transfer to itself, of a negative size, between absent devices,
    or that depends on one that isn't before it.

    >>> from hespas.hardware.interconnect import switched
    >>> network = switched(3, bandwidth_bytes_per_s=1e9, latency_s=1e-6)
    >>> simulate_transfers(network, [Transfer(source=0, target=2, size_bytes=10**6),
    ...                              Transfer(source=1, target=2, size_bytes=10**6)])
    (0.002002, 0.002002)
    """
    _check(interconnect, transfers)
    return _Run(interconnect, transfers).run()


def _check(interconnect: Interconnect, transfers: Sequence[Transfer]) -> None:
    count = interconnect.device_count
    for number, one in enumerate(transfers):
        location = f"transfer {number}"
        ends = (one.source, one.target)
        if one.source == one.target or not all(0 <= end < count for end in ends):
            message = f"goes from device {one.source} to device {one.target} of {count}"
            raise SimulationError(message, location=location)
        if one.size_bytes < 0:
            raise SimulationError(f"has {one.size_bytes} bytes", location=location)
        if not all(0 <= other < number for other in one.depends_on):
            raise SimulationError("depends on a transfer that isn't before it", location=location)


class _Run:
    def __init__(self, interconnect: Interconnect, transfers: Sequence[Transfer]) -> None:
        topology = make_topology(interconnect)
        routes = topology.routes(
            [one.source for one in transfers], [one.target for one in transfers]
        )
        latencies_ns: list[float] = routes.latency_ns.tolist()
        links = sorted(set(routes.link.tolist()))
        rates = topology.bytes_per_ns(links).tolist()
        capacities = {link: rate_units(rate) for link, rate in zip(links, rates, strict=True)}
        self._kernel = Kernel()
        self._in_flight = Transfers(self._kernel, capacities)
        uses: list[list[tuple[int, int]]] = [[] for _ in transfers]
        messages: list[int] = routes.message.tolist()
        crossed: list[int] = routes.link.tolist()
        for number, link in zip(messages, crossed, strict=True):
            uses[number].append((link, 1))
        self._phases = [
            _phases(one, round(latency_ns * _TICKS_PER_NS), own, capacities)
            for one, latency_ns, own in zip(transfers, latencies_ns, uses, strict=True)
        ]
        self._missing = [len(set(one.depends_on)) for one in transfers]
        self._children: list[list[int]] = [[] for _ in transfers]
        for number, one in enumerate(transfers):
            for other in set(one.depends_on):
                self._children[other].append(number)
        self._ends = [0] * len(transfers)

    def run(self) -> tuple[float, ...]:
        for number, missing in enumerate(self._missing):
            if not missing:
                self._start(number)
        self._kernel.run(self._in_flight.settle)
        return tuple([end / _TICKS_PER_S for end in self._ends])

    def _start(self, number: int) -> None:
        self._in_flight.start(self._phases[number], partial(self._end, number))

    def _end(self, number: int) -> None:
        self._ends[number] = self._kernel.now_ps
        for child in self._children[number]:
            self._missing[child] -= 1
            if not self._missing[child]:
                self._start(child)


def _phases(
    transfer: Transfer, delay: int, uses: Sequence[tuple[int, int]], capacities: Mapping[int, int]
) -> PhasesOfTransfer:
    """Return a delay and the bytes behind it, which no link lets through faster than it can."""
    work = transfer.size_bytes * _TICKS_PER_S * (1 << 20)
    limit = min(capacities[link] for link, _ in uses)
    demand = Demand(uses=tuple(uses), limit=limit)
    phase = Phase(count=1, delay_ps=delay, work_ps=-(-work // limit), work=work, demand=demand)
    links = tuple(link for link, _ in uses)
    return PhasesOfTransfer(phases=(phase,), links=links, has_rivals=False, after_ps=(0,))
