"""Read measured step times from a CSV.

The columns are ``workload`` and ``seconds``, or a time with another unit. A column ``kernels`` may
name the file of a compiled program's kernels.
"""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path

from hespas.base.fields import overridden
from hespas.base.frozen import frozen
from hespas.base.units import format_time
from hespas.errors import MeasurementError
from hespas.evidence.calibrate.factors import SMALLEST_FACTOR, Group, scaled
from hespas.evidence.calibrate.samples import (
    Case,
    at_line,
    check_agreement,
    check_limits,
    timed_lines,
)
from hespas.hardware.device import Device, at_fastest
from hespas.hardware.system import System
from hespas.prediction import composition
from hespas.prediction.composition import Prepared
from hespas.prediction.options import AS_GIVEN, PredictOptions
from hespas.price.cache import MemoryStore
from hespas.price.kernel import runs_in_graphs
from hespas.price.measured import Measured, make
from hespas.price.methods import EstimatorSpec
from hespas.price.ptx.kernels import KernelPricer
from hespas.program.program import Program
from hespas.tasks.build import estimated_tasks

_HEADER = "workload,seconds"
_NAME = "all"
_HINT = "correct the unit in the header, or give the program, node and system that were measured"


@frozen
class Workload:
    """A program's file, and that of its kernels, if known."""

    file: Path
    kernels: Path | None = None


@frozen
class _Step:
    workload: Workload
    time_s: float
    location: str

    @property
    def case(self) -> Case:
        """The measured program with its location and time."""
        return Case(label=self.workload.file.name, location=self.location, measured_s=self.time_s)


def step_group(path: Path, model: PipelineSteps, device: Device) -> Group:
    """Return the steps of a file, as one group.

    Workloads, and kernels in a column of their own, are paths relative to the CSV. Raises
    `MeasurementError`, naming ``file:line``, for a header without the two columns, for workloads
    that can't be predicted, and for times that are no times, contradict each other, lie below the
    device's peaks or the part of the time that no factor scales, or lie far above the expected
    time.
    """
    steps = _steps(path)
    notes = check_agreement([
        (step.workload.file, replace(step.case, label=str(step.workload.file))) for step in steps
    ])  # fmt: skip
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


def _check(step: _Step, model: PipelineSteps, device: Device) -> None:
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


def _method_notes(steps: list[_Step], model: PipelineSteps) -> list[str]:
    return [
        f"{step.location}: {step.case.label} is not compiled: hespas run prices it by the "
        "roofline, which knows no calibration, unless --method measured is given"
        for step in steps
        if not model.is_compiled(step.workload)
    ]


def _steps(path: Path) -> list[_Step]:
    steps: list[_Step] = []
    for line, time_s in timed_lines(path, needed=("workload",), header=_HEADER):
        kernels = line.text("kernels")
        workload = Workload(
            file=path.parent / line.text("workload"),
            kernels=path.parent / kernels if kernels else None,
        )
        steps.append(_Step(workload=workload, time_s=time_s, location=line.location))
    return steps


def calibrated(base: Measured, device: Device) -> Measured:
    """Return a program's estimator for another calibration."""
    estimator = make(EstimatorSpec(device=device))
    if isinstance(base.kernels, KernelPricer):
        estimator = replace(estimator, kernels=replace(base.kernels, device=device))
    return estimator if base.clock is None else estimator.at_clock(base.clock)


def at_clock_of(estimator: Measured, program: Program) -> Measured:
    """Return a program's estimator at its sustained clock."""
    options = overridden(PredictOptions(compile=AS_GIVEN), {"node": estimator.device})
    prepared = composition.divide(program, options)
    priced = composition.price(prepared, options, store=MemoryStore(), estimator=estimator)
    return estimator if priced.sustained is None else estimator.at_clock(priced.sustained.clock)


@frozen
class PipelineSteps:
    """Predicts steps, on a system if programs communicate.

    ``node`` is the device before it is calibrated. Each program is loaded and divided once, and its
    kernels are read once.
    """

    node: Device
    system: System | None
    prepared: dict[Workload, Prepared] = field(default_factory=dict[Workload, Prepared])
    estimators: dict[Workload, Measured] = field(default_factory=dict[Workload, Measured])

    def step_s(self, workload: Workload, device: Device) -> float:
        """Return a step's time on a device, communication included."""
        prepared, options = self._prepared(workload), self._options(workload)
        if workload not in self.estimators:
            program = prepared.graph.program
            in_graphs = runs_in_graphs(program)
            spec = EstimatorSpec(device=device, kernels=program.kernels, in_graphs=in_graphs)
            self.estimators[workload] = make(spec)
        estimates = composition.price(
            prepared,
            options,
            store=MemoryStore(),
            estimator=calibrated(self.estimators[workload], device),
        )
        if len(prepared.graph.compute_regions) == len(prepared.graph.regions):
            return estimates.total.time_s
        tasks = estimated_tasks(
            prepared.graph,
            estimates,
            host_bandwidth_bytes_per_s=device.host_bandwidth_bytes_per_s,
        )
        timeline = composition.simulate(prepared, tasks, options.network)
        return estimates.total.time_s if timeline is None else timeline.step_time_s

    def floor_s(self, workload: Workload, device: Device) -> float:
        """Return the time of its operations at peaks, launches free.

        Types of unknown rate count as the fastest.
        """
        fastest = {"node": at_fastest(device), "method": "roofline"}
        options = overridden(PredictOptions(), fastest)
        estimates = composition.price(self._prepared(workload), options, store=MemoryStore())
        return estimates.total.without_launches_s

    def is_compiled(self, workload: Workload) -> bool:
        """Return whether the program's operations are kernels."""
        return self._prepared(workload).graph.program.is_scheduled

    def _options(self, workload: Workload) -> PredictOptions:
        given = {"file": workload.file, "kernels": workload.kernels}
        return overridden(PredictOptions(), {**given, "node": self.node, "system": self.system})

    def _prepared(self, workload: Workload) -> Prepared:
        if workload not in self.prepared:
            self.prepared[workload] = composition.prepare(self._options(workload))
        return self.prepared[workload]
