"""Sources of workloads: models, functions, files, dumps, MaxText, PyTorch.

`find_source` resolves a text to one of them; it neither imports JAX nor reads a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hespas.base.fields import refuse_unused
from hespas.base.frozen import frozen
from hespas.base.suggest import nearest
from hespas.compile.targets import compute_capability, find_target, recorded_target
from hespas.errors import ConfigError, HespasError, ProgramError, option
from hespas.models.model import MeshAxes, Model, Part
from hespas.program.recorded import is_recorded_file
from hespas.sources.maxtext import DEFAULT_CONFIG, MaxTextStep
from hespas.sources.options import (
    MODEL,
    NO_MODEL_OPTIONS,
    NO_TORCH_OPTIONS,
    TORCH,
    ModelOptions,
    TorchOptions,
)
from hespas.sources.torch_step import (
    PREFIX,
    TorchStep,
    hugging_face_step,
    is_hugging_face,
    torch_step,
)


@frozen
class Batch:
    """The input of a step over all devices.

    ``tokens`` is None for inputs without tokens.
    """

    samples: int
    what: str
    tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A model of the zoo, with changed settings.

    With a ``part`` it is a program of that alone. ``notes`` say which settings were chosen for the
    user.
    """

    model: Model
    texts: Mapping[str, str]
    notes: tuple[str, ...] = ()
    part: Part | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    @cached_property
    def settings(self) -> Any:
        """All settings of the model, as values."""
        return self.model.with_options(self.texts)

    @property
    def mesh(self) -> MeshAxes:
        """The mesh that the model is divided over."""
        return self.settings.mesh if self.part is None else self.part.mesh

    @property
    def batch(self) -> Batch | None:
        """The input of a step, or None without a batch."""
        settings = self.settings
        if self.part is not None or not hasattr(settings, "parts"):
            return None
        samples = settings.batch * settings.parts
        tokens = getattr(settings, "sequence", None)
        if tokens is None:
            return Batch(samples=samples, what=getattr(settings, "samples_are", "images"))
        return Batch(samples=samples, what="sequences", tokens=samples * tokens)


@frozen
class FunctionSource:
    """A user's function, as in ``package.module:function``, with virtual ``devices``.

    It is lowered for ``platform``, by JAX's name (``cpu``, ``cuda``, ``tpu``): libraries differ.
    """

    name: str
    devices: int | None = None
    platform: str = "cpu"


@frozen
class FileSource:
    """A file: a program, or an artifact of ``jax.export``."""

    path: Path

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)


@frozen
class DumpSource:
    """A directory that XLA dumped into."""

    path: Path
    module: str | None = None

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)


Source = ModelSource | FunctionSource | FileSource | DumpSource | MaxTextStep | TorchStep
_MAXTEXT = "maxtext:"


