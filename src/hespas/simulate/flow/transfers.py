"""Run the transfers of collectives and messages on shared links.

A transfer is a sequence of phases, each of equal steps: first a delay in which no link is used
(latencies, overheads, reductions), then bytes that flow at the fair rate. While no other transfer
uses any of its links, a transfer is one event, its end. When another comes, it continues step by
step from where it is.

Flows share links max-min fairly, in exact integers: all grow at the same pace until a link is full;
those through it keep their rate, the others grow on. A flow may consist of several messages on one
link, which grow alike and count as often. Source: D. Bertsekas, R. Gallager, Data Networks, section
6.5.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import accumulate

from hespas.base.frozen import frozen
from hespas.collectives.patterns import Pattern
from hespas.simulate.flow.plans import Plan
from hespas.simulate.kernel import Kernel

RATE_UNITS = 1 << 20
"""Rates are integers of 1 / RATE_UNITS bytes per second: fine enough for any link, and exact."""

Use = tuple[int, int]
"""A link, and how many messages of a flow cross it."""


@frozen
class Demand:
    """What a flow crosses, and its messages' largest rate."""

    uses: tuple[Use, ...]
    limit: int


def rate_units(bytes_per_ns: float) -> int:
    """Return a bandwidth in units of rates.

    >>> rate_units(1.0) == 10**9 * RATE_UNITS
    True
    """
    return int(bytes_per_ns * 1e9 * RATE_UNITS)


def fair_rates(demands: Mapping[int, Demand], capacities: Mapping[int, int]) -> dict[int, int]:
    """Return the message rate of each flow by its number.

    ``capacities`` are those of all links that the flows use. On no link do rates times messages
    exceed the capacity. The result doesn't depend on the order of anything.

    >>> short = Demand(uses=((0, 1),), limit=1000)
    >>> long = Demand(uses=((0, 1), (1, 1)), limit=1000)
    >>> fair_rates({7: short, 8: long}, {0: 100, 1: 20})
    {8: 20, 7: 80}
    """
    return _Filling(demands, capacities).run()


