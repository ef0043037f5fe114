"""The workload of a prediction, and a step's inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from math import prod
from typing import assert_never

import msgspec

from hespas.base.fields import refuse_unused
from hespas.errors import ConfigError, option
from hespas.frontend.load import read_source
from hespas.hardware.device import Device
from hespas.hardware.interconnect import Dimensions
from hespas.hardware.presets import part_of
from hespas.hardware.system import interconnect_of
from hespas.models.model import MeshAxes
from hespas.models.placement import placed
from hespas.prediction.goodput import TOKENS
from hespas.prediction.machines import node_of, system_of, with_node
from hespas.prediction.options import PredictOptions, StepOptions
from hespas.prediction.result import StepKind, StepWork
from hespas.program.program import GlobalFacts, Program, nested_ops
from hespas.program.scopes import Phase, read_scope
from hespas.program.types import WITH_ONE_ZERO, TensorType, Type
from hespas.sources.exported import Workload
from hespas.sources.imports import file_digest, program_digests
from hespas.sources.maxtext import MaxTextStep, check_slices, step_key
from hespas.sources.options import MODEL
from hespas.sources.source import (
    Batch,
    DumpSource,
    FileSource,
    FunctionSource,
    ModelSource,
    Source,
    find_source,
)
from hespas.sources.torch_step import TorchStep, step_digest
from hespas.sources.workload import model_key


def source_of(options: PredictOptions) -> Source:
    """Return the workload that the options name.

    A model's missing mesh follows from the system.

    Raises `ConfigError` where nothing is named, and what `hespas.sources.source.find_source`
    raises.
    """
    file = options.program.file
    if file is None:
        raise ConfigError(
            "no program is given",
            location=str(options.estimate.configuration or ""),
            hint=f"name a file or a model, or give {option('mlir_file')}",
        )
    system = system_of(options.network)
    devices = options.program.devices if system is None else system.device_count
    source = find_source(
        str(file),
        options.program.model,
        options.program.torch,
        devices=devices,
        target=target_of(options),
        loops=True,
    )
    if isinstance(source, MaxTextStep) and system is not None:
        check_slices(source, system)
    place = options.network.place
    if place is None or options.program.model.part is not None:
        return source
    if not isinstance(source, ModelSource):
        refuse_unused(options.network, {MODEL: f"{source.name}, which has a mesh of its own"})
        return source
    texts = {**source.texts, "mesh": str(placed_mesh(source.mesh, options))}
    return replace(source, texts=texts)


def target_of(options: PredictOptions) -> str | None:
    """Return the node's name as an export target, if known."""
    node = node_of(with_node(options.estimate, system_of(options.network)))
    return part_of(node) if isinstance(node, Device) else node and str(node)


def placed_mesh(mesh: MeshAxes, options: PredictOptions) -> MeshAxes:
    """Place a mesh's axes on the system's dimensions.

    Without ``place`` the mesh is unchanged. Raises `ConfigError` for axes that don't fit, and for a
    network without dimensions.
    """
    place, system = options.network.place, system_of(options.network)
    if place is None or system is None:
        return mesh
    fabric = interconnect_of(system).fabric
    if not isinstance(fabric, Dimensions):
        raise ConfigError(
            f"{option('place')} needs a network of dimensions",
            location=system.name,
            hint=f"drop it, or order the axes of {option('mesh')}: the last one is nearest",
        )
    return placed(mesh, place, [dimension.size for dimension in fabric.dimensions])


def mesh_of(program: Program, options: PredictOptions) -> tuple[tuple[str, int], ...]:
    """Return the mesh's axes, major first; empty if unknown.

    They are the model's, or those of a mesh in the program's source that has all its devices.
    """
    source = _model_of(options)
    axes = program.global_facts.mesh if source is None else source.mesh.axes
    return axes if prod(size for _, size in axes) == (program.declared_devices or 1) else ()


def _model_of(options: PredictOptions) -> ModelSource | None:
    if options.program.file is None:
        return None
    source = source_of(options)
    return source if isinstance(source, ModelSource) else None


def work_of(program: Program, options: PredictOptions) -> StepWork:
    """Return a step's inputs, from the options or the program.

    Of a program it is known where its integers have one shape of two dimensions: sequences, and the
    tokens of each. One on several devices must have come with the types of its whole inputs.
    Raises `ConfigError` for parameters of a step whose tokens are not known.
    """
    step, source = options.step, _model_of(options)
    work = _read_work(program) if source is None else _model_work(source)
    is_same = step.tokens in {None, work.tokens} and step.samples in {None, work.samples}
    tokens = work.tokens if step.tokens is None else step.tokens
    return replace(
        work,
        tokens=tokens,
        samples=work.samples if step.samples is None else step.samples,
        model_flops=_given_flops(step, tokens) or (work.model_flops if is_same else None),
    )