def find_source(
    text: str,
    options: ModelOptions = NO_MODEL_OPTIONS,
    torch: TorchOptions = NO_TORCH_OPTIONS,
    *,
    devices: int | None = None,
    target: str | None = None,
    loops: bool = False,
) -> Source:
    """Resolve a text to a source.

    ``maxtext:CONFIG`` is a step of MaxText, for the accelerator ``target``: its settings are those
    of ``--set``. ``torch:FILE.py:function`` is the user's step of PyTorch, with the function's
    arguments in their place, and ``torch:FILE.py`` a script with its loop.

    ``devices`` is the number of devices, if known: a model's mesh follows from it unless the
    options name one. With ``loops`` a model's layers are a loop unless the options say otherwise.
    Raises `ConfigError` for an unknown model and for options that don't fit, `ProgramError` for the
    name of a missing file.

    >>> find_source("llama3-100m", devices=8).mesh.axes
    (('fsdp', 8),)
    >>> find_source("mypackage.steps:train")
    FunctionSource(name='mypackage.steps:train', devices=None, platform='cpu')
    """
    path = Path(text)
    if text.startswith(PREFIX) and not path.exists():
        return _torch(text.removeprefix(PREFIX), options, torch, devices=devices, target=target)
    refuse_unused(torch, {TORCH: text})
    if _may_be_model(path, text):
        # Programs in files need neither import.
        from hespas.models.catalogue import find_model  # noqa: PLC0415
        from hespas.sources.zoo import model_source  # noqa: PLC0415

        model = find_model(f"{text}:{options.step}" if options.step else text)
        if model is not None:
            return model_source(model, options, devices=devices, target=target, loops=loops)
    if path.is_dir():
        refuse_unused(options, {MODEL: "a dump"})
        return DumpSource(path=path)
    if path.suffix == ".py" and path.exists():
        raise ConfigError(
            "a script is no program",
            location=text,
            hint=f"write {PREFIX}{text} for one of PyTorch, or PACKAGE.MODULE:FUNCTION for JAX's",
        )
    if path.exists():
        refuse_unused(options, {MODEL: "a file"})
        return FileSource(path=path)
    if text.startswith(_MAXTEXT):
        return _maxtext(text.removeprefix(_MAXTEXT), options, devices=devices, target=target)
    if ":" in text:
        refuse_unused(options, {MODEL: "a function"})
        return FunctionSource(name=text, devices=devices, platform=platform_of(target))
    if text == _MAXTEXT.removesuffix(":"):
        raise ConfigError(
            "a step of MaxText needs a configuration",
            hint=f"write {_MAXTEXT}base.yml, and its settings as {option('set')} KEY=VALUE",
        )
    raise unknown_workload(text, options.step)


def _may_be_model(path: Path, text: str) -> bool:
    if is_recorded_file(path):
        return False
    if path.is_dir() or path.suffix == ".json":
        from hespas.models.configuration import is_configuration  # noqa: PLC0415 - of few workloads

        return is_configuration(path)
    return not path.exists() and not text.startswith(_MAXTEXT)


def unknown_workload(text: str, step: str = "") -> HespasError:
    """Return the error of a text without a source."""
    from hespas.models.catalogue import find_model, names  # noqa: PLC0415 - for this error alone

    if step and find_model(text) is not None:
        return ConfigError(
            f"{text} has no step of {step}",
            location=text,
            hint=f"{option(step)} is of language models that hespas models lists",
        )
    close = nearest(text, names())
    if close:
        return ConfigError(
            f"there is no model or file {text!r}",
            hint=f"did you mean {' or '.join(map(repr, close))}?",
        )
    return ProgramError(
        "no such file",
        location=text,
        hint="check the path, or name a model (hespas models lists them)",
    )


def platform_of(target: str | None) -> str:
    """Return JAX's platform for a target, or a part.

    NVIDIA's parts that no compiler describes are GPUs, too.

    >>> [platform_of(name) for name in ("H100_80GB", "L40S_48GB", "TPUv5e", "MI300X", None)]
    ['cuda', 'cuda', 'tpu', 'cpu', 'cpu']
    """
    if target is None:
        return "cpu"
    if compute_capability(target) is not None:
        return "cuda"
    try:
        find_target(target)
    except HespasError:
        return "cpu"
    return "tpu"


def _torch(
    text: str,
    options: ModelOptions,
    torch: TorchOptions,
    *,
    devices: int | None,
    target: str | None,
) -> TorchStep:
    machine = None if target is None else recorded_target(target)
    if is_hugging_face(text):
        return hugging_face_step(
            text,
            options.texts(),
            torch,
            step=options.step or "train",
            devices=devices,
            target=machine,
        )
    remedy = f"give arguments of the function with {option('set')}, as in batch=8"
    refuse_unused(replace(options, settings={}), {MODEL: "a step of PyTorch"}, remedy=remedy)
    return torch_step(text, options.settings, torch, devices=devices, target=machine)


def _maxtext(
    config: str, options: ModelOptions, *, devices: int | None, target: str | None
) -> MaxTextStep:
    remedy = f"give settings of MaxText with {option('set')}, as in ici_fsdp_parallelism=8"
    refuse_unused(replace(options, settings={}), {MODEL: "a step of MaxText"}, remedy=remedy)
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