class _Filling:
    """Fixes rates repeatedly at the smallest share or limit."""

    def __init__(self, demands: Mapping[int, Demand], capacities: Mapping[int, int]) -> None:
        self._demands = demands
        self._free: dict[int, int] = {}
        self._messages: dict[int, int] = {}
        self._flows: dict[int, list[int]] = {}
        for number, demand in demands.items():
            for link, messages in demand.uses:
                if link not in self._free:
                    self._free[link] = capacities[link]
                    self._messages[link] = 0
                    self._flows[link] = []
                self._messages[link] += messages
                self._flows[link].append(number)
        self._rates: dict[int, int] = {}

    def run(self) -> dict[int, int]:
        links = [(self._share(link), link) for link in self._free]
        limits = sorted((demand.limit, number) for number, demand in self._demands.items())
        heapify(links)
        for limit, number in limits:
            while number not in self._rates:
                full = self._fullest(links, limit)
                if full:
                    share = full[0][0]
                    self._fix({flow for _, link in full for flow in self._flows[link]}, share)
                else:
                    self._fix((number,), limit)
        return self._rates

    def _share(self, link: int) -> int:
        return self._free[link] // self._messages[link]

    def _fullest(self, links: list[tuple[int, int]], limit: int) -> list[tuple[int, int]]:
        """Pop the links with the smallest share, at most ``limit``.

        Shares only grow, so the heap's figures are never too large.
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
                self._free[link] -= rate * messages
                self._messages[link] -= messages


PIECES = 16
"""Where links are shared, equal steps in a row are taken in at most so many pieces."""


@frozen
class Phase:
    """``count`` equal steps of a transfer.

    Each waits ``delay_ps``, then moves ``work`` (rate units times ps). Uncontended, the work of a
    step takes ``work_ps``. ``demand`` is None where nothing is sent.
    """

    count: int
    delay_ps: int
    work_ps: int
    work: int
    demand: Demand | None

    @property
    def step_ps(self) -> int:
        """The time of an uncontended step."""
        return self.delay_ps + self.work_ps

    @property
    def steps_per_piece(self) -> int:
        """How many steps a piece on shared links has."""
        return -(-self.count // PIECES)


@frozen
class Transfer:
    """A sequence of phases; ``links`` are those of all.

    ``has_rivals`` says that the transfers that this one stands for share links with each other.
    ``after_ps`` gives, by phase, how long all later phases take uncontended.
    """

    phases: tuple[Phase, ...]
    links: tuple[int, ...]
    has_rivals: bool
    after_ps: tuple[int, ...]


def make_transfer(
    plan: Plan, uses: Mapping[Pattern, Sequence[tuple[int, int]]], *, has_rivals: bool
) -> Transfer:
    """Return a plan's transfer; ``uses`` are each pattern's links."""
    phases = tuple([
        Phase(
            count=stage.count,
            delay_ps=stage.delay_ps,
            work_ps=stage.work_ps,
            work=stage.work_ps * stage.rate,
            demand=None if stage.pattern is None or not stage.work_ps
            else Demand(uses=tuple(uses[stage.pattern]), limit=stage.rate),
        )
        for stage in plan.stages
    ])  # fmt: skip
    lengths = [phase.count * phase.step_ps for phase in phases]
    after = list(accumulate(reversed(lengths), initial=0))
    links = {link for phase in phases if phase.demand is not None for link, _ in phase.demand.uses}
    return Transfer(
        phases=phases,
        links=tuple(sorted(links)),
        has_rivals=has_rivals,
        after_ps=tuple(reversed(after[:-1])),
    )


class _State(Enum):
    NEW = "not yet started"
    UNCONTENDED = "no other transfer uses its links: only its end is an event"
    DELAYED = "contended, in the delay of a piece"
    FLOWING = "contended, moving the bytes of a piece"


@dataclass(slots=True, eq=False)
class _InFlight:
    """A transfer in flight.

    ``delay_ps`` and ``work`` are the remainder of the current piece as of ``since_ps``, and
    ``remaining_steps`` counts the steps of the phase that follow it. ``wake_ps`` is the time of the
    event that counts; -1 without one.
    """

    number: int
    transfer: Transfer
    end: Callable[[], None]
    remaining_steps: int
    state: _State = _State.NEW
    since_ps: int = 0
    wake_ps: int = -1
    delay_ps: int = 0
    work: int = 0
    rate: int = 0
    phase: int = 0

    @property
    def current(self) -> Phase:
        """The current phase."""
        return self.transfer.phases[self.phase]

    @property
    def demand(self) -> Demand:
        """What the current phase sends."""
        demand = self.current.demand
        if demand is None:
            raise AssertionError
        return demand

    def flow_until(self, now_ps: int) -> None:
        """Move bytes at the current rate until now."""
        self.work = max(0, self.work - self.rate * (now_ps - self.since_ps))
        self.since_ps = now_ps

    def remaining_ps(self) -> int:
        """Return the uncontended time until the end."""
        if not self.transfer.phases:
            return 0
        piece_ps = self.delay_ps + self._work_ps()
        steps_ps = self.remaining_steps * self.current.step_ps
        return piece_ps + steps_ps + self.transfer.after_ps[self.phase]

    def _work_ps(self) -> int:
        demand = self.current.demand
        return 0 if demand is None else -(-self.work // demand.limit)

    def advance(self, passed_ps: int) -> None:
        """Advance the transfer by ``passed_ps`` without contention."""
        if not passed_ps or not self.transfer.phases:
            return
        while passed_ps >= self.delay_ps + self._work_ps():
            passed_ps -= self.delay_ps + self._work_ps()
            self.delay_ps = self.work = 0
            step_ps = self.current.step_ps
            steps = (
                min(self.remaining_steps, passed_ps // step_ps) if step_ps else self.remaining_steps
            )
            self.remaining_steps -= steps
            passed_ps -= steps * step_ps
            if not self.take_piece(1):
                return
        into_work_ps = max(0, passed_ps - self.delay_ps)
        self.delay_ps = max(0, self.delay_ps - passed_ps)
        demand = self.current.demand
        self.work -= into_work_ps * (demand.limit if demand is not None else 0)

    def take_piece(self, most_steps: int | None = None) -> bool:
        """Begin the next piece; return False after the last."""
        phases = self.transfer.phases
        while not self.remaining_steps:
            if self.phase + 1 >= len(phases):
                return False
            self.phase += 1
            self.remaining_steps = self.current.count
        phase = self.current
        steps = min(
            self.remaining_steps, phase.steps_per_piece if most_steps is None else most_steps
        )
        self.remaining_steps -= steps
        self.delay_ps = steps * phase.delay_ps
        self.work = steps * phase.work
        return True


class Transfers:
    """The transfers in flight on links with ``capacities`` (rate units).

    When a flow begins or ceases, only the rates of flows change that links join to it. `settle`
    has to be called after all events of an instant, as `Kernel.run` does.
    """

    def __init__(self, kernel: Kernel, capacities: Mapping[int, int]) -> None:
        self._kernel = kernel
        self._capacities = capacities
        self._on_link: dict[int, dict[int, _InFlight]] = {}
        self._changed_links: dict[int, None] = {}
        self._flowing_on: dict[int, dict[int, _InFlight]] = {}
        self._changed_flows: dict[int, None] = {}
        self._new: list[_InFlight] = []
        self._count = 0

    def start(self, transfer: Transfer, end: Callable[[], None]) -> None:
        """Start a transfer; ``end`` is called when it ends."""
        steps = transfer.phases[0].count if transfer.phases else 0
        flight = _InFlight(self._count, transfer, end, steps)
        self._count += 1
        self._new.append(flight)
        for link in transfer.links:
            self._on_link.setdefault(link, {})[flight.number] = flight
            self._changed_links[link] = None

    def settle(self) -> None:
        """Update which transfers are contended, and share links among flows."""
        affected = {flight.number: flight for flight in self._new}
        for link in self._changed_links:
            affected |= self._on_link[link]
        self._new.clear()
        self._changed_links.clear()
        for flight in affected.values():
            transfer = flight.transfer
            if transfer.has_rivals or any(len(self._on_link[link]) > 1 for link in transfer.links):
                self._go_stepwise(flight)
            else:
                self._go_to_end(flight)
        if self._changed_flows:
            self._share()

    def _share(self) -> None:
        joined = self._joined()
        self._changed_flows.clear()
        demands = {number: flight.demand for number, flight in joined.items()}
        if len(joined) == 1:
            ((number, demand),) = demands.items()
            shares = [self._capacities[link] // count for link, count in demand.uses]
            rates = {number: min(demand.limit, *shares)}
        else:
            rates = fair_rates(demands, self._capacities)
        for number, rate in rates.items():
            self._set_rate(joined[number], rate)

    def _joined(self) -> dict[int, _InFlight]:
        """Return the flows connected to a changed link."""
        joined: dict[int, _InFlight] = {}
        links = list(self._changed_flows)
        seen = set(links)
        while links:
            for number, flight in self._flowing_on[links.pop()].items():
                if number in joined:
                    continue
                joined[number] = flight
                fresh = [link for link, _ in flight.demand.uses if link not in seen]
                seen.update(fresh)
                links += fresh
        return joined

    def _set_rate(self, flight: _InFlight, rate: int) -> None:
        if rate == flight.rate:
            return
        now_ps = self._kernel.now_ps
        flight.flow_until(now_ps)
        flight.rate = rate
        self._wake_at(flight, now_ps - (-flight.work // rate))

    def _go_to_end(self, flight: _InFlight) -> None:
        """Schedule the end of a transfer that is now uncontended."""
        if flight.state is _State.UNCONTENDED:
            return
        now_ps = self._kernel.now_ps
        if flight.state is _State.DELAYED:
            flight.delay_ps -= now_ps - flight.since_ps
        elif flight.state is _State.FLOWING:
            self._stop_flow(flight)
        flight.state = _State.UNCONTENDED
        flight.since_ps = now_ps
        self._wake_at(flight, now_ps + flight.remaining_ps())

    def _go_stepwise(self, flight: _InFlight) -> None:
        """Continue a transfer step by step once it is contended."""
        if flight.state in (_State.DELAYED, _State.FLOWING):
            return
        if flight.state is _State.UNCONTENDED:
            flight.advance(self._kernel.now_ps - flight.since_ps)
        flight.state = _State.DELAYED
        self._continue(flight)

    def _continue(self, flight: _InFlight) -> None:
        now_ps = self._kernel.now_ps
        flight.since_ps = now_ps
        while not flight.delay_ps and not flight.work:
            if not flight.transfer.phases or not flight.take_piece():
                flight.state = _State.UNCONTENDED
                self._wake_at(flight, now_ps)
                return
        if flight.delay_ps:
            flight.state = _State.DELAYED
            self._wake_at(flight, now_ps + flight.delay_ps)
            return
        flight.state = _State.FLOWING
        flight.wake_ps = -1
        flight.rate = 0
        for link, _ in flight.demand.uses:
            self._flowing_on.setdefault(link, {})[flight.number] = flight
            self._changed_flows[link] = None
        if not flight.demand.uses:
            self._set_rate(flight, flight.demand.limit)

    def _stop_flow(self, flight: _InFlight) -> None:
        flight.flow_until(self._kernel.now_ps)
        for link, _ in flight.demand.uses:
            del self._flowing_on[link][flight.number]
            self._changed_flows[link] = None

    def _wake_at(self, flight: _InFlight, time_ps: int) -> None:
        flight.wake_ps = time_ps
        self._kernel.at(time_ps, self._wake, flight)

    def _wake(self, flight: _InFlight) -> None:
        if flight.wake_ps != self._kernel.now_ps:
            return  # scheduled before the contention changed
        flight.wake_ps = -1
        if flight.state is _State.UNCONTENDED:
            for link in flight.transfer.links:
                del self._on_link[link][flight.number]
                self._changed_links[link] = None
            flight.end()
            return
        if flight.state is _State.FLOWING:
            self._stop_flow(flight)
            flight.work = 0
        flight.delay_ps = 0
        self._continue(flight)
