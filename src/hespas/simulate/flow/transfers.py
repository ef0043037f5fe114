"""Transfers: what a collective or a message does on the network, and those in flight.

A transfer is a row of phases, each some equal steps: first a delay in which no link is used
(latencies, overheads, reductions), then bytes that flow at the fair rate. While no other transfer
uses any of its links, a transfer is one event, its end. When another comes, it continues step by
step from where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from hespas.collectives.patterns import Pattern
from hespas.simulate.flow.planning import Plan
from hespas.simulate.flow.sharing import Demand, Flows
from hespas.simulate.kernel import Kernel

PIECES = 16
"""Where links are shared, equal steps in a row are taken in at most so many pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """``count`` equal steps: each waits ``delay_ps``, then moves ``work`` (rate units times ps).

    Uncontended, the work of a step takes ``work_ps``. ``demand`` is None where nothing is sent.
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
        """How many steps are taken at once where links are shared."""
        return -(-self.count // PIECES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Phases one after the other; ``links`` are those of all phases.

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
    """Return the transfer of a plan where patterns cross the links of ``uses``."""
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


class _InFlight:
    """A transfer in flight.

    ``delay_ps`` and ``work`` are what is left of the current piece as of ``since_ps``, and
    ``steps_left`` how many steps of the phase follow it. ``wake_ps`` is the time of the event that
    counts; -1 without one.
    """

    __slots__ = (
        "delay_ps",
        "end",
        "number",
        "phase",
        "since_ps",
        "state",
        "steps_left",
        "transfer",
        "wake_ps",
        "work",
    )

    def __init__(self, number: int, transfer: Transfer, end: Callable[[], None]) -> None:
        self.number = number
        self.transfer = transfer
        self.end = end
        self.state = _State.NEW
        self.since_ps = 0
        self.wake_ps = -1
        self.delay_ps = 0
        self.work = 0
        self.phase = 0
        self.steps_left = transfer.phases[0].count if transfer.phases else 0

    @property
    def current(self) -> Phase:
        """The current phase."""
        return self.transfer.phases[self.phase]

    def rest_ps(self) -> int:
        """Return how long the rest takes uncontended."""
        if not self.transfer.phases:
            return 0
        piece_ps = self.delay_ps + self._work_ps()
        steps_ps = self.steps_left * self.current.step_ps
        return piece_ps + steps_ps + self.transfer.after_ps[self.phase]

    def _work_ps(self) -> int:
        demand = self.current.demand
        return 0 if demand is None else -(-self.work // demand.limit)

    def advance(self, passed_ps: int) -> None:
        """Move to where the transfer is after ``passed_ps`` without contention."""
        if not passed_ps or not self.transfer.phases:
            return
        while passed_ps >= self.delay_ps + self._work_ps():
            passed_ps -= self.delay_ps + self._work_ps()
            self.delay_ps = self.work = 0
            step_ps = self.current.step_ps
            steps = min(self.steps_left, passed_ps // step_ps) if step_ps else self.steps_left
            self.steps_left -= steps
            passed_ps -= steps * step_ps
            if not self.take_piece(1):
                return
        into_work_ps = max(0, passed_ps - self.delay_ps)
        self.delay_ps = max(0, self.delay_ps - passed_ps)
        demand = self.current.demand
        self.work -= into_work_ps * (demand.limit if demand is not None else 0)

    def take_piece(self, most_steps: int | None = None) -> bool:
        """Make the next steps the current piece; return whether there are any."""
        phases = self.transfer.phases
        while not self.steps_left:
            if self.phase + 1 >= len(phases):
                return False
            self.phase += 1
            self.steps_left = self.current.count
        phase = self.current
        steps = min(self.steps_left, phase.steps_per_piece if most_steps is None else most_steps)
        self.steps_left -= steps
        self.delay_ps = steps * phase.delay_ps
        self.work = steps * phase.work
        return True


class Transfers:
    """The transfers in flight on links of some ``capacities`` (rate units).

    `settle` has to be called after all events of an instant, as `Kernel.run` does.
    """

    def __init__(self, kernel: Kernel, capacities: Mapping[int, int]) -> None:
        self._kernel = kernel
        self._flows = Flows(kernel, capacities, self._has_flowed)
        self._in_flight: dict[int, _InFlight] = {}
        self._on_link: dict[int, dict[int, _InFlight]] = {}
        self._changed_links: dict[int, None] = {}
        self._new: list[_InFlight] = []
        self._count = 0

    def start(self, transfer: Transfer, end: Callable[[], None]) -> None:
        """Start a transfer; ``end`` is called when it ends."""
        flight = _InFlight(self._count, transfer, end)
        self._count += 1
        self._in_flight[flight.number] = flight
        self._new.append(flight)
        for link in transfer.links:
            self._on_link.setdefault(link, {})[flight.number] = flight
            self._changed_links[link] = None

    def settle(self) -> None:
        """Find out which transfers are contended now, and share the links among their flows."""
        affected = {flight.number: flight for flight in self._new}
        for link in self._changed_links:
            affected |= self._on_link[link]
        self._new.clear()
        self._changed_links.clear()
        for flight in affected.values():
            if self._is_contended(flight.transfer):
                self._go_stepwise(flight)
            else:
                self._go_to_end(flight)
        self._flows.settle()

    def _is_contended(self, transfer: Transfer) -> bool:
        return transfer.has_rivals or any(len(self._on_link[link]) > 1 for link in transfer.links)

    def _go_to_end(self, flight: _InFlight) -> None:
        """Schedule the end of a transfer that has its links to itself now."""
        if flight.state is _State.UNCONTENDED:
            return
        now_ps = self._kernel.now_ps
        if flight.state is _State.DELAYED:
            flight.delay_ps -= now_ps - flight.since_ps
        elif flight.state is _State.FLOWING:
            flight.work = self._flows.stop(flight.number)
        flight.state = _State.UNCONTENDED
        flight.since_ps = now_ps
        self._wake_at(flight, now_ps + flight.rest_ps())

    def _go_stepwise(self, flight: _InFlight) -> None:
        """Carry a transfer on step by step if it had its links to itself until now."""
        if flight.state in (_State.DELAYED, _State.FLOWING):
            return
        if flight.state is _State.UNCONTENDED:
            flight.advance(self._kernel.now_ps - flight.since_ps)
        flight.state = _State.DELAYED
        self._continue(flight)

    def _continue(self, flight: _InFlight) -> None:
        """Go on with the current piece, or the next one."""
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
        demand = flight.current.demand
        if demand is None:
            raise AssertionError
        flight.state = _State.FLOWING
        flight.wake_ps = -1
        self._flows.start(flight.number, demand, flight.work)

    def _has_flowed(self, number: int) -> None:
        flight = self._in_flight[number]
        flight.work = 0
        self._continue(flight)

    def _wake_at(self, flight: _InFlight, time_ps: int) -> None:
        flight.wake_ps = time_ps
        self._kernel.at(time_ps, self._wake, flight)

    def _wake(self, flight: _InFlight) -> None:
        if flight.wake_ps != self._kernel.now_ps:
            return  # scheduled before the contention changed
        flight.wake_ps = -1
        if flight.state is _State.UNCONTENDED:
            self._end(flight)
        else:
            flight.delay_ps = 0
            self._continue(flight)

    def _end(self, flight: _InFlight) -> None:
        del self._in_flight[flight.number]
        for link in flight.transfer.links:
            del self._on_link[link][flight.number]
            self._changed_links[link] = None
        flight.end()
