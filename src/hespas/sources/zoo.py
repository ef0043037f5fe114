"""Resolve zoo models to sources with settled settings.

Attention is as it is asked for, or as what runs it can. The kernels of cuDNN are for 16-bit types,
on NVIDIA's GPUs of compute capability 8.0 and newer. Source: NVIDIA, cuDNN frontend, "Scaled Dot
Product Attention", support matrix. FlashAttention-2 is for Ampere, Ada and Hopper, FlashAttention-3
for Hopper. Source: Dao-AILab/flash-attention, README. Pallas, of which splash attention's kernels
are made, is for the fourth generation of TPUs and newer ones. Source: JAX, "Writing TPU kernels
with Pallas". FlashMLA is for Hopper and Blackwell. Source: deepseek-ai/FlashMLA, README.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import astuple, replace
from functools import cache
from itertools import chain
from math import gcd
from pathlib import Path
from typing import Any

from hespas.compile.targets import compute_capability
from hespas.errors import ConfigError, DeviceCountError, HespasError, option
from hespas.hardware.presets import device_names, is_tpu, node_info, part_of
from hespas.models.kernels import FUSED
from hespas.models.language import MTP_NOTE, LanguageModel
from hespas.models.model import (
    PIPE,
    REDUCED,
    SHARED,
    TYPE_BYTES,
    MeshAxes,
    Model,
    Part,
    PartProgram,
)
from hespas.models.network_model import Learning, Network
from hespas.models.parameters import parameters, trained_parameters
from hespas.models.recommender import Dlrm
from hespas.models.runs import Decode, Prefill, Training
from hespas.models.software import software_named
from hespas.sources.options import ModelOptions
from hespas.sources.source import ModelSource

_LOOPS = Path(__file__).with_name("loops.json")
"""Steps compiled both ways, as validation/loops.py compared them."""


def model_source(
    model: Model,
    options: ModelOptions,
    *,
    devices: int | None,
    target: str | None,
    loops: bool,
) -> ModelSource:
    """Return a model with its settings chosen and checked."""
    texts, notes = options.texts(), list(model.notes)
    model_settings = model.options()
    if options.software is not None:
        of_software, software_note = _software_settings(model, options.software, target)
        texts = {**of_software, **texts}
        notes.append(software_note)
    if "mesh" not in texts and devices is not None:
        mesh = _mesh_of_all(model, texts, devices)
        texts["mesh"] = str(mesh)
        notes.append(f"the mesh is {mesh}, since none is given")
    if loops and "scan" in model_settings and "scan" not in texts:
        texts["scan"] = "true"
        notes.append(_loop_note())
    attention, attention_notes = settled_attention(model, texts, target)
    rows, rows_notes = settled_rows(model, texts, target)
    texts |= attention | rows
    notes += [*attention_notes, *rows_notes]
    if options.part is None and options.mesh is not None:
        texts["mesh"] = str(_one_stage(options.mesh))
    source = ModelSource(model=model, texts=texts, part=options.part)
    if options.part is None:
        _check_count(source.mesh, devices)
    if options.global_batch is not None:
        texts["batch"] = str(_share(options.global_batch, source))
    rounds = _rounds(options, replace(source, texts=texts))
    if rounds is not None:
        texts["accumulation"] = str(rounds)
    source = replace(source, texts=texts)
    source.settings.check()
    settings = source.settings
    of_settings = (
        *_states_note(settings),
        *_heads_note(settings),
        *_experts_note(settings),
        *_batch_note(source),
    )
    if isinstance(settings, LanguageModel) and settings.mtp_kinds:
        notes = [note for note in notes if note != MTP_NOTE]
    return replace(source, notes=(*notes, *of_settings))


def _software_settings(model: Model, name: str, target: str | None) -> tuple[dict[str, str], str]:
    software = software_named(name)
    if not (isinstance(model.settings, LanguageModel) and isinstance(model.settings.run, Training)):
        raise ConfigError(
            f"{option('software')} has no effect on {model.name}",
            hint="drop it: training steps of language models have it",
        )
    capability = None if target is None else compute_capability(target)
    settings = software.settings_for(
        is_hopper=capability == _HOPPER,
        has_slow_experts=model.settings.has_slow_experts,
        scales_rotation=model.settings.scales_rotation,
    )
    listed_settings = ", ".join(f"{key}={value}" for key, value in settings.items())
    return settings, f"kernels are those of {software.title}: {listed_settings}"


def _states_note(settings: object) -> Iterator[str]:
    """Yield notes on the type of trained states."""
    match settings:
        case Network(design=Dlrm(), run=Learning(state_dtype=own)):
            width = 2 * TYPE_BYTES[own]
            yield f"memory: rows and Adagrad's sums of squares are in {own}, {width} bytes a number"
            return
        case LanguageModel(run=Training(state_dtype=own)) | Network(run=Learning(state_dtype=own)):
            pass
        case _:
            return
    other_type = "bf16" if own == "f32" else "f32"
    subject = "AdamW's weights"
    if isinstance(settings, LanguageModel) and settings.lora_modules:
        trained = trained_parameters(settings)
        yield (
            f"adapters: {trained:,} of {parameters(settings):,} weights are trained, beside "
            f"{', '.join(settings.lora_modules)}; the others are frozen, in {settings.dtype}; "
            "dropout is left out"
        )
        subject = "of adapters, AdamW's weights"
    yield (
        f"memory: {subject} and both moments are held in {own}, {3 * TYPE_BYTES[own]} bytes "
        f"a parameter (--set state_dtype={other_type} holds them in {3 * TYPE_BYTES[other_type]})"
    )


def _heads_note(settings: object) -> Iterator[str]:
    if not isinstance(settings, LanguageModel) or settings.latent is not None:
        return
    has = settings.sizes_of_layers.kv_heads
    if settings.kv_heads > has:
        yield (
            f"each of {has} heads of keys and values is computed and held by "
            f"{settings.kv_heads // has} tensor-parallel devices"
        )


def _experts_note(settings: object) -> Iterator[str]:
    """Yield a note on an expert's token limit, if any."""
    if not isinstance(settings, LanguageModel) or settings.routing is None:
        return
    routing = settings.routing
    if routing.dropless and settings.mesh.size("expert") == 1:
        return
    yield (
        f"experts: each {'device of them ' if routing.dropless else ''}takes at most "
        f"{routing.capacity_percent} % of the tokens that an even spread gives it, and drops "
        "others (--set capacity_percent=125 takes more)"
    )


