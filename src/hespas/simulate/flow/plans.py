"""Plans of collectives and messages: their stages, and what they approximate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hespas.base.frozen import frozen
from hespas.collectives.patterns import Pattern


@frozen
class Stage:
    """``count`` times: ``delay_ps`` without using links, then ``work_ps`` at ``rate``.

    ``rate`` is that of a message of the pattern on an idle network; None stands for no messages.
    """

    count: int
    delay_ps: int
    work_ps: int
    rate: int
    pattern: Pattern | None


@frozen
class Plan:
    """The successive stages of a collective or a message.

    While it runs, it occupies ``multiprocessor_share`` of a device's multiprocessors. ``notes`` say
    what is approximated.
    """

    algorithm: str
    stages: tuple[Stage, ...]
    multiprocessor_share: float = 0.0
    waits_for_receiver: bool = False
    notes: tuple[str, ...] = ()

    @property
    def total_ps(self) -> int:
        """The time on an idle network."""
        return sum(stage.count * (stage.delay_ps + stage.work_ps) for stage in self.stages)

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The patterns of its messages, each once."""
        patterns = [stage.pattern for stage in self.stages if stage.pattern is not None]
        return tuple(dict.fromkeys(patterns))


def fastest(plans: Iterable[Plan]) -> Plan:
    """Return the plan that takes least on an idle network."""
    return min(plans, key=lambda plan: plan.total_ps)


def joined(algorithm: str, parts: Sequence[Plan]) -> Plan:
    """Return the plan of parts one after the other."""
    return Plan(
        algorithm=f"{algorithm} ({', '.join(part.algorithm for part in parts)})",
        stages=tuple([stage for part in parts for stage in part.stages]),
        multiprocessor_share=max(part.multiprocessor_share for part in parts),
        notes=tuple([note for part in parts for note in part.notes]),
    )
