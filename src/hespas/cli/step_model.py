"""Steps as ``hespas run --method measured`` predicts them, for calibration."""

from __future__ import annotations

from dataclasses import dataclass, field

from hespas.api import estimate, simulate, split, trace
from hespas.calibrate.calibrated import calibrated
from hespas.calibrate.steps import Workload
from hespas.cli.source import read_kernels
from hespas.errors import ConfigError
from hespas.estimate.cache import MemoryStore
from hespas.estimate.graph import estimate_graph
from hespas.estimate.methods import Wanted
from hespas.estimate.tables.method import Measured, make
from hespas.frontend.load import load_program
from hespas.hardware.device import Device, at_fastest
from hespas.hardware.fit import settled_program
from hespas.hardware.system import System
from hespas.program.devices import communication_ops
from hespas.program.known_kernels import with_kernels
from hespas.split.modules import RegionModules, region_modules
from hespas.split.regions import RegionGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSteps:
    """Predicts steps on a system, None for programs that don't communicate.

    Programs and their kernels are read once.
    """

    system: System | None
    graphs: dict[Workload, RegionGraph] = field(default_factory=dict[Workload, RegionGraph])
    modules: dict[Workload, RegionModules] = field(default_factory=dict[Workload, RegionModules])
    estimators: dict[Workload, Measured] = field(default_factory=dict[Workload, Measured])

    def step_s(self, workload: Workload, device: Device) -> float:
        """Return how long a step takes on a device, communication included."""
        graph = self._graph(workload)
        priced = calibrated(self._estimator(workload, device), device)
        estimates = estimate_graph(graph, self._modules(workload), priced, store=MemoryStore())
        if self.system is None or not graph.collective_regions:
            return estimates.total.time_s
        return simulate(trace(graph, estimates), self.system).step_time_s

    def floor_s(self, workload: Workload, device: Device) -> float:
        """Return how long its operations take at the device's peaks, launches free.

        Types whose rate isn't known are taken to be as fast as any.
        """
        found = estimate(self._graph(workload), at_fastest(device), method="roofline")
        return found.total.without_launches_s

    def is_compiled(self, workload: Workload) -> bool:
        """Tell whether the program's operations are kernels."""
        return self._graph(workload).program.is_scheduled

    def _estimator(self, workload: Workload, device: Device) -> Measured:
        if workload not in self.estimators:
            kernels = self._graph(workload).program.kernels
            self.estimators[workload] = make(Wanted(device=device, kernels=kernels))
        return self.estimators[workload]

    def _modules(self, workload: Workload) -> RegionModules:
        if workload not in self.modules:
            self.modules[workload] = region_modules(self._graph(workload))
        return self.modules[workload]

    def _graph(self, workload: Workload) -> RegionGraph:
        if workload not in self.graphs:
            self.graphs[workload] = self._read(workload)
        return self.graphs[workload]

    def _read(self, workload: Workload) -> RegionGraph:
        program = load_program(workload.file)
        if workload.kernels is not None:
            kernels = read_kernels(workload.kernels)
            program = with_kernels(program, kernels, location=str(workload.kernels))
        if self.system is None and any(True for _ in communication_ops(program)):
            message = "the workload communicates"
            raise ConfigError(message, location=str(workload.file), hint="give --system")
        return split(settled_program(program, devices=None, system=self.system))
