"""When each pass of a schedule starts and ends: exact, for durations of passes and messages.

Each stage runs its passes in the order of the schedule, each as soon as the passes that it waits
for have ended and what they send has arrived. A forward pass may run beside the backward pass
before it, which waits for it where that makes both end earlier: they start and end together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hespas.tasks.pipelining.schedule import Action, Pass, Schedule, check_schedule

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long everything takes, in ps.

    ``of`` says it of a pass on a stage, ``message_ps`` of what a pass sends to another stage. With
    ``holds_sender`` a stage waits until its message has arrived, else it goes on meanwhile.
    ``ready_ps`` is when the weights of a chunk of a stage are there; 0 where it is not given.
    ``hidden`` says by how much a backward and a forward pass of a stage are shorter side by side;
    without it, passes never are.
    """

    of: Callable[[int, Action], int]
    message_ps: Callable[[int, int], int]
    holds_sender: bool = False
    ready_ps: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    hidden: Callable[[int, Action, Action], tuple[int, int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When each pass starts and ends, by stage, in ps from the start of the step.

    Of passes that run side by side, the backward one has the first part of the time that both take.
    ``hidden_ps`` says by how much each of them is shorter than alone.
    """

    schedule: Schedule
    passes: tuple[Mapping[Action, Interval], ...]
    hidden_ps: tuple[Mapping[Action, int], ...]

    @property
    def finish_ps(self) -> int:
        """When the last pass ends."""
        return max(end for each in self.passes for _, end in each.values())

    def busy_ps(self, stage: int) -> int:
        """Return how long a stage computes, what its passes wait for in themselves included."""
        return sum(end - start for start, end in self.passes[stage].values())

    @property
    def bubble(self) -> float:
        """The share of the time, up to the end of the last pass, in which stages run no pass."""
        whole = self.finish_ps * self.schedule.stages
        busy = sum(map(self.busy_ps, range(self.schedule.stages)))
        return 1 - busy / whole if whole else 0.0


def timed(schedule: Schedule, durations: Durations) -> Times:
    """Return when each pass runs.

    Raises `hespas.errors.ConfigError` for a schedule that can't run.

    >>> from hespas.tasks.pipelining.schedule import schedule_named
    >>> schedule = schedule_named("1f1b", stages=4, micro_batches=12)
    >>> equal = Durations(of=lambda stage, action: 10, message_ps=lambda source, target: 0)
    >>> times = timed(schedule, equal)
    >>> times.finish_ps, round(times.bubble, 9), (4 - 1) / (12 + 4 - 1)
    (300, 0.2, 0.2)
    """
    clock = _Clock(schedule=schedule, durations=durations)
    clock.run()
    if clock.done < sum(map(len, schedule.order)):
        check_schedule(schedule)
    return Times(schedule=schedule, passes=tuple(clock.passes), hidden_ps=tuple(clock.hidden_ps))


@dataclass(slots=True, kw_only=True)
class _Clock:
    """One run of a schedule in the order of time, so that what is ready at a time is known.

    ``place`` is how many passes of each stage have run, ``free_ps`` when it can run the next.
    ``ends_ps`` is when those that wait for a pass have it. ``coming`` are the next passes of stages
    by when they start; the stages in it are ``looked_at``.
    """

    schedule: Schedule
    durations: Durations
    place: list[int] = field(default_factory=list[int])
    free_ps: list[int] = field(default_factory=list[int])
    passes: list[dict[Action, Interval]] = field(default_factory=list[dict[Action, Interval]])
    hidden_ps: list[dict[Action, int]] = field(default_factory=list[dict[Action, int]])
    ends_ps: dict[tuple[int, Action], int] = field(default_factory=dict[tuple[int, Action], int])
    coming: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    looked_at: set[int] = field(default_factory=set[int])
    done: int = 0

    def run(self) -> None:
        """Run all passes that can be."""
        stages = range(self.schedule.stages)
        self.place = [0 for _ in stages]
        self.free_ps = [0 for _ in stages]
        self.passes = [{} for _ in stages]
        self.hidden_ps = [{} for _ in stages]
        for stage in stages:
            self._look(stage)
        while self.coming:
            start, stage = heapq.heappop(self.coming)
            self.looked_at.remove(stage)
            ran = self._start(stage, start)
            self.place[stage] += len(ran)
            self.done += len(ran)
            for action in ran:
                target = self.schedule.receiver(stage, action)
                if target is not None:
                    self._look(target)
            self._look(stage)

    def _look(self, stage: int) -> None:
        """Note when the next pass of a stage starts, if that is known."""
        if stage in self.looked_at:
            return
        action = self._next(stage)
        ready = None if action is None else self._ready(stage, action)
        if ready is not None:
            heapq.heappush(self.coming, (max(self.free_ps[stage], ready), stage))
            self.looked_at.add(stage)

    def _next(self, stage: int, *, behind: int = 0) -> Action | None:
        order, at = self.schedule.order[stage], self.place[stage] + behind
        return order[at] if at < len(order) else None

    def _ready(self, stage: int, action: Action) -> int | None:
        """Return when all is there that a pass waits for; None where that is not known yet."""
        ready = self.durations.ready_ps.get((stage, action.chunk), 0)
        for source, waited in self.schedule.inputs(stage, action):
            end = self.ends_ps.get((source, waited))
            if end is None:
                return None
            sent = 0 if source == stage else self.durations.message_ps(source, stage)
            ready = max(ready, end + sent)
        return ready

    def _start(self, stage: int, start: int) -> list[Action]:
        """Run the next pass of a stage, and what runs beside it."""
        action = self._next(stage)
        assert action is not None  # noqa: S101 - for the type checker: it was looked at
        begins_at, hidden = self._beside(stage, action, start)
        self.hidden_ps[stage].update(hidden)
        ran = list(hidden) or [action]
        end = begins_at
        for each in ran:
            begins, end = end, end + self.durations.of(stage, each) - hidden.get(each, 0)
            self.passes[stage][each] = (begins, end)
        self.free_ps[stage] = end
        for each in ran:
            self.ends_ps[stage, each] = end
            target = self.schedule.receiver(stage, each)
            if self.durations.holds_sender and target is not None and target != stage:
                self.free_ps[stage] += self.durations.message_ps(stage, target)
        return ran

    def _beside(self, stage: int, action: Action, start: int) -> tuple[int, dict[Action, int]]:
        """Return when a backward pass and the forward pass behind it start side by side.

        With it comes how much shorter each is; nothing, and the start as it is, where they would
        not end earlier than one after the other.
        """
        behind = self._next(stage, behind=1)
        if self.durations.hidden is None or behind is None:
            return start, {}
        if (action.kind, behind.kind) != (Pass.BACKWARD, Pass.FORWARD):
            return start, {}
        ready = self._ready(stage, behind)
        shorter = self.durations.hidden(stage, action, behind)
        if ready is None or ready - start >= sum(shorter):
            return start, {}
        return max(start, ready), dict(zip((action, behind), shorter, strict=True))
