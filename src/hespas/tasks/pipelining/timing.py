"""Compute when each pass of a schedule starts and ends.

The times are exact for given durations of passes and messages. Each stage runs its passes in the
order of the schedule, each as soon as the passes that it waits for have ended and their messages
have arrived. A forward pass may run beside the preceding backward pass, which waits for it if both
then end earlier: they start and end together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hespas.base.frozen import frozen
from hespas.tasks.pipelining.schedule import Action, Pass, Schedule, check_schedule

Interval = tuple[int, int]


@frozen
class Durations:
    """The durations of passes and messages, in ps.

    ``pass_ps`` gives a pass on a stage, ``message_ps`` a message from one stage to another. With
    ``holds_sender`` a stage waits until its message has arrived, else it continues. ``ready_ps`` is
    when the weights of a chunk of a stage are ready; missing entries are 0. ``hidden`` gives the
    savings of a backward and a forward pass of a stage side by side; without it, passes never run
    side by side.
    """

    pass_ps: Callable[[int, Action], int]
    message_ps: Callable[[int, int], int]
    holds_sender: bool = False
    ready_ps: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    hidden: Callable[[int, Action, Action], tuple[int, int]] | None = None


@frozen
class Times:
    """The start and end of each pass, in ps.

    Of two passes side by side, the backward one has the first part of the time that both take.
    ``hidden_ps`` is the saving of each against running alone. ``held_ps`` is each stage's time in
    which weights alone keep it waiting.
    """

    schedule: Schedule
    passes: tuple[Mapping[Action, Interval], ...]
    hidden_ps: tuple[Mapping[Action, int], ...]
    held_ps: tuple[int, ...]

    @property
    def finish_ps(self) -> int:
        """When the last pass ends."""
        return max(end for stage_passes in self.passes for _, end in stage_passes.values())

    def busy_ps(self, stage: int) -> int:
        """Return a stage's time in passes, including waits inside."""
        return sum(end - start for start, end in self.passes[stage].values())

    @property
    def bubble(self) -> float:
        """The share of all stages' time without a pass, waits for weights aside."""
        total = self.finish_ps * self.schedule.stages
        busy = sum(map(self.busy_ps, range(self.schedule.stages))) + sum(self.held_ps)
        return 1 - busy / total if total else 0.0


def timed(schedule: Schedule, durations: Durations) -> Times:
    """Return when each pass runs.

    Raises `hespas.errors.ConfigError` for a schedule that can't run.

    >>> from hespas.tasks.pipelining.schedule import schedule_named
    >>> schedule = schedule_named("1f1b", stages=4, micro_batches=12)
    >>> equal = Durations(pass_ps=lambda stage, action: 10, message_ps=lambda source, target: 0)
    >>> times = timed(schedule, equal)
    >>> times.finish_ps, round(times.bubble, 9), (4 - 1) / (12 + 4 - 1)
    (300, 0.2, 0.2)
    """
    clock = _Clock(schedule=schedule, durations=durations)
    clock.run()
    if clock.done < sum(map(len, schedule.order)):
        check_schedule(schedule)
    return Times(
        schedule=schedule,
        passes=tuple(clock.passes),
        hidden_ps=tuple(clock.hidden_ps),
        held_ps=tuple(clock.held_ps),
    )


