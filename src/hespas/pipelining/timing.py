"""When each pass of a schedule starts and ends: exact, for durations of passes and messages.

Each stage runs its passes in the order of the schedule, each as soon as the passes that it waits
for have ended and what they send has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hespas.pipelining.order import run_order
from hespas.pipelining.schedule import Action, Schedule

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long everything takes, in ps.

    ``of`` says it of a pass on a stage, ``message_ps`` of what a pass sends to another stage. With
    ``holds_sender`` a stage waits until its message has arrived, else it goes on meanwhile.
    ``ready_ps`` is when the weights of a chunk of a stage are there; 0 where it is not given.
    """

    of: Callable[[int, Action], int]
    message_ps: Callable[[int, int], int]
    holds_sender: bool = False
    ready_ps: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When each pass starts and ends, by stage, in ps from the start of the step."""

    schedule: Schedule
    passes: tuple[Mapping[Action, Interval], ...]

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

    >>> from hespas.pipelining.generate import schedule_named
    >>> schedule = schedule_named("1f1b", stages=4, micro_batches=12)
    >>> equal = Durations(of=lambda stage, action: 10, message_ps=lambda source, target: 0)
    >>> times = timed(schedule, equal)
    >>> times.finish_ps, round(times.bubble, 9), (4 - 1) / (12 + 4 - 1)
    (300, 0.2, 0.2)
    """
    passes: list[dict[Action, Interval]] = [{} for _ in schedule.order]
    free_ps = [0] * schedule.stages
    for stage, action in run_order(schedule):
        start = max(free_ps[stage], durations.ready_ps.get((stage, action.chunk), 0))
        for source, waited in schedule.inputs(stage, action):
            arrives = passes[source][waited][1]
            if source != stage:
                arrives += durations.message_ps(source, stage)
            start = max(start, arrives)
        end = start + durations.of(stage, action)
        passes[stage][action] = (start, end)
        free_ps[stage] = end
        target = schedule.receiver(stage, action)
        if durations.holds_sender and target is not None and target != stage:
            free_ps[stage] += durations.message_ps(stage, target)
    return Times(schedule=schedule, passes=tuple(passes))
