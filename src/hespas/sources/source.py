"""What a workload is: a model of the zoo, one's own function, a file, or a dump of XLA's.

`find_source` says which of them a text names; it neither imports JAX nor reads a program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from hespas.base.suggest import nearest
from hespas.compile.targets import GpuTarget, find_target
from hespas.errors import ConfigError, DeviceCountError, HespasError, ProgramError, option
from hespas.models.catalogue import Llama2, Llama3, model_named, models
from hespas.models.language import Decode, LanguageModel, Training
from hespas.models.model import TYPE_BYTES, MeshAxes, Model
from hespas.models.part import PIPE, Part
from hespas.sources.attention import settled_attention
from hespas.sources.maxtext.source import DEFAULT_CONFIG, MaxTextStep
from hespas.sources.options import NO_MODEL_OPTIONS, ModelOptions

_LOOPS = Path(__file__).with_name("loops.json")
"""Compiled steps both ways, as validation/loops.py compared them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a step takes in, over all devices: ``samples`` sequences or images (``what``).

    ``tokens`` is None for what has none.
    """

    samples: int
    what: str
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model of the zoo: ``texts`` are the settings that differ from its own.

    With a ``part`` it is a program of that alone. ``notes`` say what was settled for the user.
    """

    model: Model
    texts: Mapping[str, str]
    notes: tuple[str, ...] = ()
    part: Part | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    @property
    def settings(self) -> Any:
        """All settings of the model, as values."""
        return self.model.with_options(self.texts)

    @property
    def mesh(self) -> MeshAxes:
        """The mesh that the model is divided over."""
        return self.settings.mesh if self.part is None else self.part.mesh

    @property
    def batch(self) -> Batch | None:
        """What a step takes in; None for a model without a batch."""
        settings = self.settings
        if self.part is not None or not hasattr(settings, "parts"):
            return None
        samples = settings.batch * settings.parts
        if not hasattr(settings, "sequence"):
            return Batch(samples=samples, what="images")
        return Batch(samples=samples, what="sequences", tokens=samples * settings.sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSource:
    """One's own function, as in ``package.module:function``; ``devices`` are virtual ones.

    It is lowered for ``platform``, by JAX's name (``cpu``, ``cuda``, ``tpu``): libraries differ.
    """

    name: str
    devices: int | None = None
    platform: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """A file: a program, or what ``jax.export`` serialised."""

    path: Path

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpSource:
    """A directory that XLA dumped into; ``module`` is a part of a module's name."""

    path: Path
    module: str | None = None

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)


Source = ModelSource | FunctionSource | FileSource | DumpSource | MaxTextStep
_MAXTEXT = "maxtext:"


def find_source(
    text: str,
    options: ModelOptions = NO_MODEL_OPTIONS,
    *,
    devices: int | None = None,
    target: str | None = None,
    loops: bool = False,
) -> Source:
    """Return what ``text`` names; a file or directory goes before a model of the same name.

    ``maxtext:CONFIG`` is a step of MaxText, for the accelerator ``target``: its settings are those
    of ``--set``.

    ``devices`` is how many there are, if that is known: a model's mesh follows from it, where the
    options name none. With ``loops`` a model's layers are a loop unless the options say otherwise.
    Raises `ConfigError` for an unknown model and for options that don't fit, `ProgramError` for
    what looks like a file that isn't there.

    >>> find_source("llama3-100m", devices=8).mesh.axes
    (('fsdp', 8),)
    >>> find_source("mypackage.steps:train")
    FunctionSource(name='mypackage.steps:train', devices=None, platform='cpu')
    """
    path = Path(text)
    if path.is_dir():
        _refuse(options, "a dump")
        return DumpSource(path=path)
    if path.exists():
        _refuse(options, "a file")
        return FileSource(path=path)
    if text.startswith(_MAXTEXT):
        return _maxtext(text.removeprefix(_MAXTEXT), options, devices=devices, target=target)
    if ":" in text:
        _refuse(options, "a function")
        return FunctionSource(name=text, devices=devices, platform=platform_of(target))
    if text in models():
        return _model(model_named(text), options, devices=devices, target=target, loops=loops)
    if text == _MAXTEXT.removesuffix(":"):
        raise ConfigError(
            "a step of MaxText needs a configuration",
            hint=f"write {_MAXTEXT}base.yml, and its settings as {option('set')} KEY=VALUE",
        )
    close = nearest(text, models())
    # Names of models have dots too, as llama3.1-405b.
    if "/" in text or path.suffix[1:].isalnum() or not close:
        raise ProgramError(
            "no such file",
            location=text,
            hint="check the path, or name a model (hespas export --list)",
        )
    raise ConfigError(
        f"there is no model or file {text!r}",
        hint=f"did you mean {' or '.join(map(repr, close))}?",
    )


