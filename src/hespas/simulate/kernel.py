"""The event kernel of every simulation here: a clock, a queue with a total order, and actions.

Simulated time is an integer of picoseconds. An action is a function of one argument that is called
at its time; it may schedule others, for the same instant or later ones. Actions of one instant run
in the order in which they were scheduled, so that equal input gives equal results. This is the core
of SimPy's event loop, with callbacks in place of generators.

>>> kernel = Kernel()
>>> log = []
>>> kernel.at(30, log.append, "last")
>>> kernel.at(10, lambda text: kernel.after(5, log.append, text), "soon")
>>> kernel.run()
>>> log, kernel.now_ps
(['soon', 'last'], 30)
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeAlias

# An action takes one argument, so that scheduling one allocates a pair and no closure.
Action: TypeAlias = Callable[[Any], object]


class Kernel:
    """The clock, and the actions scheduled by (time, order of scheduling)."""

    __slots__ = ("_actions", "_times", "now_ps")

    def __init__(self) -> None:
        self.now_ps = 0
        # A heap of the instants, and the actions of each: fewer comparisons than a heap of actions.
        self._times: list[int] = []
        self._actions: dict[int, list[tuple[Action, Any]]] = {}

    def at(self, time_ps: int, action: Action, argument: object = None) -> None:
        """Schedule ``action(argument)`` at ``time_ps``, which must not be before now."""
        actions = self._actions.get(time_ps)
        if actions is None:
            self._actions[time_ps] = [(action, argument)]
            heappush(self._times, time_ps)
        else:
            actions.append((action, argument))

    def after(self, delay_ps: int, action: Action, argument: object = None) -> None:
        """Schedule ``action(argument)`` ``delay_ps`` from now."""
        self.at(self.now_ps + delay_ps, action, argument)

    def stop(self) -> None:
        """Drop all actions, also those that are left at this instant: `run` comes to its end."""
        self._times.clear()
        for actions in self._actions.values():
            actions.clear()

    def run(self, settle: Callable[[], None] | None = None) -> None:
        """Advance time until no action is left.

        ``settle`` is called before the first instant, and whenever all actions of an instant have
        run. It may schedule more for that instant, after which it is called again. It is the place
        for what depends on everything that happened at an instant, such as sharing links anew.
        """
        times, all_actions = self._times, self._actions
        if settle is not None:
            settle()
        while times:
            self.now_ps = now_ps = heappop(times)
            for action, argument in all_actions[now_ps]:  # grows while it is worked through
                action(argument)
            del all_actions[now_ps]
            if settle is not None:
                settle()


class ActorQueue:
    """The actions that one actor schedules for itself.

    Those of one instant run one after the other, when the first of them would: ASTRA-sim's event
    queue joins the events of a device like this, and its order decides ties.

    >>> kernel, log = Kernel(), []
    >>> actor = ActorQueue(kernel)
    >>> actor.after(10, log.append, "first of the actor")
    >>> kernel.at(10, log.append, "of somebody else")
    >>> actor.after(10, log.append, "second of the actor")
    >>> kernel.run()
    >>> log
    ['first of the actor', 'second of the actor', 'of somebody else']
    """

    __slots__ = ("_actions", "_kernel")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._actions: dict[int, list[tuple[Action, Any]]] = {}

    @property
    def now_ps(self) -> int:
        """The current time."""
        return self._kernel.now_ps

    def after(self, delay_ps: int, action: Action, argument: object = None) -> None:
        """Schedule ``action(argument)`` ``delay_ps`` from now."""
        time_ps = self._kernel.now_ps + delay_ps
        actions = self._actions.get(time_ps)
        if actions is None:
            actions = self._actions[time_ps] = [(action, argument)]
            self._kernel.at(time_ps, self._run, actions)
        else:
            actions.append((action, argument))

    def _run(self, actions: list[tuple[Action, Any]]) -> None:
        for action, argument in actions:  # grows while it is worked through
            action(argument)
        del self._actions[self._kernel.now_ps]
