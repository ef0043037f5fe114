"""How well the screen ranks what the compiler then says: to be shown, not to decide anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hespas.study.goal import Goal
from hespas.study.rows import Row, Status

_FIRST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The candidates that were screened and compiled, by both figures of the step time.

    ``holds_best``: the compiled best is among the first five of the screen. ``correlation`` is
    Spearman's, of the ranks; None for fewer than three.
    """

    compiled: int
    holds_best: bool
    correlation: float | None
    largest_error: float


def ranking(rows: Sequence[Row], goal: Goal) -> Ranking | None:
    """Return how the screen ranked what was compiled; None where fewer than two were."""
    both = [
        (screened, compiled)
        for row in rows
        if row.status is Status.DONE
        and (screened := row.figures.get("screened_step_time_s")) is not None
        and (compiled := row.figures.get("step_time_s")) is not None
    ]
    if len(both) < 2 or not goal.is_single:
        return None
    best = min(range(len(both)), key=lambda index: both[index][1])
    order = sorted(range(len(both)), key=lambda index: both[index][0])
    return Ranking(
        compiled=len(both),
        holds_best=best in order[:_FIRST],
        correlation=_spearman(both) if len(both) > 2 else None,
        largest_error=max(abs(screened / compiled - 1) for screened, compiled in both),
    )


def _spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the correlation of ranks; None where all of one side are equal."""
    first, second = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    middle = (len(pairs) - 1) / 2
    spreads = [sum((rank - middle) ** 2 for rank in ranks) for ranks in (first, second)]
    if not all(spreads):
        return None
    together = sum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True))
    return together / (spreads[0] * spreads[1]) ** 0.5


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal ones share the mean of theirs.

    >>> _ranks([3.0, 1.0, 3.0])
    [1.5, 0.0, 1.5]
    """
    ordered = sorted(values)
    return [
        sum(index for index, each in enumerate(ordered) if each == value) / ordered.count(value)
        for value in values
    ]


def ranking_text(found: Ranking) -> str:
    """Return it in words."""
    holds = "hold" if found.holds_best else "do not hold"
    text = f"the screen's best five {holds} the compiled best of {found.compiled}"
    if found.correlation is not None:
        text += f"; correlation of the ranks {found.correlation:.2f}"
    return f"{text}; screened times are at most {100 * found.largest_error:.0f} % off"
