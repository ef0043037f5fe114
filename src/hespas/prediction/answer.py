"""The prediction of a pipeline of several programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_S, format_quantity
from hespas.errors import spelled
from hespas.hardware.device import Device
from hespas.hardware.system import System
from hespas.models.model import Part
from hespas.prediction.cutting import STATES, Cut, remedy, states_held
from hespas.prediction.options import PredictOptions
from hespas.prediction.passes import Footprint, PassCost, Spent
from hespas.prediction.result import Prediction, StepWork
from hespas.program.assumption import Assumed, assumed
from hespas.program.program import Fidelity
from hespas.tasks.pipelining.timing import Interval, Times


@frozen
class PricedProgram:
    """Both passes and the optimiser's step, ``times`` in a part."""

    passes: Prediction
    update: Prediction
    times: int


@frozen
class PartCost:
    """The costs of a model's part, and its predictions.

    ``update`` is the time of the optimiser's step, ``footprint`` the memory of a device.
    ``accumulation_ps`` of a micro-batch's passes adds gradients to their sums, in no program.
    ``programs`` are one of the whole part, or those of its layers.
    """

    passes: PassCost
    update: Spent
    footprint: Footprint
    programs: tuple[PricedProgram, ...]
    accumulation_ps: int = 0


@frozen
class StageTimes:
    """What one stage does beside its passes, in ps.

    ``gathers`` of weights and ``sums`` of gradients have a name, with its start and end; ``update``
    is the optimiser's step.
    """

    gathers: tuple[tuple[str, Interval], ...]
    sums: tuple[tuple[str, Interval], ...]
    update: Interval