@dataclass(slots=True, kw_only=True)
class _Clock:
    """A run of a schedule in order of time.

    ``place`` counts the passes that each stage has run, ``free_ps`` is when it can run the next.
    ``ends_ps`` is when a pass's output is available. ``queue`` has the stages' next passes by
    start time; ``queued`` are its stages.
    """

    schedule: Schedule
    durations: Durations
    place: list[int] = field(default_factory=list[int])
    free_ps: list[int] = field(default_factory=list[int])
    passes: list[dict[Action, Interval]] = field(default_factory=list[dict[Action, Interval]])
    hidden_ps: list[dict[Action, int]] = field(default_factory=list[dict[Action, int]])
    held_ps: list[int] = field(default_factory=list[int])
    ends_ps: dict[tuple[int, Action], int] = field(default_factory=dict[tuple[int, Action], int])
    queue: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    queued: set[int] = field(default_factory=set[int])
    done: int = 0

    def run(self) -> None:
        """Run all passes that can run."""
        stages = range(self.schedule.stages)
        self.place = [0] * len(stages)
        self.free_ps = [0] * len(stages)
        self.held_ps = [0] * len(stages)
        self.passes = [{} for _ in stages]
        self.hidden_ps = [{} for _ in stages]
        for stage in stages:
            self._queue_next(stage)
        while self.queue:
            start, stage = heapq.heappop(self.queue)
            self.queued.remove(stage)
            ran = self._start(stage, start)
            self.place[stage] += len(ran)
            self.done += len(ran)
            for action in ran:
                target = self.schedule.receiver(stage, action)
                if target is not None:
                    self._queue_next(target)
            self._queue_next(stage)

    def _queue_next(self, stage: int) -> None:
        """Queue a stage's next pass if its start is known."""
        if stage in self.queued:
            return
        action = self._next(stage)
        arrived = None if action is None else self._arrived(stage, action)
        if action is None or arrived is None:
            return
        startable = max(self.free_ps[stage], arrived)
        start = max(startable, self._weights_ready(stage, action))
        self.held_ps[stage] += start - startable
        heapq.heappush(self.queue, (start, stage))
        self.queued.add(stage)

    def _next(self, stage: int, *, behind: int = 0) -> Action | None:
        order, position = self.schedule.order[stage], self.place[stage] + behind
        return order[position] if position < len(order) else None

    def _weights_ready(self, stage: int, action: Action) -> int:
        return self.durations.ready_ps.get((stage, action.chunk), 0)

    def _arrived(self, stage: int, action: Action) -> int | None:
        """Return when a pass's inputs have arrived, if known."""
        arrived = 0
        for source, waited in self.schedule.inputs(stage, action):
            end = self.ends_ps.get((source, waited))
            if end is None:
                return None
            sent = 0 if source == stage else self.durations.message_ps(source, stage)
            arrived = max(arrived, end + sent)
        return arrived

    def _start(self, stage: int, start: int) -> list[Action]:
        """Run a stage's next pass, and one beside it."""
        action = self._next(stage)
        assert action is not None  # noqa: S101 - for the type checker: it was queued
        begins_at, hidden = self._side_by_side(stage, action, start)
        self.hidden_ps[stage].update(hidden)
        ran = list(hidden) or [action]
        end = begins_at
        for pass_run in ran:
            begins, end = (
                end,
                end + self.durations.pass_ps(stage, pass_run) - hidden.get(pass_run, 0),
            )
            self.passes[stage][pass_run] = (begins, end)
        self.free_ps[stage] = end
        for pass_run in ran:
            self.ends_ps[stage, pass_run] = end
            target = self.schedule.receiver(stage, pass_run)
            if self.durations.holds_sender and target is not None and target != stage:
                self.free_ps[stage] += self.durations.message_ps(stage, target)
        return ran

    def _side_by_side(
        self, stage: int, action: Action, start: int
    ) -> tuple[int, dict[Action, int]]:
        """Return a backward and the next forward pass's common start.

        The dictionary has the saving of each; it is empty, and the start unchanged, if they would
        not end earlier than one after the other.
        """
        next_action = self._next(stage, behind=1)
        if self.durations.hidden is None or next_action is None:
            return start, {}
        if (action.kind, next_action.kind) != (Pass.BACKWARD, Pass.FORWARD):
            return start, {}
        arrived = self._arrived(stage, next_action)
        if arrived is None:
            return start, {}
        ready = max(arrived, self._weights_ready(stage, next_action))
        shorter = self.durations.hidden(stage, action, next_action)
        if ready - start >= sum(shorter):
            return start, {}
        return max(start, ready), dict(zip((action, next_action), shorter, strict=True))