def _one_stage(mesh: MeshAxes) -> MeshAxes:
    if mesh.size(PIPE) > 1:
        raise ConfigError(
            f"{PIPE}={mesh.size(PIPE)} makes a pipeline of several programs; one is needed here",
            hint=f"hespas run predicts pipelines; for one program take {PIPE} out of "
            f"{option('mesh')}",
        )
    return MeshAxes(axes=tuple(axis for axis in mesh.axes if axis[0] != PIPE) or (("data", 1),))


def _mesh_of_all(model: Model, texts: Mapping[str, str], devices: int) -> MeshAxes:
    """Return a mesh whose first axis fills all devices.

    Where fsdp divides no dimension so often, it is divided as often as it can be, and copied.
    """
    widest = _fill_first_axis(model.settings.mesh, devices, model=model.name)
    (first, parts), *others = widest.axes
    if first != "fsdp" or "data" not in model.axes or "data" in dict(others):
        return widest
    copied = (
        MeshAxes(axes=(("data", copies), (first, parts // copies), *others))
        for copies in range(2, parts + 1)
        if parts % copies == 0
    )
    return next((mesh for mesh in chain((widest,), copied) if is_legal(model, texts, mesh)), widest)


def is_legal(model: Model, texts: Mapping[str, str], mesh: MeshAxes) -> bool:
    """Return whether a mesh divides a model with these settings."""
    try:
        model.with_options({**texts, "mesh": str(mesh)}).check()
    except ConfigError:
        return False
    return True


def _fill_first_axis(mesh: MeshAxes, devices: int, *, model: str) -> MeshAxes:
    """Return a mesh whose first axis fills all devices.

    Experts are divided over fewer devices where theirs do not fit.
    """
    (first, _), *other_axes = (
        (name, gcd(size, devices) if name == "expert" else size) for name, size in mesh.axes
    )
    other_size = MeshAxes(axes=tuple(other_axes)).device_count if other_axes else 1
    if devices % other_size:
        raise DeviceCountError(
            f"{devices} devices do not fit the mesh of {model}, whose other axes have {other_size}",
            hint=f"give {option('mesh')}",
        )
    return MeshAxes(axes=((first, devices // other_size), *other_axes))


def _check_count(mesh: MeshAxes, devices: int | None) -> None:
    if devices is not None and mesh.device_count != devices:
        raise DeviceCountError(
            f"the mesh {mesh} has {mesh.device_count} devices, and there are {devices}",
            hint=f"give {option('mesh')} sizes that multiply to {devices}, or as many devices "
            f"as the mesh has",
        )


def _share(global_batch: int, source: ModelSource) -> int:
    if source.batch is None:
        raise ConfigError(f"{source.name} has no batch", hint=f"drop {option('global_batch')}")
    parts = source.settings.parts
    share, left_over = divmod(global_batch, parts)
    if left_over or share < 1:
        below, above = share * parts, (share + 1) * parts
        raise ConfigError(
            f"{option('global_batch')} {global_batch} cannot be divided over the {parts} "
            f"data-parallel parts of the mesh {source.mesh}",
            hint=f"give {f'{below} or ' if below else ''}{above}",
        )
    return share


def _rounds(options: ModelOptions, source: ModelSource) -> int | None:
    """Return the rounds of a part's batch, if requested."""
    size, count = options.micro_batch, options.micro_batches
    name, number = ("micro_batch", size) if count is None else ("micro_batches", count)
    if number is None:
        return None
    if "accumulation" not in source.model.options():
        raise ConfigError(
            f"{source.name} does not accumulate gradients", hint=f"drop {option(name)}"
        )
    batch = source.settings.batch
    if not 1 <= number <= batch or batch % number:
        raise ConfigError(
            f"{option(name)} {number} does not divide the batch of a data-parallel part, {batch}",
            hint=f"give a divisor of {batch}, or another {option('batch')}",
        )
    return batch // number if count is None else count


@cache
def _loop_note() -> str:
    longer = json.loads(_LOOPS.read_bytes())
    least, most = (100 * longer[name] for name in ("least", "most"))
    return (
        "the model's layers are one loop (scan), which compiles in a fraction of the time: the "
        f"computation of compiled steps is {least:.0f} to {most:.0f} % longer than with layers "
        "written out (unrolled)"
    )


def _batch_note(source: ModelSource) -> tuple[str, ...]:
    batch = source.batch
    if batch is None:
        return ()
    settings = source.settings
    sample_text = f" of {settings.sequence} tokens" if batch.tokens is not None else ""
    if isinstance(getattr(settings, "run", None), Decode):
        new = "1 new token" if settings.sequence == 1 else f"{settings.sequence} new tokens"
        sample_text = f" of {settings.context} tokens, {new} with them"
    rounds = getattr(settings, "accumulation", 1)
    steps = f", {settings.batch // rounds} at a time" if rounds > 1 else ""
    note = (
        f"the batch is {batch.samples} {batch.what}{sample_text}: {settings.batch} for each of "
        f"{settings.parts} data-parallel parts{steps}"
    )
    return (note,)


_AMPERE, _HOPPER, _BLACKWELL = 8.0, 9.0, 10.0


_SMALL_HEADS = 128
"""Larger heads, up to 256, need Hopper."""


_WITHOUT_PALLAS = ("TPUv2", "TPUv3")


_SETTING, _AUTO, _UNFUSED = "attention", "auto", "unfused"
_ROWS = "activation_dtype"


_SAID = {
    "flash2": "attention is FlashAttention-2's, fused, which {target} has",
    "cudnn": "attention is that of cuDNN, fused, which {target} has",
    "flashmla": "attention is that of FlashMLA, fused, over latent vectors",
    "splash": "attention is splash attention, JAX's kernels for TPUs, in blocks of 512 or less",
}


def settled_rows(
    model: Model, texts: Mapping[str, str], target: str | None
) -> tuple[dict[str, str], list[str]]:
    """Choose whether rows are rounded for NVFP4 weights.

    Empty for a model without such weights, or if the user sets it. ``target`` is as for
    `settled_attention`.
    """
    default = model.options().get(_ROWS)
    if default is None or texts.get(_ROWS, default) != _AUTO:
        return {}, []
    settings = model.with_options(texts)
    is_language = isinstance(settings, LanguageModel)
    if not is_language or "nvfp4" not in astuple(settings.precision):
        return {}, []
    capability = None if target is None else compute_capability(target)
    if capability is None or capability < _BLACKWELL:
        note = (
            "weights in NVFP4 are widened where they are multiplied: products are of 16 bits "
            f"(--set {_ROWS}=nvfp4 rounds rows too, as parts that multiply 4 bits do)"
        )
        return {_ROWS: "same"}, [note]
    note = f"rows are rounded to 4 bits where they meet weights in NVFP4, which {target} multiplies"
    return {_ROWS: "nvfp4"}, [note]


def settled_attention(
    model: Model, texts: Mapping[str, str], target: str | None
) -> tuple[dict[str, str], list[str]]:
    """Choose the attention kernels for ``auto``.

    ``texts`` are the user's settings, ``target`` is the device that runs the model: a node or a
    compilation target, None if unknown. Raises `ConfigError` for fused attention on a target that
    has none.

    >>> from hespas.models.catalogue import model_named
    >>> settled_attention(model_named("llama3-8b"), {}, "H100_80GB")[0]
    {'attention': 'cudnn'}
    >>> settled_attention(model_named("llama3-8b"), {}, "TPUv5e")[0]
    {'attention': 'splash'}
    >>> settled_attention(model_named("llama3-8b"), {}, "TPUv3")[0]
    {'attention': 'unfused'}
    """
    default = model.options().get(_SETTING)
    requested = texts.get(_SETTING, default)
    missing = _missing_kernels(str(requested), target) if requested in FUSED else ""
    if missing:
        raise ConfigError(missing, location=model.name, hint=f"drop {option(_SETTING)}")
    if default is None or requested != _AUTO:
        return {}, []
    settings = model.with_options(texts)
    kernels = _usual_kernels(target, settings)
    why = _why_unfused(kernels, target, settings)
    if why:
        return {_SETTING: _UNFUSED}, [f"attention is unfused, one operation after another: {why}"]
    return {_SETTING: kernels}, [_SAID[kernels].format(target=target)]


def _usual_kernels(target: str | None, settings: Any) -> str:
    if target is not None and _is_tpu(target):
        return "splash"
    if isinstance(settings, LanguageModel) and settings.latent is not None:
        if isinstance(settings.run, Decode):
            return "flashmla"
        is_selecting = settings.is_longer_than_index and isinstance(settings.run, Prefill)
        if is_selecting and not _missing_kernels("flashmla", target):
            return "flashmla"
    usual = _vendors_kernels(target)[:1]
    return usual[0] if usual else "cudnn"


def _vendors_kernels(target: str | None) -> tuple[str, ...]:
    return node_info(target).attention_kernels if target in device_names() else ()


def _is_tpu(target: str) -> bool:
    try:
        return is_tpu(target) is True
    except HespasError:
        return False


def _why_unfused(kernels: str, target: str | None, settings: Any) -> str:
    if target is None:
        return (
            "nothing says that what runs it has fused kernels; "
            f"--attention {kernels} says that it has them"
        )
    missing = _missing_kernels(kernels, target)
    if missing:
        return missing
    capability = compute_capability(target)
    # The capability of every NVIDIA preset is known.
    is_unknown = capability is None and kernels not in _vendors_kernels(target)
    if FUSED[kernels].platform == "cuda" and is_unknown:
        return f"it is not known whether {target} has fused kernels"
    if isinstance(settings, LanguageModel) and kernels == "cudnn":
        size = max(settings.head_sizes)
        if size > _SMALL_HEADS and capability is not None and capability < _HOPPER:
            return f"on {target} cuDNN's fused kernels have no heads of {size}"
    return settings.why_not(kernels)


def _missing_kernels(kernels: str, target: str | None) -> str:
    """Return why a target lacks kernels, or ""."""
    if target is None or kernels in _vendors_kernels(target):
        return ""
    capability = compute_capability(target)
    match kernels:
        case "splash":
            if not _is_tpu(target):
                return f"{target} has no splash attention: its kernels are for TPUs"
            old = target.casefold() in {name.casefold() for name in _WITHOUT_PALLAS}
            return f"{target} has no splash attention: Pallas is for newer TPUs" if old else ""
        case "flash" | "flash2" | "flash_triton":
            has = capability is not None and _AMPERE <= capability < _BLACKWELL
            return (
                ""
                if has
                else (
                    f"FlashAttention-2 and -3 have no kernels for {target}: they are for NVIDIA's "
                    "Ampere, Ada and Hopper"
                )
            )
        case _:
            unknown = capability is None and part_of(target) is None
            least = _HOPPER if kernels == "flashmla" else _AMPERE
            has = capability is not None and capability >= least
            kernels_text = "FlashMLA" if kernels == "flashmla" else "fused attention of cuDNN"
            return "" if unknown or has else f"{target} has no {kernels_text}"


def with_both_axes(source: ModelSource) -> ModelSource:
    """Add the missing axis of `REDUCED`, with size 1.

    Its program is that of ``source`` by `hespas.sources.workload.on_mesh`. Others are returned
    unchanged: those with both or neither, and those that both axes don't divide. Raises
    `ConfigError` for settings that do not fit, in terms of the mesh that was given.

    >>> from hespas.sources.options import ModelOptions
    >>> from hespas.sources.source import find_source
    >>> from hespas.models.model import parse_mesh
    >>> options = ModelOptions(mesh=parse_mesh("fsdp=4,tp=2"))
    >>> with_both_axes(find_source("llama3-8b", options, devices=8)).texts["mesh"]
    'data=1,fsdp=4,tp=2'
    """
    settings, mesh = source.settings, source.mesh
    present = mesh.present(REDUCED)
    if source.part is not None or len(present) != 1 or not isinstance(settings, LanguageModel):
        return source
    dividing = {axis for axes in settings.axes.values() for axis in axes}
    if not isinstance(settings.run, Training) or settings.run.zero or not set(REDUCED) <= dividing:
        return source
    settings.check()
    both = ",".join(f"{axis}={mesh.size(axis)}" for axis in REDUCED)
    axes = (both if axis in REDUCED else f"{axis}={size}" for axis, size in mesh.axes)
    return replace(source, texts={**source.texts, "mesh": ",".join(axes)})


def same_but_for_sizes(source: ModelSource) -> ModelSource:
    """Return a representative of all sources whose programs `on_mesh` converts.

    Two sources with the same one differ only in sizes of mesh axes.

    >>> from hespas.sources.options import ModelOptions
    >>> from hespas.sources.source import find_source
    >>> from hespas.models.model import parse_mesh
    >>> options = ModelOptions(mesh=parse_mesh("data=2,fsdp=4,tp=2"))
    >>> same_but_for_sizes(find_source("llama3-8b", options, devices=16)).texts["mesh"]
    'data.fsdp.tp=8,tp=2'
    """
    settings, mesh = source.settings, source.mesh
    if source.part is not None:
        return _of_one_share(source)
    is_decoder = isinstance(settings, LanguageModel)
    if not is_decoder or not set(REDUCED) <= set(mesh.names):
        return source
    if isinstance(settings.run, Training) and settings.run.zero in {1, 2}:
        return source  # Each data-parallel device has gradients of its own.
    other_axes = (f"{name}={size}" for name, size in mesh.axes if name not in REDUCED)
    mesh_text = ",".join((f"{'.'.join(mesh.names)}={mesh.size(*REDUCED)}", *other_axes))
    return replace(source, texts={**source.texts, "mesh": mesh_text})


def _of_one_share(source: ModelSource) -> ModelSource:
    """Return the source of a part's program with one data-parallel device.

    A part's program has a micro-batch of one of them; the part's own mesh divides its arrays.
    """
    settings = source.settings
    if not isinstance(settings, LanguageModel):
        return source
    if not isinstance(settings.run, Training) or settings.run.zero:
        return source
    kept = [(name, size) for name, size in settings.mesh.axes if name not in REDUCED]
    changed = {
        "mesh": str(MeshAxes(axes=tuple(kept) or ((REDUCED[0], 1),))),
        "batch": str(settings.batch // settings.accumulation),
        "accumulation": "1",
    }
    part = _with_any_shares(source.part, settings)
    return replace(source, texts={**source.texts, **changed}, part=part)


def _with_any_shares(part: Part | None, settings: LanguageModel) -> Part | None:
    """Return a part whose update divides arrays over as many axes.

    Only the mesh says over how many devices, where they divide every width evenly.
    """
    if part is None or part.program is not PartProgram.UPDATE:
        return part
    ranks = () if settings.latent is None else (settings.latent.query_rank, settings.latent.kv_rank)
    widths = (settings.sizes_of_layers.embedding, *ranks)
    if any(width % part.mesh.device_count for width in widths):
        return part
    axes = ((name, min(size, 2) if name in SHARED else size) for name, size in part.mesh.axes)
    return replace(part, mesh=MeshAxes(axes=tuple(axes)))
