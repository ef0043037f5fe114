"""Measured step times: a CSV with the columns ``workload`` and ``seconds`` (or another unit)."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hespas.calibrate.samples import FactorFit, Sample, check_agreement
from hespas.config.files import read_text
from hespas.errors import MeasurementError
from hespas.units import format_time

_UNITS = {"seconds": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "milliseconds": 1e-3}
_TIME = re.compile(
    r"(?:(?:step|step_time|time|latency)[ _]*)?[\[(]?(seconds|s|milliseconds|ms|us)[\])]?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStep:
    """What hespas says of a step: its computation, and the communication that it waits for."""

    compute_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    workload: Path
    time_s: float
    place: str


Predict = Callable[[Path], PredictedStep]


def fit_steps(path: Path, predict: Predict) -> FactorFit:
    """Return one factor on all computation.

    A step is taken to be its computation times the factor, and exposed communication as it is.
    Workloads are paths as seen from the CSV. Raises `MeasurementError`, naming ``file:line``,
    for a header without the two columns, and for times that are no times, contradict each other,
    or are less than what communication alone takes.
    """
    steps = _steps(path)
    check_agreement(
        steps,
        key=lambda step: step.workload,
        time_s=lambda step: step.time_s,
        place=lambda step: step.place,
        name=lambda step: str(step.workload),
    )
    return FactorFit(name="all", samples=tuple([_sample(step, predict) for step in steps]))


def _sample(step: _Step, predict: Predict) -> Sample:
    predicted = predict(step.workload)
    computing_s = step.time_s - predicted.exposed_s
    if computing_s <= 0 or predicted.compute_s <= 0:
        raise MeasurementError(
            f"a step of {format_time(step.time_s)} leaves no time to compute: its communication "
            f"alone takes {format_time(predicted.exposed_s)}",
            place=step.place,
            mend="correct the unit in the header, or the system",
        )
    return Sample(
        label=step.workload.name,
        place=step.place,
        measured_s=computing_s,
        predicted_s=predicted.compute_s,
    )


def _steps(path: Path) -> list[_Step]:
    lines = list(csv.reader(read_text(path).splitlines()))
    header = [name.strip().lower() for name in lines[0]] if lines else []
    times = [(at, match) for at, name in enumerate(header) if (match := _TIME.fullmatch(name))]
    if "workload" not in header or len(times) != 1:
        raise MeasurementError(
            "the header doesn't name a workload and one time with its unit",
            place=f"{path}:1",
            mend="write workload,seconds",
        )
    at, match = times[0]
    steps = [
        _Step(
            workload=path.parent / line[header.index("workload")].strip(),
            time_s=_time(line[at], f"{path}:{number}") * _UNITS[match[1]],
            place=f"{path}:{number}",
        )
        for number, line in enumerate(lines[1:], start=2)
        if len(line) == len(header)
    ]
    if not steps or len(steps) != sum(1 for line in lines[1:] if line):
        message = "it has no lines, or some without all columns"
        raise MeasurementError(message, place=str(path), mend="write workload,seconds")
    return steps


def _time(text: str, place: str) -> float:
    try:
        time = float(text)
    except ValueError:
        time = 0.0
    if not 0 < time < float("inf"):
        raise MeasurementError(f"{text.strip()!r} is no time", place=place)
    return time
