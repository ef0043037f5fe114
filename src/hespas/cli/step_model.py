"""Steps as ``hespas run --method measured`` predicts them, for calibration."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from hespas.api import estimate, simulate, split, trace
from hespas.errors import ConfigError
from hespas.estimate.launches import LAUNCH
from hespas.frontend.partitioned import load_program_per_device
from hespas.hardware.device import Device
from hespas.hardware.fit import settled_program
from hespas.hardware.system import System
from hespas.program.devices import communication_ops
from hespas.split.regions import RegionGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSteps:
    """Predicts steps on a system, None for programs that don't communicate.

    Programs are read once.
    """

    system: System | None
    graphs: dict[Path, RegionGraph] = field(default_factory=dict[Path, RegionGraph])

    def step_s(self, workload: Path, device: Device) -> float:
        """Return how long a step takes on a device, communication included."""
        graph = self._graph(workload)
        estimates = estimate(graph, device, method="measured")
        if self.system is None or not graph.collective_regions:
            return estimates.total.time_s
        return simulate(trace(graph, estimates), self.system).step_time_s

    def floor_s(self, workload: Path, device: Device) -> float:
        """Return how long its operations take at the device's peaks, launches free.

        Types whose rate isn't known are taken to be as fast as any.
        """
        fastest = max(device.peak_flops, *device.per_datatype_flops.values())
        ideal = replace(device, peak_flops=fastest)
        per_op = estimate(self._graph(workload), ideal, method="roofline").total.per_op
        return sum(op.time_s for kind, op in per_op.items() if kind != LAUNCH)

    def is_compiled(self, workload: Path) -> bool:
        """Tell whether the program's operations are kernels."""
        return self._graph(workload).program.is_scheduled

    def _graph(self, workload: Path) -> RegionGraph:
        if workload not in self.graphs:
            self.graphs[workload] = self._read(workload)
        return self.graphs[workload]

    def _read(self, workload: Path) -> RegionGraph:
        program = load_program_per_device(workload)
        if self.system is None and any(True for _ in communication_ops(program)):
            message = "the workload communicates"
            raise ConfigError(message, place=str(workload), mend="give --system")
        return split(settled_program(program, devices=None, system=self.system))