@dataclass(frozen=True, kw_only=True, repr=False)
class PipelinePrediction:
    """One step of a pipeline of several programs.

    ``times`` says when each pass runs, ``stages`` what stands around the passes, ``costs`` what the
    parts take. FLOPs and energy are those of a device of the stage that computes longest.
    """

    cut: Cut
    costs: Mapping[Part, PartCost]
    times: Times
    stages: tuple[StageTimes, ...]
    memories: tuple[Footprint, ...]
    message_ps: int
    message_bytes: int
    device: Device | None
    device_name: str
    notes: tuple[str, ...]
    part_warnings: tuple[str, ...] = ()

    straggler_s: ClassVar[float] = 0.0
    """Devices of a pipeline are as specified."""

    @property
    def name(self) -> str:
        """The model's name."""
        return self.cut.source.name

    @property
    def options(self) -> PredictOptions:
        """All options of the prediction."""
        return self.cut.options

    @property
    def system(self) -> System:
        """The system that runs it."""
        return self.cut.system

    @property
    def work(self) -> StepWork:
        """What a step takes in, on all devices."""
        return self.cut.work

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.cut.mesh.device_count

    @property
    def mesh(self) -> tuple[tuple[str, int], ...]:
        """The axes of the mesh, farthest apart first."""
        return self.cut.mesh.axes

    @property
    def fidelity(self) -> Fidelity:
        """What was priced: ``compiled``, ``fused``, ``library`` or ``exported`` operations."""
        return next(self._predictions()).fidelity

    @cached_property
    def finish_ps(self) -> int:
        """The end of the last stage's optimiser step."""
        return max(stage.update[1] for stage in self.stages)

    @property
    def step_time_s(self) -> float:
        """The duration of the step: computation and exposed time."""
        return self.finish_ps / PS_PER_S

    @cached_property
    def busiest(self) -> int:
        """The stage that computes longest."""
        return max(range(self.cut.stages), key=lambda stage: (self.spent(stage).compute_ps, -stage))

    def spent(self, stage: int) -> Spent:
        """Return the times of a stage's passes and optimiser step."""
        total = Spent()
        for chunk, part in enumerate(self.cut.parts_of(stage)):
            total += self.passes_of(stage, chunk) + self.costs[part].update
        return total

    def passes_of(self, stage: int, chunk: int) -> Spent:
        """Return a chunk's pass times, less what other passes hide."""
        passes = self.costs[self.cut.parts_of(stage)[chunk]].passes
        per_micro_batch = passes.forward + passes.backward + passes.weights
        hidden = sum(
            hidden_ps
            for action, hidden_ps in self.times.hidden_ps[stage].items()
            if action.chunk == chunk
        )
        return per_micro_batch.times(self.cut.schedule.micro_batches).less(
            Spent(exchange_ps=hidden)
        )

    @property
    def compute_s(self) -> float:
        """The time that the stage that computes longest computes."""
        return self.spent(self.busiest).compute_ps / PS_PER_S

    @property
    def accumulation_s(self) -> float:
        """The time in which it adds gradients to their sums, of its computation."""
        costs = [self.costs[part] for part in self.cut.parts_of(self.busiest)]
        each_ps = sum(cost.accumulation_ps for cost in costs)
        return each_ps * self.cut.schedule.micro_batches / PS_PER_S

    @property
    def _exposed_ps(self) -> int:
        stage = self.busiest
        around_ps = self.times.held_ps[stage] + self.late_ps(stage) + self.norm_ps
        return self.spent(stage).communication_ps + around_ps

    @property
    def exposed_communication_s(self) -> float:
        """The time in which communication holds it up, in its passes and around them."""
        return self._exposed_ps / PS_PER_S

    @property
    def stage_wait_s(self) -> float:
        """The time in which it waits for other stages."""
        spent = self.spent(self.busiest)
        others_ps = spent.compute_ps + spent.host_ps + spent.launch_ps
        return (self.finish_ps - others_ps - self._exposed_ps) / PS_PER_S

    @property
    def exposed_host_transfer_s(self) -> float:
        """The time in which its passes wait for host-memory transfers."""
        return self.spent(self.busiest).host_ps / PS_PER_S

    @property
    def slowed_s(self) -> float:
        """What its computation takes longer beside collectives, of exposed communication."""
        return self.spent(self.busiest).slowed_ps / PS_PER_S

    @property
    def launch_wait_s(self) -> float:
        """The time its passes wait for the host's launches."""
        return self.spent(self.busiest).launch_ps / PS_PER_S

    @property
    def bubble(self) -> float:
        """The stages' idle share before the last pass."""
        return self.times.bubble

    def ends_ps(self, stage: int) -> int:
        """Return when the last pass of a stage ends."""
        return max(end for _, end in self.times.passes[stage].values())

    def late_ps(self, stage: int) -> int:
        """Return how long a stage sums gradients after its last pass."""
        last_ps = self.ends_ps(stage)
        return sum(max(0, end - max(start, last_ps)) for _, (start, end) in self.stages[stage].sums)

    @property
    def norm_ps(self) -> int:
        """How long all devices sum the norm of gradients, at the end."""
        sums = (end for stage in self.stages for _, (_, end) in stage.sums)
        return self.stages[0].update[0] - max([self.times.finish_ps, *sums])

    def waiting_ps(self, stage: int) -> int:
        """Return how long a stage waits before its last pass."""
        return self.ends_ps(stage) - self.times.busy_ps(stage)

    @property
    def memory_capacity_bytes(self) -> int | None:
        """The memory of a device, if known."""
        return None if self.device is None else self.device.memory_capacity_bytes

    @property
    def peak_memory_bytes(self) -> int:
        """The most device memory that a stage needs."""
        return max(memory.peak_bytes for memory in self.memories)

    @property
    def host_memory_bytes(self) -> int:
        """The most host memory that a stage needs."""
        return max(memory.host_bytes for memory in self.memories)

    @property
    def checkpoint_bytes(self) -> int:
        """All stages' weights and moments, each held once along ``data``."""
        shards = self.devices // self.cut.stages // self.cut.mesh.size("data")
        state_bytes = shards * sum(memory.state_bytes for memory in self.memories)
        return state_bytes * STATES // states_held(self.cut)

    @property
    def assumed(self) -> tuple[Assumed, ...]:
        """The distinct assumptions, and what each decides."""
        of_parts = (
            assumption for prediction in self._predictions() for assumption in prediction.assumed
        )
        distinct: dict[str, Assumed] = {}
        for assumption in (*map(assumed, self.notes), *of_parts):
            distinct.setdefault(assumption.text, assumption)
        return tuple(distinct.values())

    def _predictions(self) -> Iterator[Prediction]:
        for cost in self.costs.values():
            for program in cost.programs:
                yield from (program.passes, program.update)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The sentences of the assumptions."""
        return tuple(assumption.text for assumption in self.assumed)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The parts' warnings, and stages that do not fit."""
        of_parts = (
            text
            for cost in self.costs.values()
            for program in cost.programs
            for text in program.passes.estimates.total.warnings
        )
        overlap = (text for part in self._predictions() for text in part.overlap_warnings)
        listed = [*of_parts, *self.part_warnings, *self._too_large(), *overlap]
        return tuple(dict.fromkeys(listed))

    def _too_large(self) -> Iterator[str]:
        """Say which stages don't fit, and a remedy."""
        capacity = self.memory_capacity_bytes
        if capacity is None:
            return
        large = [item for item in enumerate(self.memories) if item[1].peak_bytes > capacity]
        if not large:
            return
        stage, memory = max(large, key=lambda item: item[1].peak_bytes)
        smaller = f", and {len(large) - 1} other stages lack less" if len(large) > 1 else ""
        # A warning names options as models do; the command line spells those of errors.
        hint = spelled(remedy(self.cut, memory, capacity), str)
        yield (
            f"stage {stage} needs {format_quantity(memory.peak_bytes, 'B')} of device memory, "
            f"{format_quantity(memory.peak_bytes - capacity, 'B')} more than there is{smaller}; "
            f"{hint}"
        )

    def messages(self, stage: int) -> int:
        """Count the messages that a stage sends to others."""
        schedule = self.cut.schedule
        return sum(
            schedule.receiver(stage, action) not in {None, stage}
            for action in schedule.order[stage]
        )
