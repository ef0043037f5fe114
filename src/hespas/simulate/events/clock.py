"""Simulated time: what happens at the same instant happens in the order in which it was set."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeAlias

from hespas.errors import SimulationError

# An act takes one argument, so that setting one allocates a pair and no closure.
Act: TypeAlias = Callable[[Any], None]


class Clock:
    """Events ordered by (time, order of setting), in integer ps.

    An event set for the current instant runs in it, after all others of it.
    """

    __slots__ = ("_acts", "_times", "now_ps")

    def __init__(self) -> None:
        self.now_ps = 0
        self._times: list[int] = []
        self._acts: dict[int, list[tuple[Act, Any]]] = {}

    def at(self, time_ps: int, act: Act, argument: object = None) -> None:
        """Have ``act(argument)`` called at ``time_ps``, which isn't before now."""
        acts = self._acts.get(time_ps)
        if acts is None:
            self._acts[time_ps] = [(act, argument)]
            heappush(self._times, time_ps)
        else:
            acts.append((act, argument))

    def run(self) -> None:
        """Let time pass until nothing is set any more."""
        times, all_acts = self._times, self._acts
        while times:
            self.now_ps = now_ps = heappop(times)
            for act, argument in all_acts[now_ps]:  # grows while it is worked through
                act(argument)
            del all_acts[now_ps]


def check_not_at_start(now_ps: int, wait_ps: int, what: str) -> None:
    """Raise `SimulationError` for communication that takes no time at time 0.

    ASTRA-sim's event queue aborts there; at any later time it goes on.
    """
    if now_ps == 0 and wait_ps == 0:
        message = f"{what} takes no time at the very start, where ASTRA-sim aborts"
        raise SimulationError(message, hint="give a latency or an endpoint-delay above 0")


class Alarms:
    """What one device sets for itself: all of one instant happens when the first of it would."""

    __slots__ = ("_acts", "_clock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._acts: dict[int, list[tuple[Act, Any]]] = {}

    @property
    def now_ps(self) -> int:
        """The current time."""
        return self._clock.now_ps

    def after(self, wait_ps: int, act: Act, argument: object = None) -> None:
        """Have ``act(argument)`` called in ``wait_ps``."""
        time_ps = self._clock.now_ps + wait_ps
        acts = self._acts.get(time_ps)
        if acts is None:
            acts = self._acts[time_ps] = [(act, argument)]
            self._clock.at(time_ps, self._ring, acts)
        else:
            acts.append((act, argument))

    def _ring(self, acts: list[tuple[Act, Any]]) -> None:
        for act, argument in acts:  # grows while it is worked through
            act(argument)
        del self._acts[self._clock.now_ps]
