"""Measurements beside predictions, and checks of one against the other."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from re import Pattern
from statistics import median

from hespas.base.frozen import frozen
from hespas.base.table import Line, read_table
from hespas.base.units import format_time
from hespas.errors import ExtraMissingError, HespasError, MeasurementError, ToolError

CONTRADICTION = 2.0
"""Measurements of one thing contradict each other beyond this factor."""

DISAGREEMENT = 1.2
"""Measurements of one thing that differ by more than this factor get a note."""

FAR = 100.0
"""A time this many times the expected one was written in another unit."""

STEP_UNITS = {"seconds": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "milliseconds": 1e-3}
STEP_TIME = re.compile(
    r"(?:(?:step|step_time|time|latency)[ _]*)?[\[(]?(seconds|s|milliseconds|ms|us)[\])]?"
)
"""Columns that have the time of a step."""

_UNLIKELY = 3.0
"""A factor that is this far from 1, either way, is reported as doubtful."""

_EXACT = 0.005
"""A median error below this needs no fit."""


@frozen
class Case:
    """One measurement: its subject, location and time."""

    label: str
    location: str
    measured_s: float


@frozen
class Sample:
    """A measurement with its predictions before and after the fit."""

    case: Case
    predicted_s: float
    fitted_s: float

    @property
    def error(self) -> float:
        """The relative error of the prediction before."""
        return self.predicted_s / self.case.measured_s - 1

    @property
    def error_after(self) -> float:
        """The relative error of the prediction with the written factors."""
        return self.fitted_s / self.case.measured_s - 1


@frozen
class FactorFit:
    """A factor on predicted times, with samples and notes.

    ``name`` is a key of a node's ``calibration``; ``factor`` multiplies the base's factor.
    """

    name: str
    factor: float
    samples: tuple[Sample, ...]
    notes: tuple[str, ...] = ()

    @property
    def median_error_before(self) -> float:
        """The median size of relative errors without the factors."""
        return median(abs(sample.error) for sample in self.samples)

    @property
    def median_error_after(self) -> float:
        """The median size of relative errors with the factors."""
        return median(abs(sample.error_after) for sample in self.samples)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The reasons to doubt the fit."""
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


def check_agreement(cases: Iterable[tuple[Hashable, Case]]) -> tuple[str, ...]:
    """Return notes on disagreeing measurements with the same key.

    Raises `MeasurementError`, naming both lines, if they contradict each other.
    """
    cases_of: dict[Hashable, list[Case]] = defaultdict(list)
    for key, case in cases:
        cases_of[key].append(case)
    notes: list[str] = []
    for same in cases_of.values():
        low = min(same, key=attrgetter("measured_s"))
        high = max(same, key=attrgetter("measured_s"))
        text = (
            f"{low.label} takes {format_time(low.measured_s)} here, but "
            f"{format_time(high.measured_s)} in {high.location}"
        )
        if high.measured_s > CONTRADICTION * low.measured_s:
            raise MeasurementError(
                text, location=low.location, hint="measure again, or drop the wrong line"
            )
        if high.measured_s > DISAGREEMENT * low.measured_s:
            notes.append(f"{low.location}: {text}")
    return tuple(notes)


def check_limits(case: Case, *, floor_s: float, expected_s: float, hint: str) -> None:
    """Raise `MeasurementError` for an impossible or unexpected time.

    It is below the floor, or far above the expected time.
    """
    if case.measured_s < floor_s:
        raise MeasurementError(
            f"{case.label} in {format_time(case.measured_s)} is below the physical floor of "
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


def worst(samples: Sequence[Sample]) -> list[Sample]:
    """Return the three samples that predictions miss most."""
    return sorted(samples, key=lambda sample: (-abs(sample.error), sample.case.location))[:3]


def timed_lines(
    path: Path,
    *,
    needed: Sequence[str],
    header: str,
    form: Pattern[str] = STEP_TIME,
    units: Mapping[str, float] = STEP_UNITS,
    renamed: Callable[[str], str] = str.lower,
    hint: str = "",
) -> list[tuple[Line, float]]:
    """Return a table's lines, each with its time in seconds.

    ``form`` matches the name of the column of times; its first group is a key of ``units``. By
    default the ``hint`` for a table without such a column is to write ``header``.
    """
    table = read_table(path, needed=needed, header=header, renamed=renamed, error=MeasurementError)
    column = table.column(form)
    if column is None:
        raise MeasurementError(
            "the header doesn't name one time with its unit",
            location=table.location,
            hint=hint or f"write {header}",
        )
    name, match = column
    lines = [(line, line.amount(name) * units[match[1]]) for line in table.lines]
    if not lines:
        raise MeasurementError("there is no measurement", location=str(path), hint="add lines")
    return lines


@contextmanager
def at_line(location: str) -> Generator[None]:
    """Prefix errors about a line's content with the line's location.

    Missing packages are no fault of the line's.

    >>> with at_line("steps.csv:2"):
    ...     raise MeasurementError("cannot be read", location="a.hlo", hint="check the path")
    Traceback (most recent call last):
    hespas.errors.MeasurementError: steps.csv:2: a.hlo: cannot be read; check the path
    """
    try:
        yield
    except ExtraMissingError:
        raise
    except HespasError as error:
        if error.location == location:
            raise
        message = (
            f"{error.location}: {error.marked_message}" if error.location else error.marked_message
        )
        kind = ToolError if isinstance(error, ToolError) else MeasurementError
        raise kind(message, location=location, hint=error.marked_hint) from error
