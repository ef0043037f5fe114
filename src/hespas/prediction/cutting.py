"""Cut a model for a pipeline's stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from hespas.base.fields import refuse_unused
from hespas.base.frozen import frozen
from hespas.base.units import format_quantity
from hespas.errors import ConfigError, DeviceCountError, HardwareError, option
from hespas.hardware.system import System
from hespas.models.division import trained_bytes
from hespas.models.flops import model_flops
from hespas.models.language import LanguageModel, expert_axes
from hespas.models.model import (
    EXPERT,
    PIPE,
    REDUCED,
    SHARED,
    TYPE_BYTES,
    MeshAxes,
    Part,
    PartProgram,
)
from hespas.models.parameters import least_kept_bytes
from hespas.models.placement import in_default_order
from hespas.prediction.checks import check_exchanges, check_experts, checked
from hespas.prediction.launches import launches_each
from hespas.prediction.machines import device_of_memory, host_bandwidth, system_of
from hespas.prediction.options import (
    HOST_LINK,
    ONE_PROGRAM,
    OPEN_STEP,
    RECORDED,
    Fidelity,
    PredictOptions,
)
from hespas.prediction.passes import Footprint
from hespas.prediction.result import StepWork
from hespas.prediction.workload import kind_of, placed_mesh, target_of
from hespas.sources.options import ModelOptions
from hespas.sources.source import ModelSource, find_source
from hespas.tasks.pipelining.options import DEFAULT
from hespas.tasks.pipelining.schedule import Pass, Schedule, load_schedule, schedule_named


@frozen
class Cut:
    """A model cut into parts, and their pipeline schedule.

    ``options`` are those of the whole, with the system loaded. ``source`` is the model with its
    settings; its mesh is that of one stage, ``mesh`` that of all devices, in the order in which its
    axes lie on the machine. ``parts`` stand in the order of the model.
    """

    options: PredictOptions
    system: System
    source: ModelSource
    mesh: MeshAxes
    schedule: Schedule
    parts: tuple[Part, ...]
    work: StepWork

    @property
    def settings(self) -> Any:
        """The settings of the model, typed by its family."""
        return self.source.settings

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.schedule.stages

    @property
    def offloads(self) -> bool:
        """Whether activations wait in the host's memory between passes."""
        return offloads(self.source)

    @property
    def is_looped(self) -> bool:
        """Whether a part's layers are a loop; those of libraries cost the same as one."""
        requested = self.options.program.model.scan
        is_of_libraries = self.options.compile.requested is Fidelity.LIBRARY
        return is_of_libraries if requested is None else requested

    @property
    def micro_batch(self) -> int:
        """The sequences of one micro-batch of a data-parallel part."""
        return self.settings.batch // self.settings.accumulation

    def parts_of(self, stage: int) -> tuple[Part, ...]:
        """Return the parts of a stage, by chunk."""
        schedule = self.schedule
        return tuple(self.parts[schedule.part(stage, chunk)] for chunk in range(schedule.chunks))

    def devices_of(self, stage: int) -> tuple[int, ...]:
        """Return the devices of a stage."""
        sizes = [size for _, size in self.mesh.axes]
        axis = self.mesh.names.index(PIPE)
        stride = prod(sizes[axis + 1 :])
        return tuple(
            device
            for device in range(self.mesh.device_count)
            if device // stride % sizes[axis] == stage
        )

    def options_of(self, part: Part) -> PredictOptions:
        """Return the options to predict a part's program with."""
        model = replace(
            self.options.program.model,
            mesh=self.settings.mesh,
            batch=self.settings.batch,
            global_batch=None,
            micro_batch=self.micro_batch,
            scan=self.is_looped,
            part=part,
        )
        return replace(self.options, program=replace(self.options.program, model=model))

    def mesh_of(self, program: PartProgram) -> MeshAxes:
        """Return the axes that divide a program's arrays."""
        return divided_by(self.mesh, program)


def divided_by(mesh: MeshAxes, program: PartProgram) -> MeshAxes:
    """Return the axes that divide a program's arrays.

    The arrays are replicated along the others.

    >>> mesh = MeshAxes(axes=(("pipe", 4), ("data", 2), ("fsdp", 2), ("tp", 8)))
    >>> str(divided_by(mesh, PartProgram.BOTH)), str(divided_by(mesh, PartProgram.UPDATE))
    ('tp=8', 'fsdp=2,tp=8')
    """
    replicated = {PIPE, *REDUCED}
    if program is PartProgram.UPDATE:
        replicated -= {*SHARED}
    axes = tuple(axis for axis in mesh.axes if axis[0] not in replicated)
    return MeshAxes(axes=axes or (("tp", 1),))