def platform_of(target: str | None) -> str:
    """Return what JAX lowers a function for: CPUs where no compiler serves the target."""
    if target is None:
        return "cpu"
    try:
        found = find_target(target)
    except HespasError:
        return "cpu"
    return "cuda" if isinstance(found, GpuTarget) else "tpu"


def _refuse(options: ModelOptions, what: str) -> None:
    names = options.names
    if names:
        raise ConfigError(
            f"{', '.join(map(option, names))} {'is' if len(names) == 1 else 'are'} for models of "
            f"the zoo; {what} has no such option",
            hint="drop it" if len(names) == 1 else "drop them",
        )


def _maxtext(
    config: str, options: ModelOptions, *, devices: int | None, target: str | None
) -> MaxTextStep:
    other = [name for name in options.names if name not in options.settings]
    if other:
        raise ConfigError(
            f"{', '.join(map(option, other))} {'is' if len(other) == 1 else 'are'} for models of "
            "the zoo; MaxText has settings of its own",
            hint=f"give them with {option('set')}, as in ici_fsdp_parallelism=8",
        )
    if devices is None or target is None:
        raise ConfigError(
            "a step of MaxText is made for a cluster, and none is given",
            location=f"{_MAXTEXT}{config}",
            hint=f"give {option('cluster')}, as in 32xH100_80GB",
        )
    settings = tuple(f"{name}={value}" for name, value in options.settings.items())
    return MaxTextStep(
        config=config or DEFAULT_CONFIG,
        settings=settings,
        target=find_target(target),
        devices=devices,
    )


def _model(
    model: Model,
    options: ModelOptions,
    *,
    devices: int | None,
    target: str | None,
    loops: bool,
) -> ModelSource:
    """Return a model with its settings settled, which are checked without building it."""
    texts, notes = options.texts(), list[str]()
    known = model.options()
    if "mesh" not in texts and devices is not None:
        mesh = _spread(model.settings.mesh, devices, model=model.name)
        texts["mesh"] = str(mesh)
        notes.append(f"the mesh is {mesh}, since none is given")
    if loops and "scan" in known and "scan" not in texts:
        texts["scan"] = "true"
        notes.append(_loop_note())
    attention, attention_notes = settled_attention(model, texts, target)
    texts |= attention
    notes += attention_notes
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
    of_settings = (*_states_note(settings), *_heads_note(settings), *_batch_note(source))
    return replace(source, notes=(*notes, *of_settings))


def _states_note(settings: object) -> Iterator[str]:
    """Say what type weights and moments have in training, and how to change it."""
    match settings:
        case Llama2() | Llama3() | LanguageModel(run=Training()):
            own = settings.state_dtype
        case _:
            return
    other = "bf16" if own == "f32" else "f32"
    yield (
        f"memory: AdamW's weights and both moments are held in {own}, {3 * TYPE_BYTES[own]} bytes "
        f"a parameter (--set state_dtype={other} holds them in {3 * TYPE_BYTES[other]})"
    )


def _heads_note(settings: object) -> Iterator[str]:
    """Say that heads of keys and values are on several devices each."""
    if not isinstance(settings, LanguageModel) or settings.latent is not None:
        return
    has = settings.sizes_of_layers.kv_heads
    if settings.kv_heads > has:
        yield (
            f"each of {has} heads of keys and values is computed and held by "
            f"{settings.kv_heads // has} tensor-parallel devices"
        )


