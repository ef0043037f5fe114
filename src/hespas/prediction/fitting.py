"""Whether the stages of a pipeline can fit into memory, before anything is exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hespas.base.units import format_quantity
from hespas.errors import ConfigError, option
from hespas.models.kept import least_kept_bytes
from hespas.models.model import TYPE_BYTES
from hespas.models.part import EXPERT, Part, PartProgram
from hespas.prediction.cutting import Cut
from hespas.prediction.machines import device_of_memory
from hespas.tasks.pipelining.schedule import Pass

STATES = 3
"""Weights and both moments of AdamW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a device holds of a part of the model, in bytes.

    ``expert_bytes`` are those of ``weight_bytes`` that are divided over the devices of experts.
    ``gradient_bytes`` are those of sums over micro-batches. ``kept_bytes`` is what a micro-batch
    holds from its forward to its backward pass, ``host_bytes`` the same in its host's memory, and
    ``working_bytes`` what a pass needs beside that at most.
    """

    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    kept_bytes: int
    working_bytes: int
    host_bytes: int = 0
    expert_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """The memory of a device of a stage, in bytes.

    ``kept_bytes`` are those of the micro-batches in flight, ``in_flight`` of them at most.
    ``host_bytes`` is what it needs of its host's memory, and no part of the others.
    """

    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    kept_bytes: int
    working_bytes: int
    in_flight: int
    host_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """All of it, of the device's memory."""
        return (
            self.weight_bytes
            + self.gradient_bytes
            + self.state_bytes
            + self.kept_bytes
            + self.working_bytes
        )


def stage_memory(cut: Cut, footprints: Mapping[Part, Footprint], stage: int) -> StageMemory:
    """Return the memory of a stage, when its micro-batches in flight hold most."""
    parts = [footprints[part] for part in cut.parts_of(stage)]
    splits = cut.schedule.splits_backward
    last = Pass.WEIGHTS if splits else Pass.BACKWARD
    held = kept = on_host = most_on_host = 0
    most, count, in_flight, working = -1, 0, 0, 0
    for action in cut.schedule.order[stage]:
        part = parts[action.chunk]
        if action.kind is Pass.FORWARD:
            held += part.kept_bytes
            on_host += part.host_bytes
            count += 1
        if splits and action.kind is Pass.BACKWARD:
            # Gradients of weights need again what came back from the host.
            held += part.host_bytes
            on_host -= part.host_bytes
        in_flight, most_on_host = max(in_flight, count), max(most_on_host, on_host)
        if held + part.working_bytes > most:
            most, kept, working = held + part.working_bytes, held, part.working_bytes
        if action.kind is last:
            held -= part.kept_bytes
            if splits:
                held -= part.host_bytes
            else:
                on_host -= part.host_bytes
            count -= 1
    return StageMemory(
        weight_bytes=sum(each.weight_bytes for each in parts),
        gradient_bytes=sum(each.gradient_bytes for each in parts),
        state_bytes=sum(each.state_bytes for each in parts),
        kept_bytes=kept,
        working_bytes=working,
        in_flight=in_flight,
        host_bytes=most_on_host,
    )


def weight_size_bytes(cut: Cut) -> int:
    """Return the bytes of one weight, as passes hold it."""
    settings: Any = cut.source.settings
    return TYPE_BYTES[settings.dtype]


def summed_bytes(cut: Cut, weight_bytes: int) -> int:
    """Return the bytes of the summed gradients of weights: they are of the states' type.

    Megatron-Core sums those of 16-bit weights in f32 by default, too.
    """
    settings: Any = cut.source.settings
    return weight_bytes * TYPE_BYTES[settings.state_dtype] // weight_size_bytes(cut)


def states_held(cut: Cut) -> int:
    """Return how many arrays the optimiser holds for one of weights: its moments, and weights.

    Weights of the type that passes have are those of the passes, and are held once.
    """
    settings: Any = cut.source.settings
    return STATES - 1 if settings.state_dtype == settings.dtype else STATES


