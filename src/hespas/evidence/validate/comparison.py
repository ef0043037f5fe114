"""How far predictions are from measurements, step by step and between systems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from statistics import mean, median

from hespas.evidence.validate.measurements import MeasuredStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured step and the time that a method predicts."""

    measured: MeasuredStep
    predicted_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one; negative is too fast."""
        return self.predicted_s / self.measured.step_s - 1

    @property
    def error_beyond_rounding(self) -> float:
        """The error to the nearest time that reads as what was measured; 0 within."""
        low, high = self.measured.interval_s
        return self.predicted_s / min(max(self.predicted_s, low), high) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """How much faster a workload is on one system than on another: measured, and predicted.

    ``slower`` and ``faster`` are the steps as they were measured.
    """

    workload: str
    slower: MeasuredStep
    faster: MeasuredStep
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1

    @property
    def error_beyond_rounding(self) -> float:
        """The error to the nearest ratio of times that read as what was measured; 0 within."""
        slower, faster = self.slower.interval_s, self.faster.interval_s
        low = slower[0] / faster[1]
        high = slower[1] / faster[0] if faster[0] > 0 else inf
        return self.predicted / min(max(self.predicted, low), high) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of several points: mean and largest of their absolute values."""

    points: int
    mean_error: float
    largest_error: float
    mean_error_beyond_rounding: float
    largest_error_beyond_rounding: float


def summary(points: Sequence[Point]) -> Summary:
    """Sum up points; there must be one at least.

    >>> step = MeasuredStep(workload="w", options={}, node="n", system="s", step_s=1.0,
    ...                     resolution_s=0.1, profiled_compute_s=None, line=2)
    >>> slow, right = (Point(measured=step, predicted_s=time_s) for time_s in (1.1, 1.0))
    >>> total = summary([slow, right])
    >>> round(total.mean_error, 6), round(total.largest_error_beyond_rounding, 6)
    (0.05, 0.047619)
    """
    errors = [abs(point.error) for point in points]
    beyond = [abs(point.error_beyond_rounding) for point in points]
    return Summary(
        points=len(points),
        mean_error=mean(errors),
        largest_error=max(errors),
        mean_error_beyond_rounding=mean(beyond),
        largest_error_beyond_rounding=max(beyond),
    )


def speed_ups(points: Iterable[Point]) -> tuple[SpeedUp, ...]:
    """Compare every two systems on which the same workload was measured."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        step = point.measured
        groups.setdefault((step.workload, repr(sorted(step.options.items()))), []).append(point)
    return tuple(
        _speed_up(first, second)
        for group in groups.values()
        for first, second in combinations(group, 2)
        if first.measured.system != second.measured.system
    )


def _speed_up(first: Point, second: Point) -> SpeedUp:
    slower, faster = sorted((first, second), key=lambda point: -point.measured.step_s)
    return SpeedUp(
        workload=slower.measured.workload,
        slower=slower.measured,
        faster=faster.measured,
        measured=slower.measured.step_s / faster.measured.step_s,
        predicted=slower.predicted_s / faster.predicted_s,
    )


def median_errors(compared: Sequence[SpeedUp]) -> tuple[float, float] | None:
    """Return the median of the absolute errors, and of those beyond rounding; None for none."""
    if not compared:
        return None
    beyond = median(abs(each.error_beyond_rounding) for each in compared)
    return median(abs(each.error) for each in compared), beyond