def _one_stage(mesh: MeshAxes) -> MeshAxes:
    """Return a mesh without the axis of a pipeline of one stage; `ConfigError` for several."""
    if mesh.size(PIPE) > 1:
        raise ConfigError(
            f"{PIPE}={mesh.size(PIPE)} makes a pipeline of several programs; one is needed here",
            hint=f"hespas run predicts pipelines; for one program take {PIPE} out of "
            f"{option('mesh')}",
        )
    return MeshAxes(axes=tuple(axis for axis in mesh.axes if axis[0] != PIPE) or (("data", 1),))


def _spread(mesh: MeshAxes, devices: int, *, model: str) -> MeshAxes:
    """Return a model's mesh with as much along its first axis as makes up all devices."""
    (first, _), *others = mesh.axes
    rest = MeshAxes(axes=tuple(others)).device_count if others else 1
    if devices % rest:
        raise DeviceCountError(
            f"{devices} devices do not fit the mesh of {model}, whose other axes have {rest}",
            hint=f"give {option('mesh')}",
        )
    return MeshAxes(axes=((first, devices // rest), *others))


def _check_count(mesh: MeshAxes, devices: int | None) -> None:
    if devices is not None and mesh.device_count != devices:
        raise DeviceCountError(
            f"the mesh {mesh} has {mesh.device_count} devices, and there are {devices}",
            hint=f"give {option('mesh')} sizes that multiply to {devices}, or as many devices "
            f"as the mesh has",
        )


def _share(global_batch: int, source: ModelSource) -> int:
    """Return a part's share of a global batch."""
    if source.batch is None:
        raise ConfigError(f"{source.name} has no batch", hint=f"drop {option('global_batch')}")
    parts = source.settings.parts
    share, rest = divmod(global_batch, parts)
    if rest or share < 1:
        below, above = share * parts, (share + 1) * parts
        raise ConfigError(
            f"{option('global_batch')} {global_batch} cannot be divided over the {parts} "
            f"data-parallel parts of the mesh {source.mesh}",
            hint=f"give {f'{below} or ' if below else ''}{above}",
        )
    return share


def _rounds(options: ModelOptions, source: ModelSource) -> int | None:
    """Return in how many rounds a part's batch is computed; None where that is not asked for."""
    size, count = options.micro_batch, options.micro_batches
    name, given = ("micro_batch", size) if count is None else ("micro_batches", count)
    if given is None:
        return None
    if "accumulation" not in source.model.options():
        raise ConfigError(
            f"{source.name} does not accumulate gradients", hint=f"drop {option(name)}"
        )
    batch = source.settings.batch
    if not 1 <= given <= batch or batch % given:
        raise ConfigError(
            f"{option(name)} {given} does not divide the batch of a data-parallel part, {batch}",
            hint=f"give a divisor of {batch}, or another {option('batch')}",
        )
    return batch // given if count is None else count


class _Loops(msgspec.Struct, frozen=True, kw_only=True):
    """By which part the computation of steps is longer with a loop than without."""

    least: float
    most: float


@cache
def _loop_note() -> str:
    longer = msgspec.json.decode(_LOOPS.read_bytes(), type=_Loops)
    return (
        "the model's layers are one loop (scan), which compiles in a fraction of the time: the "
        f"computation of compiled steps is {100 * longer.least:.0f} to {100 * longer.most:.0f} % "
        "longer than with layers written out (unrolled)"
    )


def _batch_note(source: ModelSource) -> tuple[str, ...]:
    batch = source.batch
    if batch is None:
        return ()
    settings = source.settings
    each = f" of {settings.sequence} tokens" if batch.tokens is not None else ""
    if isinstance(getattr(settings, "run", None), Decode):
        new = "1 new token" if settings.sequence == 1 else f"{settings.sequence} new tokens"
        each = f" of {settings.context} tokens, {new} with them"
    rounds = getattr(settings, "accumulation", 1)
    steps = f", {settings.batch // rounds} at a time" if rounds > 1 else ""
    note = (
        f"the batch is {batch.samples} {batch.what}{each}: {settings.batch} for each of "
        f"{settings.parts} data-parallel parts{steps}"
    )
    return (note,)
