"""The prediction of a program's step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_S, format_quantity, format_time
from hespas.compile.options import SLOP_FLAG
from hespas.frontend.load import PARTITIONED
from hespas.hardware.device import Device
from hespas.hardware.interconnect import Shape, dimension_of
from hespas.hardware.system import System, bare_system
from hespas.prediction.options import PredictOptions
from hespas.price.driver import Step
from hespas.price.graph import GraphEstimate, estimator_assumptions
from hespas.program.assumption import (
    OF_COMMUNICATION,
    OF_COMPUTATION,
    UNKNOWN,
    Assumed,
    Subject,
    assumed,
)
from hespas.program.program import Fidelity, Op
from hespas.simulate.options import ContentionModel
from hespas.simulate.timeline import Timeline
from hespas.split.modules import RegionModules
from hespas.split.regions import Compute, RegionGraph
from hespas.tasks.build import region_name
from hespas.tasks.graph import MemoryTask, TaskGraph, short_devices_text

if TYPE_CHECKING:
    from hespas.memory.usage import MemoryUse

_NOTABLE_WAIT = 0.001
"""Waits of a smaller part of the step are not reported."""
NETWORK_ASSUMPTION = (
    "network: a device communicates in program order, one collective at a time, and concurrent "
    "transfers do not slow each other (ASTRA-sim's congestion-unaware model)"
)
CONGESTION_ASSUMPTION = (
    "network: a device communicates in program order, one collective at a time, and a message has "
    "a link to itself while others wait (ASTRA-sim's congestion-aware model)"
)
_NETWORK_ASSUMPTIONS = {
    ContentionModel.CONGESTION_UNAWARE: NETWORK_ASSUMPTION,
    ContentionModel.CONGESTION_AWARE: CONGESTION_ASSUMPTION,
}


class StepKind(Enum):
    """The kind of a step, if known."""

    TRAINING = "training"
    TRAINING_WITH_EXPERTS = "training with experts"
    INFERENCE = "inference"
    UNKNOWN = "unknown"


@frozen
class StepWork:
    """The inputs and model FLOPs of a step.

    They are those of all devices, None where they are not known; ``sample_name`` is their plural.
    """

    kind: StepKind = StepKind.UNKNOWN
    tokens: int | None = None
    samples: int | None = None
    sample_name: str = "samples"
    model_flops: float | None = None


NO_WORK = StepWork()
"""The work of a step whose input is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction:
    """One step of a program on a system, in figures.

    ``timeline`` is None without a system. FLOPs, energy and memory are those of one device, which
    is None where the method reads none. ``modules`` are the distinct regions, ``steps`` returns a
    region's operations with their prices, None where they are measured whole. ``mesh`` is major
    first. ``part_warnings`` say where the system is made for another part than the device.
    ``stages`` are those of a recorded pipeline: figures are then of the stage that ends last, and
    memory is that of the fullest.
    """

    graph: RegionGraph
    estimates: GraphEstimate
    tasks: TaskGraph
    system: System | None
    timeline: Timeline | None
    memory: MemoryUse
    options: PredictOptions
    modules: RegionModules
    steps: Callable[[Compute], tuple[Step, ...] | None]
    device: Device | None = None
    device_name: str = ""
    mesh: tuple[tuple[str, int], ...] = ()
    work: StepWork = NO_WORK
    part_warnings: tuple[str, ...] = ()
    stages: tuple[RecordedStage, ...] = ()

    @property
    def name(self) -> str:
        """The program's name, without where it lies; a script's has its words."""
        file, ending, words = self.graph.program.source.partition(".py ")
        return Path(file).name.removesuffix(PARTITIONED) + ending + words

    @property
    def peak_memory_bytes(self) -> int:
        """The memory that a device needs."""
        return self.memory.peak_bytes

    @property
    def host_memory_bytes(self) -> int:
        """What a device needs of its host's memory."""
        return self.memory.host_bytes

    @property
    def memory_capacity_bytes(self) -> int | None:
        """The memory of a device, if known."""
        return None if self.device is None else self.device.memory_capacity_bytes

    @property
    def fidelity(self) -> Fidelity:
        """The kind of operations that were priced, such as ``compiled``."""
        return self.graph.program.fidelity

    @property
    def devices(self) -> int:
        """The number of devices that run the program."""
        return self.tasks.device_count

    @property
    def step_time_s(self) -> float:
        """The duration of the step on the slowest device."""
        return self.compute_s if self.timeline is None else self.timeline.step_time_s

    @property
    def compute_s(self) -> float:
        """The computation of a device as specified."""
        return self.estimates.total.time_s

    @property
    def communication_s(self) -> float:
        """The slowest device's time with communication under way, no wait for stages."""
        if self.timeline is None:
            return 0.0
        specified, waits_ps = self.timeline.specified, self._stage_wait_ps
        if not waits_ps:
            return specified.communication_ps / PS_PER_S
        exposed_ps = specified.exposed_communication_ps - waits_ps - specified.slowed_ps
        return (self.timeline.slowest.overlap_ps + exposed_ps) / PS_PER_S

    @property
    def exposed_communication_s(self) -> float:
        """The slowest device's idle time that is no wait for stages, devices as specified."""
        if self.timeline is None:
            return 0.0
        exposed_ps = self.timeline.specified.exposed_communication_ps
        return (exposed_ps - self._stage_wait_ps) / PS_PER_S

    @property
    def stage_wait_s(self) -> float:
        """The time that a recorded stage of a pipeline waits for others."""
        return self._stage_wait_ps / PS_PER_S

    @property
    def _stage_wait_ps(self) -> int:
        return self.timeline.slowest.without_collectives_ps if self.stages and self.timeline else 0

    @property
    def host_transfer_s(self) -> float:
        """The slowest device's time with host transfers under way."""
        return 0.0 if self.timeline is None else self.timeline.specified.host_transfer_ps / PS_PER_S

    @property
    def exposed_host_transfer_s(self) -> float:
        """The host-transfer time without computation or communication."""
        if self.timeline is None:
            return 0.0
        return self.timeline.specified.exposed_host_transfer_ps / PS_PER_S

    @property
    def slowed_s(self) -> float:
        """The time by which collectives slow computation."""
        return 0.0 if self.timeline is None else self.timeline.specified.slowed_ps / PS_PER_S

    @property
    def launch_wait_s(self) -> float:
        """The time that device waits for the host's launches."""
        return 0.0 if self.timeline is None else self.timeline.specified.launch_wait_ps / PS_PER_S

    @property
    def host_transfer_bytes(self) -> int:
        """The bytes between one device and its host."""
        return sum(transfer.traffic.total_bytes for transfer in self.graph.host_transfers)

    @property
    def straggler_s(self) -> float:
        """The time that imperfect devices and jitter add."""
        return 0.0 if self.timeline is None else self.timeline.straggler_ps / PS_PER_S

    @property
    def assumed(self) -> tuple[Assumed, ...]:
        """The distinct assumptions, and what each decides."""
        sources: tuple[tuple[Iterable[str], Subject], ...] = (
            (estimator_assumptions(self.estimates), OF_COMPUTATION),
            (self._given_rates(), OF_COMPUTATION),
            (self._network_assumptions(), OF_COMMUNICATION),
            (self._host_assumptions(), UNKNOWN),
            (_overlap_assumptions(self.graph), OF_COMMUNICATION),
            (self.graph.assumptions, UNKNOWN),
            (self.estimates.total.notes, UNKNOWN),
            (_dropped_collectives(self.graph, self.tasks), OF_COMMUNICATION),
        )
        distinct: dict[str, Assumed] = {}
        for texts, subject in sources:
            for text in texts:
                distinct.setdefault(text, assumed(text, subject))
        return tuple(distinct.values())

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The sentences of the assumptions."""
        return tuple(assumption.text for assumption in self.assumed)

    def _given_rates(self) -> Iterator[str]:
        estimate = self.options.estimate
        if estimate.node is not None and estimate.memory_bandwidth is not None:
            rate = format_quantity(estimate.memory_bandwidth, "B/s")
            yield f"device: the memory bandwidth of {self.device_name} is {rate}, as given"

    def _host_assumptions(self) -> tuple[str, ...]:
        tasks = (task for task in self.tasks.tasks if isinstance(task, MemoryTask))
        task = next((task for task in tasks if task.duration_ps), None)
        if task is None or task.duration_ps is None:
            return ()
        rate = format_quantity(task.size_bytes * PS_PER_S / task.duration_ps, "B/s")
        listed = (
            f"host: each device has a link of its own to its host, with {rate} in each direction; "
            "transfers of one direction run one at a time, beside computation and communication"
        )
        return (listed,)

    def _network_assumptions(self) -> tuple[str, ...]:
        if self.timeline is None or self.system is None:
            return ()
        contention = self.options.network.network or ContentionModel.CONGESTION_UNAWARE
        network = self.timeline.assumptions or (_NETWORK_ASSUMPTIONS[contention],)
        return (*self.system.assumptions, *self.timeline.imperfections, *network)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about the program, the device and the system."""
        own = (*self.estimates.total.warnings, *self.part_warnings)
        return (
            *own,
            *self._memory_warnings(),
            *self.overlap_warnings,
            *self._waiting_warnings(),
            *self.graph.program.warnings,
        )

    def _waiting_warnings(self) -> Iterator[str]:
        """Yield a warning where unequal links make devices wait."""
        timeline = self.timeline
        if timeline is None or timeline.as_specified is not None or not timeline.imperfections:
            return
        slowest = timeline.slowest
        longest_ps = (
            max(device_class.waited_ps for device_class in timeline.classes) - slowest.waited_ps
        )
        if longest_ps > _NOTABLE_WAIT * timeline.finish_ps:
            yield (
                f"other devices wait up to {format_time(longest_ps / PS_PER_S)} of the step for "
                f"{short_devices_text(slowest.devices)}, whose communication is shown"
            )

    @property
    def gave_up_overlap(self) -> bool:
        """Whether XLA's memory limit exposes communication."""
        limit = self.graph.program.overlap
        exposed_s = self.exposed_communication_s
        return limit is not None and limit.is_given_up and exposed_s > _WAITS * self.step_time_s

    @property
    def overlap_warnings(self) -> tuple[str, ...]:
        """The warnings about XLA's memory limit of overlap."""
        limit = self.graph.program.overlap
        if limit is None or not self.gave_up_overlap:
            return ()
        needed, has = (format_quantity(n, "B") for n in (limit.needed_bytes, limit.limit_bytes))
        remedy = (
            f"{SLOP_FLAG}={limit.full_factor} lets it fill the device, which hespas explain tries"
            if limit.full_factor
            else "no value of the flag allows it more of this device"
        )
        text = (
            "XLA's scheduler gives up overlap, so that collectives run by themselves: it counts "
            f"{needed} of temporaries, and its limit is {has} ({SLOP_FLAG}={limit.factor}); "
            f"{remedy}"
        )
        return (text,)

    def _memory_warnings(self) -> Iterator[str]:
        peak_bytes, capacity_bytes = self.memory.peak_bytes, self.memory_capacity_bytes
        if capacity_bytes is None or peak_bytes <= capacity_bytes:
            return
        needs = format_quantity(peak_bytes, "B")
        has = format_quantity(capacity_bytes, "B")
        unfused = "" if self.graph.program.is_scheduled else "; a compiler that fuses needs less"
        yield f"the step needs {needs} of device memory, and the device has {has}{unfused}"


