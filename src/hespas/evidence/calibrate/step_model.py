"""Steps as ``hespas run --method measured`` predicts them, on devices calibrated differently."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hespas.evidence.calibrate.steps import Workload
from hespas.hardware.device import Device, at_fastest
from hespas.hardware.system import System
from hespas.prediction import composition
from hespas.prediction.composition import Prepared
from hespas.prediction.options import (
    AS_GIVEN,
    EstimateOptions,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.price.cache import MemoryStore
from hespas.price.measured import Measured, make
from hespas.price.methods import EstimatorSpec
from hespas.price.ptx.kernels import KernelPricer
from hespas.program.program import Program
from hespas.tasks.build import estimated_tasks


def calibrated(base: Measured, device: Device) -> Measured:
    """Return a program's estimator for a device calibrated otherwise; kernels are read once."""
    estimator = make(EstimatorSpec(device=device))
    if isinstance(base.kernels, KernelPricer):
        estimator = replace(estimator, kernels=replace(base.kernels, device=device))
    return estimator if base.clock is None else estimator.at_clock(base.clock)


def at_clock_of(estimator: Measured, program: Program) -> Measured:
    """Return a program's estimator at the clock that its computation sustains."""
    options = PredictOptions(compile=AS_GIVEN, estimate=EstimateOptions(node=estimator.device))
    prepared = composition.divide(program, options)
    priced = composition.price(prepared, options, store=MemoryStore(), estimator=estimator)
    return estimator if priced.sustained is None else estimator.at_clock(priced.sustained.clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSteps:
    """Predicts steps on a system, None for programs that don't communicate.

    ``node`` is the device before it is calibrated. Each program is loaded and divided once, and its
    kernels are read once.
    """

    node: Device
    system: System | None
    prepared: dict[Workload, Prepared] = field(default_factory=dict[Workload, Prepared])
    estimators: dict[Workload, Measured] = field(default_factory=dict[Workload, Measured])

    def step_s(self, workload: Workload, device: Device) -> float:
        """Return how long a step takes on a device, communication included."""
        prepared, options = self._prepared(workload), self._options(workload)
        if workload not in self.estimators:
            spec = EstimatorSpec(device=device, kernels=prepared.graph.program.kernels)
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
        """Return how long its operations take at the device's peaks, launches free.

        Types whose rate isn't known are taken to be as fast as any.
        """
        options = PredictOptions(
            estimate=EstimateOptions(node=at_fastest(device), method="roofline")
        )
        estimates = composition.price(self._prepared(workload), options, store=MemoryStore())
        return estimates.total.without_launches_s

    def is_compiled(self, workload: Workload) -> bool:
        """Return whether the program's operations are kernels."""
        return self._prepared(workload).graph.program.is_scheduled

    def _options(self, workload: Workload) -> PredictOptions:
        return PredictOptions(
            program=ProgramOptions(file=workload.file, kernels=workload.kernels),
            compile=AS_GIVEN,
            estimate=EstimateOptions(node=self.node),
            network=NetworkOptions(system=self.system),
        )

    def _prepared(self, workload: Workload) -> Prepared:
        if workload not in self.prepared:
            self.prepared[workload] = composition.prepare(self._options(workload))
        return self.prepared[workload]