OFFLOAD = "offload"
"""The choice of ``remat`` that keeps what layers make in the host's memory."""


def cut_of(options: PredictOptions) -> Cut:
    """Cut a model for the stages of its pipeline.

    Raises `ConfigError` for what doesn't fit: stages that don't divide layers or micro-batches, a
    schedule that can't run, a model that can't be cut; and what `hespas.prediction.checks.checked`
    raises.
    """
    options = checked(options, needs_program=False)
    system = system_of(options.network)
    mesh = options.program.model.mesh
    if system is None or mesh is None:
        raise ConfigError(
            f"a pipeline runs on {'several devices' if mesh is None else mesh.device_count} "
            "devices, but no system is given",
            hint=f"give {option('cluster')}, as in 64xH100_80GB",
        )
    absent = {ONE_PROGRAM: True, OPEN_STEP: True, RECORDED: not launches_each(options)}
    refuse_unused(options, absent)
    mesh = placed_mesh(in_default_order(mesh), options)
    if mesh.device_count != system.device_count:
        raise DeviceCountError(
            f"the mesh {mesh} has {mesh.device_count} devices, and there are {system.device_count}",
            hint=f"give {option('mesh')} sizes that multiply to {system.device_count}",
        )
    source = _source(options, mesh)
    check_experts(source, options)
    _check_host_link(source, options)
    settings: Any = source.settings
    schedule = _schedule(options, mesh.size(PIPE), settings.accumulation)
    check_exchanges(source, schedule, options)
    parts = tuple(_parts(options, source, mesh, schedule))
    samples = settings.batch * settings.parts
    work = StepWork(
        kind=kind_of(settings),
        tokens=samples * settings.sequence,
        samples=samples,
        sample_name="sequences",
        model_flops=options.step.model_flops or model_flops(settings),
    )
    return Cut(
        options=options,
        system=system,
        source=source,
        mesh=mesh,
        schedule=schedule,
        parts=parts,
        work=work,
    )


def _source(options: PredictOptions, mesh: MeshAxes) -> ModelSource:
    """Return the model on one stage's mesh, with its micro-batches."""
    requested = options.program.model
    axes = tuple(axis for axis in mesh.axes if axis[0] != PIPE)
    inner = MeshAxes(axes=axes or (("data", 1),))
    target = target_of(options)

    def on_stage(model: ModelOptions) -> ModelSource:
        source = find_source(
            str(options.program.file), model, devices=inner.device_count, target=target
        )
        if not isinstance(source, ModelSource) or not source.model.can_be_cut:
            raise ConfigError(
                f"{source.name} cannot be cut between layers",
                hint=f"take {PIPE} out of {option('mesh')}",
            )
        return source

    model = replace(requested, mesh=inner)
    if requested.micro_batch is None and requested.micro_batches is None:
        # One sequence each.
        model = replace(model, micro_batches=on_stage(model).settings.batch)
    return on_stage(model)


def offloads(source: ModelSource) -> bool:
    """Return whether activations wait in the host's memory."""
    return source.texts.get("remat") == OFFLOAD


def _check_host_link(source: ModelSource, options: PredictOptions) -> None:
    """Refuse an unused host link, or one of unknown bandwidth."""
    remedy = f"drop it, or give {option('remat')} {OFFLOAD}"
    refuse_unused(options, {HOST_LINK: not offloads(source)}, remedy=remedy)
    if offloads(source) and host_bandwidth(options.estimate) is None:
        raise HardwareError(
            f"with {option('remat')} {OFFLOAD} stages move data to the host, and the bandwidth of "
            "the link is not known",
            hint=f"give {option('host_bandwidth')}, in each direction, as in 64e9 for 64 GB/s",
        )


def _schedule(options: PredictOptions, stages: int, micro_batches: int) -> Schedule:
    name = options.pipeline.schedule or DEFAULT
    if not Path(name).is_file():
        return schedule_named(name, stages=stages, micro_batches=micro_batches)
    schedule = load_schedule(Path(name))
    for noun, needed, count in (
        ("stages", stages, schedule.stages),
        ("micro-batches", micro_batches, schedule.micro_batches),
    ):
        if needed != count:
            hint = (
                f"write {needed} lines, or give {option('mesh')} {PIPE}={count}"
                if noun == "stages"
                else f"give {option('micro_batches')} {count}, or write passes of {needed}"
            )
            raise ConfigError(
                f"the schedule has {count} {noun}, and there are {needed}", location=name, hint=hint
            )
    return schedule


