"""Courses under way: alone in one go, and step by step where they share links.

A run is alone while no other run loads any of its links, now or later; then only its end is an
event. When another comes, it continues from where it is: each step first lets its latency pass,
then its bytes flow at the fair rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from hespas.simulate.flow.course import Course, Leg
from hespas.simulate.flow.flows import Flows
from hespas.simulate.kernel import Kernel


class _Phase(Enum):
    NEW = "new"
    ALONE = "alone"
    LEAD = "lead"
    WORK = "work"


class Run:
    """``lead_ps`` and ``work`` are left of the piece at hand, then ``left`` steps of the leg."""

    __slots__ = (
        "course",
        "done",
        "lead_ps",
        "left",
        "leg",
        "number",
        "phase",
        "since_ps",
        "wake_ps",
        "work",
    )

    def __init__(self, number: int, course: Course, done: Callable[[], None]) -> None:
        self.number = number
        self.course = course
        self.done = done
        self.phase = _Phase.NEW
        self.since_ps = 0
        self.wake_ps = -1
        self.lead_ps = 0
        self.work = 0
        self.leg = 0
        self.left = course.legs[0].count if course.legs else 0

    @property
    def _current(self) -> Leg:
        return self.course.legs[self.leg]

    def alone_ps(self) -> int:
        """Return how long the rest takes alone."""
        if not self.course.legs:
            return 0
        head_ps = self.lead_ps + self._work_ps()
        return head_ps + self.left * self._current.step_ps + self.course.after_ps[self.leg]

    def _work_ps(self) -> int:
        demand = self._current.demand
        return 0 if demand is None else -(-self.work // demand.limit)

    def skip(self, passed_ps: int) -> None:
        """Move on to where ``passed_ps`` alone lead."""
        if not passed_ps or not self.course.legs:
            return
        while passed_ps >= self.lead_ps + self._work_ps():
            passed_ps -= self.lead_ps + self._work_ps()
            self.lead_ps = self.work = 0
            step_ps = self._current.step_ps
            steps = min(self.left, passed_ps // step_ps) if step_ps else self.left
            self.left -= steps
            passed_ps -= steps * step_ps
            if not self.take(1):
                return
        into_work = max(0, passed_ps - self.lead_ps)
        self.lead_ps = max(0, self.lead_ps - passed_ps)
        demand = self._current.demand
        self.work -= into_work * (demand.limit if demand is not None else 0)

    def take(self, most: int | None = None) -> bool:
        """Take the next piece in hand, of ``most`` steps; return whether there is one."""
        legs = self.course.legs
        while not self.left:
            if self.leg + 1 >= len(legs):
                return False
            self.leg += 1
            self.left = self._current.count
        leg = self._current
        steps = min(self.left, leg.piece if most is None else most)
        self.left -= steps
        self.lead_ps = steps * leg.lead_ps
        self.work = steps * leg.work
        return True


class Runs:
    """All runs; time is in ps."""

    def __init__(self, kernel: Kernel, capacities: Mapping[int, int]) -> None:
        self._kernel = kernel
        self._flows = Flows(kernel, capacities, self._has_flowed)
        self._runs: dict[int, Run] = {}
        self._on_link: dict[int, dict[int, Run]] = {}
        self._touched: dict[int, None] = {}
        self._fresh: list[Run] = []
        self._count = 0

    def start(self, course: Course, done: Callable[[], None]) -> None:
        """Start a run; ``done`` is called when it ends."""
        run = Run(self._count, course, done)
        self._count += 1
        self._runs[run.number] = run
        self._fresh.append(run)
        for link in course.links:
            self._on_link.setdefault(link, {})[run.number] = run
            self._touched[link] = None

    def settle(self) -> None:
        """After all that happens now: find out who is alone, and share the links."""
        affected = {run.number: run for run in self._fresh}
        for link in self._touched:
            affected |= self._on_link[link]
        self._fresh.clear()
        self._touched.clear()
        for run in affected.values():
            self._choose(run)
        self._flows.settle()

    def _choose(self, run: Run) -> None:
        now_ps = self._kernel.now_ps
        is_alone = not run.course.has_rivals and self._is_alone(run.course.links)
        if is_alone and run.phase is not _Phase.ALONE:
            # Note how far it has come step by step.
            if run.phase is _Phase.LEAD:
                run.lead_ps -= now_ps - run.since_ps
            elif run.phase is _Phase.WORK:
                run.work = self._flows.stop(run.number)
            run.phase = _Phase.ALONE
            run.since_ps = now_ps
            self._wake_at(run, now_ps + run.alone_ps())
        elif not is_alone and run.phase in (_Phase.NEW, _Phase.ALONE):
            if run.phase is _Phase.ALONE:
                run.skip(now_ps - run.since_ps)
            run.phase = _Phase.LEAD
            self._continue(run)

    def _is_alone(self, links: Iterable[int]) -> bool:
        return all(len(self._on_link[link]) == 1 for link in links)

    def _continue(self, run: Run) -> None:
        """Go on with the piece at hand, or the next one."""
        now_ps = self._kernel.now_ps
        while not run.lead_ps and not run.work:
            if not run.course.legs or not run.take():
                run.phase = _Phase.ALONE
                run.since_ps = now_ps
                self._wake_at(run, now_ps)
                return
        run.since_ps = now_ps
        if run.lead_ps:
            run.phase = _Phase.LEAD
            self._wake_at(run, now_ps + run.lead_ps)
            return
        run.phase = _Phase.WORK
        run.wake_ps = -1
        demand = run.course.legs[run.leg].demand
        if demand is None:
            raise AssertionError
        self._flows.start(run.number, demand, run.work)

    def _has_flowed(self, number: int) -> None:
        run = self._runs[number]
        run.work = 0
        self._continue(run)

    def _wake_at(self, run: Run, time_ps: int) -> None:
        run.wake_ps = time_ps
        self._kernel.at(time_ps, self._wake, run)

    def _wake(self, run: Run) -> None:
        if run.wake_ps != self._kernel.now_ps:
            return  # it was scheduled before the run met or lost company
        run.wake_ps = -1
        if run.phase is _Phase.ALONE:
            self._end(run)
        else:
            run.lead_ps = 0
            self._continue(run)

    def _end(self, run: Run) -> None:
        del self._runs[run.number]
        for link in run.course.links:
            del self._on_link[link][run.number]
            self._touched[link] = None
        run.done()