@frozen
class RecordedStage:
    """A stage of a recorded pipeline: its devices, and the prediction without a timeline."""

    devices: tuple[int, ...]
    prediction: Prediction


_WAITS = 0.01
"""The part of a step from which exposed communication is worth a warning."""


def _overlap_assumptions(graph: RegionGraph) -> Iterator[str]:
    limit = graph.program.overlap
    if limit is not None and not limit.is_given_up:
        yield (
            f"overlap: XLA's scheduler runs with {SLOP_FLAG}={limit.full_factor}: work beside "
            f"collectives exceeds its limit with {limit.factor}, "
            f"{format_quantity(limit.limit_bytes, 'B')}"
        )


def _dropped_collectives(graph: RegionGraph, tasks: TaskGraph) -> Iterator[str]:
    names = {task.name for task in tasks.tasks}
    dropped = [
        region.operation
        for region in graph.collective_regions
        if region_name(region) not in names and f"{region_name(region)}_send" not in names
    ]
    if dropped:
        first: Op = dropped[0]
        yield (
            f"{len(dropped)} collectives among single devices, or of nothing, take no time "
            f"(first: {first.location})"
        )


def computation_alone(tasks: TaskGraph) -> Timeline:
    """Schedule a program without communication; no system is needed."""
    # Few programs run alone: the others need not wait for it.
    from hespas.simulate.astra.simulate import simulate  # noqa: PLC0415

    dimension = dimension_of(Shape.FULLY_CONNECTED, tasks.device_count, 1e9, 0.0)
    unused = bare_system("devices without a network", dimensions=(dimension,))
    return simulate(tasks, unused, network=ContentionModel.CONGESTION_UNAWARE)
