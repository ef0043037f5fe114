"""Measurements beside predictions, and what the one says of the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from hespas.errors import MeasurementError
from hespas.units import format_time

CONTRADICTION = 2.0
"""Two measurements of one thing that differ by more than this factor can't both be right."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement: what it is of, where it stands, and what hespas says of it."""

    label: str
    place: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorFit:
    """A factor on predicted times, and the samples behind it.

    ``name`` is a key of a node's ``calibration``. ``factor`` is the median of measured /
    predicted, which no outlier pulls.
    """

    name: str
    samples: tuple[Sample, ...]

    @property
    def factor(self) -> float:
        """What predicted times are multiplied by."""
        ratios = [each.measured_s / each.predicted_s for each in self.samples]
        return float(f"{median(ratios):.4g}")

    @property
    def median_error_before(self) -> float:
        """The median size of relative errors without the factor."""
        return median(abs(each.error) for each in self.samples)

    @property
    def errors_after(self) -> tuple[float, ...]:
        """Relative errors with the factor."""
        return tuple(self.factor * each.predicted_s / each.measured_s - 1 for each in self.samples)


def check_agreement(
    rows: Iterable[_T],
    *,
    key: Callable[[_T], Hashable],
    time_s: Callable[[_T], float],
    place: Callable[[_T], str],
    name: Callable[[_T], str],
) -> None:
    """Raise `MeasurementError`, naming both lines, where two rows of one thing contradict."""
    shortest: dict[Hashable, _T] = {}
    longest: dict[Hashable, _T] = {}
    for row in rows:
        what = key(row)
        low, high = shortest.setdefault(what, row), longest.setdefault(what, row)
        shortest[what] = min(low, row, key=time_s)
        longest[what] = max(high, row, key=time_s)
    for what, low in shortest.items():
        high = longest[what]
        if time_s(high) > CONTRADICTION * time_s(low):
            raise MeasurementError(
                f"{name(low)} takes {format_time(time_s(low))} here, "
                f"but {format_time(time_s(high))} in {place(high)}",
                place=place(low),
                mend="measure again, or drop the wrong line",
            )


def worst(samples: Sequence[Sample], count: int = 3) -> list[Sample]:
    """Return the samples that predictions miss most."""
    return sorted(samples, key=lambda each: (-abs(each.error), each.place))[:count]
