"""Measured step times: a CSV with the columns ``workload`` and ``seconds`` (or another unit).

A column ``kernels`` may name the file of a compiled program's kernels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hespas.base.units import format_time
from hespas.errors import MeasurementError
from hespas.evidence.calibrate.factors import SMALLEST_FACTOR, Group, scaled
from hespas.evidence.calibrate.lines import at_line, check_columns, csv_lines, time_of
from hespas.evidence.calibrate.samples import Case, check_agreement, check_limits
from hespas.hardware.device import Device

_UNITS = {"seconds": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "milliseconds": 1e-3}
_TIME = re.compile(
    r"(?:(?:step|step_time|time|latency)[ _]*)?[\[(]?(seconds|s|milliseconds|ms|us)[\])]?"
)
_HEADER = "workload,seconds"
_NAME = "all"
_HINT = "correct the unit in the header, or give the program, node and system that were measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A program's file, and that of the kernels which a compiler wrote for it, if known."""

    file: Path
    kernels: Path | None = None


class StepModel(Protocol):
    """What hespas predicts for a workload's step."""

    def step_s(self, workload: Workload, device: Device) -> float:
        """Return how long a step takes on a device, communication included."""
        ...

    def floor_s(self, workload: Workload, device: Device) -> float:
        """Return how long its operations take at the device's peaks."""
        ...

    def is_compiled(self, workload: Workload) -> bool:
        """Return whether the program's operations are kernels."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    workload: Workload
    time_s: float
    location: str

    @property
    def case(self) -> Case:
        """What was measured, where it stands, and its time."""
        return Case(label=self.workload.file.name, location=self.location, measured_s=self.time_s)


def step_group(path: Path, model: StepModel, device: Device) -> Group:
    """Return the steps of a file, for one factor on all computation.

    Workloads, and kernels in a column of their own, are paths as seen from the CSV. Raises
    `MeasurementError`, naming ``file:line``, for a header without the two columns, for workloads
    that can't be predicted, and for times that are no times, contradict each other, lie below what
    the device's peaks allow or what no factor scales takes alone, or far above what is expected.
    """
    steps = _steps(path)
    notes = check_agreement(
        steps,
        key=lambda step: step.workload.file,
        time_s=lambda step: step.time_s,
        location=lambda step: step.location,
        name=lambda step: str(step.workload.file),
    )
    for step in steps:
        with at_line(step.location):
            _check(step, model, device)

    def predict(calibrated: Device) -> list[float]:
        return [model.step_s(step.workload, calibrated) for step in steps]

    return Group(
        name=_NAME,
        cases=tuple(step.case for step in steps),
        predict=predict,
        notes=(*notes, *_method_notes(steps, model)),
    )


def _check(step: _Step, model: StepModel, device: Device) -> None:
    floor_s = model.floor_s(step.workload, device)
    if not model.is_compiled(step.workload) and step.time_s < floor_s:
        raise MeasurementError(
            f"{step.case.label} in {format_time(step.time_s)} is less than the "
            f"{format_time(floor_s)} that its operations take at the peaks, each by itself: the "
            "program isn't compiled, so that which of them run as one kernel is not known",
            location=step.location,
            hint="give the compiled program (hespas compile), or correct the unit in the header",
        )
    expected_s = model.step_s(step.workload, device)
    check_limits(step.case, floor_s=floor_s, expected_s=expected_s, hint=_HINT)
    if step.time_s >= expected_s:
        return
    least_s = model.step_s(step.workload, scaled(device, _NAME, SMALLEST_FACTOR))
    if step.time_s <= least_s:
        raise MeasurementError(
            f"a step of {format_time(step.time_s)} leaves no time to compute: launches, "
            f"communication and the peaks alone take {format_time(least_s)}",
            location=step.location,
            hint=_HINT,
        )


def _method_notes(steps: list[_Step], model: StepModel) -> list[str]:
    return [
        f"{step.location}: {step.case.label} is not compiled: hespas run prices it by the "
        "roofline, which knows no calibration, unless --method measured is given"
        for step in steps
        if not model.is_compiled(step.workload)
    ]


def _steps(path: Path) -> list[_Step]:
    head, *lines = csv_lines(path, header=_HEADER)
    header = [name.lower() for name in head.cells]
    check_columns(header, head.location)
    times = [(at, match) for at, name in enumerate(header) if (match := _TIME.fullmatch(name))]
    if "workload" not in header or len(times) != 1:
        raise MeasurementError(
            "the header doesn't name a workload and one time with its unit",
            location=head.location,
            hint=f"write {_HEADER}",
        )
    if not lines:
        raise MeasurementError("there is no measurement", location=str(path), hint="add lines")
    at, match = times[0]
    steps: list[_Step] = []
    for line in lines:
        if len(line.cells) != len(header):
            message = f"{len(line.cells)} columns where the header has {len(header)}"
            raise MeasurementError(message, location=line.location)
        cells = dict(zip(header, line.cells, strict=True))
        kernels = cells.get("kernels")
        workload = Workload(
            file=path.parent / cells["workload"],
            kernels=path.parent / kernels if kernels else None,
        )
        time_s = time_of(line.cells[at], unit_s=_UNITS[match[1]], location=line.location)
        steps.append(_Step(workload=workload, time_s=time_s, location=line.location))
    return steps