def _parts(
    options: PredictOptions, source: ModelSource, mesh: MeshAxes, schedule: Schedule
) -> Iterator[Part]:
    settings: Any = source.settings
    listed = options.pipeline.stage_layers
    shared = shared_layers(settings.layers, schedule.parts) if listed is None else listed
    if listed is not None and (len(shared) != schedule.parts or sum(shared) != settings.layers):
        raise ConfigError(
            f"{option('stage_layers')} names {len(shared)} parts with {sum(shared)} layers, and "
            f"{source.name} has {settings.layers} layers for {schedule.parts} parts",
            hint=f"name {schedule.parts} numbers that add up to {settings.layers}",
        )
    last = schedule.parts - 1
    used = divided_by(mesh, PartProgram.BOTH)
    begin = 0
    for number, layers in enumerate(shared):
        if not layers:
            raise ConfigError(
                f"part {number} of {source.name} has no layer",
                hint=f"give {option('stage_layers')} numbers of 1 or more",
            )
        first = settings.first_like(begin, layers)
        yield Part(
            mesh=used,
            layers=layers,
            first=first,
            is_first=number == 0,
            is_last=number == last,
        )
        begin += layers


def shared_layers(layers: int, parts: int) -> tuple[int, ...]:
    """Return each part's layers: equal, or as equal as possible.

    The embedding and the head count as a layer each, as in Megatron-Core where it accounts for
    both, and in torchtitan (``generate_llm_fqn_per_model_part`` of
    distributed/pipeline_parallel.py), which gives the remaining layers to the first parts. Raises
    `ConfigError` where a part would have none.

    >>> shared_layers(32, 4), shared_layers(126, 16)[:2], shared_layers(61, 8)
    ((8, 8, 8, 8), (7, 8), (7, 8, 8, 8, 8, 8, 8, 6))
    """
    if layers % parts == 0:
        return (layers // parts,) * parts
    count, remainder = divmod(layers + 2, parts)
    counts = [count + (part < remainder) for part in range(parts)]
    counts[0] -= 1
    counts[-1] -= 1
    if min(counts) > 0:
        return tuple(counts)
    low, high = divmod(layers, parts)
    near = f"{low + 1}x{high},{low}x{parts - high}" if low else ""
    raise ConfigError(
        f"{layers} layers are not divided by {parts} parts",
        hint=f"give {option('stage_layers')} {near}" if near else f"take fewer stages than {parts}",
    )


STATES = 3
"""Weights and both moments of AdamW."""


def stage_memory(cut: Cut, footprints: Mapping[Part, Footprint], stage: int) -> Footprint:
    """Return a stage's memory when its activations need most."""
    parts = [footprints[part] for part in cut.parts_of(stage)]
    splits = cut.schedule.splits_backward
    last = Pass.WEIGHTS if splits else Pass.BACKWARD
    held_bytes = kept_bytes = host_bytes = most_host_bytes = 0
    most_bytes, count, in_flight, working_bytes = -1, 0, 0, 0
    for action in cut.schedule.order[stage]:
        part = parts[action.chunk]
        if action.kind is Pass.FORWARD:
            held_bytes += part.kept_bytes
            host_bytes += part.host_bytes
            count += 1
        if splits and action.kind is Pass.BACKWARD:
            # Gradients of weights need again what came back from the host.
            held_bytes += part.host_bytes
            host_bytes -= part.host_bytes
        in_flight, most_host_bytes = max(in_flight, count), max(most_host_bytes, host_bytes)
        if held_bytes + part.working_bytes > most_bytes:
            most_bytes, kept_bytes, working_bytes = (
                held_bytes + part.working_bytes,
                held_bytes,
                part.working_bytes,
            )
        if action.kind is last:
            held_bytes -= part.kept_bytes
            if splits:
                held_bytes -= part.host_bytes
            else:
                host_bytes -= part.host_bytes
            count -= 1
    return Footprint(
        weight_bytes=sum(part.weight_bytes for part in parts),
        frozen_bytes=sum(part.frozen_bytes for part in parts),
        gradient_bytes=sum(part.gradient_bytes for part in parts),
        state_bytes=sum(part.state_bytes for part in parts),
        kept_bytes=kept_bytes,
        working_bytes=working_bytes,
        in_flight=in_flight,
        host_bytes=most_host_bytes,
    )


def weight_size_bytes(cut: Cut) -> int:
    """Return the bytes of one weight, as passes hold it."""
    return TYPE_BYTES[cut.settings.dtype]


def summed_bytes(cut: Cut, weight_bytes: int) -> int:
    """Return the bytes of the summed gradients of weights.

    Megatron-Core sums those of 16-bit weights in f32 by default.
    """
    return weight_bytes * TYPE_BYTES[cut.settings.gradient_dtype] // weight_size_bytes(cut)


def states_held(cut: Cut) -> int:
    """Count the optimiser's arrays for each array of weights.

    The optimiser holds no copy of weights that have the type of its states.
    """
    return STATES - 1 if cut.settings.state_dtype == cut.settings.dtype else STATES


def state_sizes(cut: Cut) -> tuple[int, int]:
    """Return the bytes of a state and a summed gradient."""
    return TYPE_BYTES[cut.settings.state_dtype], TYPE_BYTES[cut.settings.gradient_dtype]


def least_memory(cut: Cut, *, remat: str | None = None) -> tuple[Footprint, ...]:
    """Return a lower bound of each stage's memory, from shapes.

    ``remat`` overrides the model's policy.
    """
    settings = cut.settings
    if remat is not None:
        texts = {**cut.source.texts, "remat": remat}
        settings = replace(cut.source, texts=texts).settings
    kept_bytes = least_kept_bytes(settings)
    footprints = {part: _least(cut, part, kept_bytes) for part in set(cut.parts)}
    return tuple(stage_memory(cut, footprints, stage) for stage in range(cut.stages))


def _least(cut: Cut, part: Part, kept_bytes: int) -> Footprint:
    weight_bytes = _trained_bytes(cut, part, PartProgram.BOTH)
    wide, narrow = state_sizes(cut)
    state_bytes = _trained_bytes(cut, part, PartProgram.UPDATE) * wide // narrow
    return Footprint(
        weight_bytes=weight_bytes,
        frozen_bytes=frozen_bytes(cut, part),
        gradient_bytes=summed_bytes(cut, weight_bytes),
        state_bytes=states_held(cut) * state_bytes,
        kept_bytes=part.layers * kept_bytes,
        working_bytes=0,
    )


def frozen_bytes(cut: Cut, part: Part) -> int:
    """Return a device's bytes of frozen weights, rounded copies included."""
    if not (isinstance(cut.settings, LanguageModel) and cut.settings.lora_modules):
        return 0
    # Weights of a loop are few arrays, of all layers.
    texts = {**cut.source.texts, "scan": "true"}
    of_passes = _of_program(cut, part, PartProgram.BOTH)
    return cut.source.model.part_step(texts, of_passes).argument_bytes(1)


def expert_bytes(cut: Cut, part: Part) -> int:
    """Return a device's share of a part's expert weights."""
    if cut.mesh.size(*expert_axes(cut.settings)) == 1:
        return 0
    return _trained_bytes(cut, part, PartProgram.BOTH, along=EXPERT)


def _trained_bytes(cut: Cut, part: Part, program: PartProgram, *, along: str | None = None) -> int:
    """Return a device's bytes of a program's weights, or of its gradients."""
    of_program = _of_program(cut, part, program)
    return trained_bytes(cut.settings, of_program, along=along)


def _of_program(cut: Cut, part: Part, program: PartProgram) -> Part:
    return replace(part, mesh=cut.mesh_of(program), program=program)


def check_fits(cut: Cut) -> None:
    """Refuse stages that can't fit, unless the user allows them."""
    device = device_of_memory(cut.options.estimate)
    capacity = None if device is None else device.memory_capacity_bytes
    if device is None or capacity is None or cut.options.pipeline.ignore_memory:
        return
    stage, memory = max(enumerate(least_memory(cut)), key=lambda item: item[1].peak_bytes)
    if memory.peak_bytes <= capacity:
        return
    parts = {
        "weights": memory.held_bytes,
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


def remedy(cut: Cut, memory: Footprint, capacity_bytes: int) -> str:
    """Suggest changes that make a stage fit, the cheapest first."""
    weight_bytes = memory.held_bytes + memory.gradient_bytes
    if weight_bytes > capacity_bytes:
        times = -(-(weight_bytes + memory.state_bytes) // capacity_bytes)
        return (
            f"divide its weights by {times} or more: more stages ({cut.stages} now), or a larger tp"
        )
    if memory.state_bytes > max(capacity_bytes - weight_bytes, memory.kept_bytes):
        return "an axis fsdp, or a larger one, divides the optimiser's states"
    if cut.schedule.name == "gpipe":
        return f"{option('schedule')} 1f1b keeps fewer micro-batches"
    now, recomputed = (
        max(stage.peak_bytes for stage in least_memory(cut, remat=remat))
        for remat in (None, "full")
    )
    if recomputed < now and recomputed <= capacity_bytes:
        return f"{option('remat')} full keeps less of a micro-batch"
    if cut.schedule.chunks > 1:
        return "fewer chunks a stage, or a larger tp or context, keep less of micro-batches"
    return "more stages, or a larger tp or context, divide what it keeps of micro-batches"
