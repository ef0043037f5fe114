"""A long run played through, failure by failure: the judge of the closed forms."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from random import Random

from hespas.prediction.goodput import Goodput, LongRun

_DAY_S = 86400.0


@dataclass(slots=True, kw_only=True)
class _Clock:
    """Time by what it went to; nodes in repair come back at the times in ``repairs``."""

    run: LongRun
    random: Random
    now_s: float = 0.0
    waited_s: float = 0.0
    failures: int = 0
    repairs: list[float] = field(default_factory=list[float])
    next_failure_s: float = inf

    def until_failure(self, wanted_s: float) -> float:
        """Let ``wanted_s`` pass, or less if a failure comes first; return what passed."""
        passed_s = min(wanted_s, self.next_failure_s - self.now_s)
        self.now_s += passed_s
        if passed_s < wanted_s:
            self._fail()
        return passed_s

    def _fail(self) -> None:
        self.failures += 1
        if self.run.spares is not None:
            back_s = self.now_s + self.random.expovariate(1.0) * self.run.repair_s
            heapq.heappush(self.repairs, back_s)
            while self.repairs and self.repairs[0] <= self.now_s:
                heapq.heappop(self.repairs)
            if len(self.repairs) > self.run.spares:
                back_s = heapq.heappop(self.repairs)
                self.waited_s += back_s - self.now_s
                self.now_s = back_s
        self.draw()

    def draw(self) -> None:
        """Draw when the next failure comes."""
        self.next_failure_s = self.now_s + self.random.expovariate(
            1.0 / self.run.failure_interval_s
        )


def simulated(run: LongRun, *, intervals: int, seed: int) -> Goodput:
    """Return what the time of ``intervals`` intervals went to; repairs take exponential times."""
    clock = _Clock(run=run, random=Random(seed))  # noqa: S311 - nothing here is secret
    if run.failure_interval_s < inf:
        clock.draw()
    starting_s = loading_s = worked_s = 0.0
    for _ in range(intervals):
        cycle_s = run.interval_s + run.save_s
        worked_s += cycle_s
        while (passed_s := clock.until_failure(cycle_s)) < cycle_s:
            worked_s += passed_s
            for start_s, load_s in _restarts(clock):
                starting_s += start_s
                loading_s += load_s
    kept_s = intervals * run.interval_s
    saved_s = intervals * run.save_s
    whole_s = clock.now_s
    return Goodput(
        productive=kept_s / whole_s,
        saving=saved_s / whole_s,
        lost=(worked_s - kept_s - saved_s) / whole_s,
        starting=starting_s / whole_s,
        loading=loading_s / whole_s,
        waiting=clock.waited_s / whole_s,
        failures_per_day=clock.failures * _DAY_S / whole_s,
    )


def _restarts(clock: _Clock) -> Iterator[tuple[float, float]]:
    """Yield the parts of restarts, until one of them comes to its end."""
    run = clock.run
    while True:
        passed_s = clock.until_failure(run.restart_s)
        yield min(passed_s, run.start_s), max(0.0, passed_s - run.start_s)
        if passed_s >= run.restart_s:
            return