def _model_work(source: ModelSource) -> StepWork:
    from hespas.models.flops import model_flops  # noqa: PLC0415 - of use to models alone

    return replace(
        _batch_work(source.batch),
        kind=kind_of(source.settings),
        model_flops=model_flops(source.settings),
    )


def with_work(facts: GlobalFacts, source: Source) -> GlobalFacts:
    """Return a source's facts with its step's inputs and model FLOPs.

    They are those of the model, or follow from the ``facts``' inputs, as in `work_of`.
    """
    is_model = isinstance(source, ModelSource)
    work = _model_work(source) if is_model else _inputs_work(facts.inputs, _stated_work(facts))
    return msgspec.structs.replace(
        facts,
        tokens=work.tokens,
        samples=work.samples,
        sample_name=work.sample_name,
        model_flops=work.model_flops,
    )


def kind_of(settings: object) -> StepKind:
    """Return the kind of a model's step."""
    from hespas.models.runs import Decode, Prefill  # noqa: PLC0415 - of use to models alone

    run = getattr(settings, "run", None)
    if isinstance(run, Prefill | Decode):
        return StepKind.INFERENCE
    if getattr(settings, "routing", None) is not None:
        return StepKind.TRAINING_WITH_EXPERTS
    return StepKind.TRAINING


_FLOPS_OF_PARAMETER = 6.0
"""Of a training step, for each token: a multiplication and an addition, forward and twice back."""


def _given_flops(step: StepOptions, tokens: int | None) -> float | None:
    """Return the model FLOPs that the options state, if any."""
    if step.parameters is None:
        return step.model_flops
    if tokens is None:
        refuse_unused(
            step, {TOKENS: True}, remedy=f"give {option('tokens')}, or {option('model_flops')}"
        )
        return None
    return _FLOPS_OF_PARAMETER * step.parameters * tokens


def _batch_work(batch: Batch | None) -> StepWork:
    if batch is None:
        return StepWork()
    return StepWork(tokens=batch.tokens, samples=batch.samples, sample_name=batch.what)


def _read_work(program: Program) -> StepWork:
    source = program.global_facts
    types: Sequence[Type] = source.inputs
    if (program.declared_devices or 1) == 1 and program.recorded is None:
        types = [value.type for value in program.main.body.arguments]
    kind = StepKind.INFERENCE if _is_forward(program) else StepKind.UNKNOWN
    return _inputs_work(types, replace(_stated_work(source), kind=kind))


def _stated_work(facts: GlobalFacts) -> StepWork:
    return StepWork(
        tokens=facts.tokens,
        samples=facts.samples,
        sample_name=facts.sample_name,
        model_flops=facts.model_flops,
    )


def _inputs_work(types: Sequence[Type], stated: StepWork) -> StepWork:
    """Return the sequences and tokens of inputs that have one shape."""
    shapes = {
        type_.shape
        for type_ in types
        if isinstance(type_, TensorType)
        and len(type_.shape) == 2
        and type_.element.name in _TOKENS
        and min(type_.shape) > 1
    }
    if len(shapes) != 1 or stated.samples is not None:
        return stated
    sequences, length = shapes.pop()
    tokens = sequences * length
    if stated.tokens not in {None, tokens}:
        return stated
    return replace(stated, tokens=tokens, samples=sequences, sample_name="sequences")


def _is_forward(program: Program) -> bool:
    """Return whether a recorded step has no backward pass."""
    if not program.is_recorded:
        return False
    names = map(read_scope, {op.scope for op in nested_ops(program.main.body)})
    return all(name.phase is not Phase.BACKWARD for name in names)


_TOKENS = ("i32", "ui32", "i64", "ui64", "si32", "si64")


def with_own_floats(workload: Workload, device: Device | None) -> Workload:
    """Return a model's program with the floats of 8 bits that its device multiplies."""
    if device is None:
        return workload
    content, notes = workload.content, list(workload.notes)
    for name, own in WITH_ONE_ZERO.items():
        if device.names(name) or not device.names(own):
            continue
        content, count = re.subn(rb"%s(?!\w)" % name.encode(), own.encode(), content)
        if count:
            notes.append(
                f"numbers of {name} are of {own}, which {device.name} multiplies, as frameworks "
                "have them there"
            )
    return replace(workload, content=content, notes=tuple(notes))


def workload_digest(source: Source) -> str:
    """Return a workload's identity: the content of its files, and what else decides it."""
    match source:
        case FileSource(path=path):
            return sha256(read_source(path)).hexdigest()
        case ModelSource() as source:
            return model_key(source)
        case TorchStep() as source:
            return step_digest(source)
        case MaxTextStep() as source:
            return step_key(source)
        case FunctionSource(name=name):
            parts = (repr(source), program_digests(name.rpartition(":")[0]))
        case DumpSource(path=path):
            files = sorted(file for file in path.iterdir() if file.is_file())
            parts = (repr(source), [(file.name, file_digest(file)) for file in files])
        case _:
            assert_never(source)
    return sha256(repr(parts).encode()).hexdigest()