def least_memory(cut: Cut, *, remat: str | None = None) -> tuple[StageMemory, ...]:
    """Return the memory that each stage needs at least, from the shapes of its arrays alone.

    No stage's prediction is less. With ``remat`` it is that of another policy.
    """
    settings: Any = cut.source.settings
    if remat is not None:
        texts = {**cut.source.texts, "remat": remat}
        settings = replace(cut.source, texts=texts).settings
    kept_bytes = least_kept_bytes(settings)
    footprints = {part: _least(cut, part, kept_bytes) for part in set(cut.parts)}
    return tuple(stage_memory(cut, footprints, stage) for stage in range(cut.stages))


def _least(cut: Cut, part: Part, kept_bytes: int) -> Footprint:
    weight_bytes = _argument_bytes(cut, part, PartProgram.BOTH, 0)
    return Footprint(
        weight_bytes=weight_bytes,
        gradient_bytes=summed_bytes(cut, weight_bytes),
        state_bytes=states_held(cut) * _argument_bytes(cut, part, PartProgram.UPDATE, 1),
        kept_bytes=part.layers * kept_bytes,
        working_bytes=0,
    )


def expert_bytes(cut: Cut, part: Part) -> int:
    """Return what a device holds of weights of a part that are divided over experts' devices."""
    if cut.mesh.size(EXPERT) == 1:
        return 0
    return _argument_bytes(cut, part, PartProgram.BOTH, 0, along=EXPERT)


def _argument_bytes(
    cut: Cut, part: Part, program: PartProgram, argument: int, *, along: str | None = None
) -> int:
    """Return what a device holds of an argument of a program of a part."""
    of_program = replace(part, mesh=cut.mesh_of(program), program=program)
    # Weights of a loop are few arrays, of all layers.
    texts = {**cut.source.texts, "scan": "true"}
    return cut.source.model.part_step(texts, of_program).argument_bytes(argument, along=along)


def check_fits(cut: Cut) -> None:
    """Raise `ConfigError` where a stage can't fit, unless that is to be predicted all the same."""
    device = device_of_memory(cut.options.estimate)
    if device is None or cut.options.pipeline.ignore_memory:
        return
    capacity = device.memory_capacity_bytes
    if capacity is None:
        return
    memories = least_memory(cut)
    stage = max(range(cut.stages), key=lambda each: (memories[each].peak_bytes, -each))
    memory = memories[stage]
    if memory.peak_bytes <= capacity:
        return
    parts = {
        "weights": memory.weight_bytes,
        "gradients": memory.gradient_bytes,
        "optimiser states": memory.state_bytes,
        f"activations of {memory.in_flight} passes in flight": memory.kept_bytes,
    }
    listed = ", ".join(f"{name} {format_quantity(size, 'B')}" for name, size in parts.items())
    raise ConfigError(
        f"stage {stage} needs at least {format_quantity(memory.peak_bytes, 'B')} of device memory, "
        f"{format_quantity(memory.peak_bytes - capacity, 'B')} more than {device.name} has: "
        f"{listed}",
        hint=f"{remedy(cut, memory, capacity)}; {option('ignore_memory')} predicts it all the same",
    )


def remedy(cut: Cut, memory: StageMemory, capacity_bytes: int) -> str:
    """Return what would make a stage fit, the change that costs least time first."""
    whole_bytes = memory.weight_bytes + memory.gradient_bytes
    if whole_bytes > capacity_bytes:
        times = -(-(whole_bytes + memory.state_bytes) // capacity_bytes)
        return (
            f"divide its weights by {times} or more: more stages ({cut.stages} now), or a larger tp"
        )
    if memory.state_bytes > max(capacity_bytes - whole_bytes, memory.kept_bytes):
        return "an axis fsdp, or a larger one, divides the optimiser's states"
    if cut.schedule.name == "gpipe":
        return f"{option('schedule')} 1f1b keeps fewer micro-batches"
    now, again = (_most_bytes(least_memory(cut, remat=remat)) for remat in (None, "full"))
    if again < now and again <= capacity_bytes:
        return f"{option('remat')} full keeps less of a micro-batch"
    if cut.schedule.chunks > 1:
        return "fewer chunks a stage, or a larger tp or context, keep less of micro-batches"
    return "more stages, or a larger tp or context, divide what it keeps of micro-batches"


def _most_bytes(memories: Sequence[StageMemory]) -> int:
    return max(each.peak_bytes for each in memories)
