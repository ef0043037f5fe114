"""Measurements beside predictions, and what the one says of the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from hespas.base.units import format_time
from hespas.errors import MeasurementError

CONTRADICTION = 2.0
"""Two measurements of one thing that differ by more than this factor can't both be right."""

DISAGREEMENT = 1.2
"""Those that differ by more than this are named."""

FAR = 100.0
"""What takes so many times what is expected was written down in another unit."""

_UNLIKELY = 3.0
"""A factor that is as far from 1 as this, either way, is reported as doubtful."""

_EXACT = 0.005
"""A median error below this needs no fit."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement: what it is of, and where it stands."""

    label: str
    location: str
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A measurement beside what hespas says of it before, and with all that was fitted."""

    case: Case
    predicted_s: float
    fitted_s: float

    @property
    def error(self) -> float:
        """The relative error of the prediction before."""
        return self.predicted_s / self.case.measured_s - 1

    @property
    def error_after(self) -> float:
        """The relative error of the prediction with the factors that are written."""
        return self.fitted_s / self.case.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorFit:
    """A factor on predicted times, the samples behind it, and what people should know of it.

    ``name`` is a key of a node's ``calibration``; ``factor`` multiplies what the base has there.
    """

    name: str
    factor: float
    samples: tuple[Sample, ...]
    notes: tuple[str, ...] = ()

    @property
    def median_error_before(self) -> float:
        """The median size of relative errors without the factors."""
        return median(abs(each.error) for each in self.samples)

    @property
    def median_error_after(self) -> float:
        """The median size of relative errors with them."""
        return median(abs(each.error_after) for each in self.samples)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the fit doubtful."""
        notes: list[str] = []
        if not 1 / _UNLIKELY <= self.factor <= _UNLIKELY:
            notes.append(
                f"x {self.factor} is far from 1: are the unit, and the part or program that was "
                "measured, right?"
            )
        before, after = self.median_error_before, self.median_error_after
        if after >= max(before, _EXACT):
            notes.append(
                f"the factor makes predictions no better: the median error is {100 * before:.1f} % "
                f"before and {100 * after:.1f} % after"
            )
        return tuple(notes)


def check_agreement(
    rows: Iterable[_T],
    *,
    key: Callable[[_T], Hashable],
    time_s: Callable[[_T], float],
    location: Callable[[_T], str],
    name: Callable[[_T], str],
) -> tuple[str, ...]:
    """Return a note for the rows of one thing that disagree.

    Raises `MeasurementError`, naming both lines, where they contradict each other.
    """
    shortest: dict[Hashable, _T] = {}
    longest: dict[Hashable, _T] = {}
    for row in rows:
        what = key(row)
        low, high = shortest.setdefault(what, row), longest.setdefault(what, row)
        shortest[what] = min(low, row, key=time_s)
        longest[what] = max(high, row, key=time_s)
    notes: list[str] = []
    for what, low in shortest.items():
        high = longest[what]
        times = f"takes {format_time(time_s(low))} here, but {format_time(time_s(high))}"
        if time_s(high) > CONTRADICTION * time_s(low):
            raise MeasurementError(
                f"{name(low)} {times} in {location(high)}",
                location=location(low),
                hint="measure again, or drop the wrong line",
            )
        if time_s(high) > DISAGREEMENT * time_s(low):
            notes.append(f"{location(low)}: {name(low)} {times} in {location(high)}")
    return tuple(notes)


def check_limits(
    case: Case, *, floor_s: float, expected_s: float, hint: str, floor: str = "the physical floor"
) -> None:
    """Raise `MeasurementError` for a time below its floor, or far above what is expected."""
    if case.measured_s < floor_s:
        raise MeasurementError(
            f"{case.label} in {format_time(case.measured_s)} is below {floor} of "
            f"{format_time(floor_s)}",
            location=case.location,
            hint=hint,
        )
    if case.measured_s > FAR * expected_s:
        raise MeasurementError(
            f"{case.label} in {format_time(case.measured_s)} is "
            f"{case.measured_s / expected_s:.0f} times the {format_time(expected_s)} expected",
            location=case.location,
            hint=hint,
        )


def worst(samples: Sequence[Sample], count: int = 3) -> list[Sample]:
    """Return the samples that predictions miss most."""
    return sorted(samples, key=lambda each: (-abs(each.error), each.case.location))[:count]
