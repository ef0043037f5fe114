"""Find models by the name or path of their configuration.

A name is ``ORG/NAME``, as weights are published under, or the second part alone where one
organisation has it; ``:prefill`` and ``:decode`` behind it are its steps of inference. A path is
that of a ``config.json`` or of the directory that has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any

from hespas.base.files import change_of
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError
from hespas.models.configuration import (
    FILE,
    SHIPPED,
    Configuration,
    configured,
    is_known,
    read_configuration,
)
from hespas.models.families import SHORT_NAMES
from hespas.models.language import LanguageModel
from hespas.models.model import MeshAxes, Model
from hespas.models.network_model import (
    Inferring,
    Learning,
    Network,
    Reading,
    Writing,
    network_parameters,
    run_of,
    steps_of,
)
from hespas.models.parameters import active_parameters, parameters, weight_bytes
from hespas.models.quantization import Precision
from hespas.models.resnet_layers import ResNet
from hespas.models.runs import Decode, Prefill, Training
from hespas.models.software import ARGUMENTS_PREFIX

STEPS = ("training", "prefill", "decode", "inference")
"""What follows a colon behind the name of a model."""
_SUMMARIES = {
    "training": "training step",
    "prefill": "on prompts, whose keys and values fill a cache",
    "decode": "making a token for each sequence of a cache",
    "inference": "forward pass",
}
_TRAINED_BYTES = 18
"""For each parameter: 16 of states, copies and gradients, and 2 of room."""
_DEVICE_BYTES = 70e9
_EXPERT_DEVICES = 8
"""Those that experts are divided over: a node of GPUs, as Megatron-Bridge's recipes have it."""
_LONGEST = 4096


def published() -> tuple[str, ...]:
    """Return the names of the published models.

    >>> "Qwen/Qwen3-30B-A3B" in published()
    True
    """
    return tuple(_shipped_names().values())


def configured_model(text: str) -> Model | None:
    """Return the step that a name or path means.

    Returns None for other texts. Raises `ConfigError` for a configuration that can't be read.

    >>> configured_model("Qwen/Qwen3-8B:decode").summary
    'Qwen3-8B making a token for each sequence of a cache, 8.191 B parameters'
    """
    if text.startswith(ARGUMENTS_PREFIX):
        return _megatron_model(text)
    name, _ = _name_and_step(text)
    meant = SHORT_NAMES.get(name, name)
    file = _file(meant) if isinstance(meant, str) else None
    if file is None:
        return _configured(text, None, (0, 0))
    file = (file / FILE if file.is_dir() else file).resolve()
    return _configured(text, file, change_of(file))


@lru_cache(maxsize=64)
def _configured(
    text: str,
    file: Path | None,  # noqa: ARG001 - of the key
    change: tuple[int, int],  # noqa: ARG001 - of the key
) -> Model | None:
    """Return the cached step of a name or unchanged file."""
    name, step = _name_and_step(text)
    configuration = configuration_of(name)
    if configuration is None and ":" in text:
        _check_spelling(text)
    return None if configuration is None else _step(configuration, name, step)


def _check_spelling(text: str) -> None:
    """Raise `ConfigError` for an unknown step or model; functions pass."""
    name, _, step = text.rpartition(":")
    if configuration_of(name) is not None:
        raise ConfigError(f"{name} has no step {step!r}", hint=suggestion(step, STEPS))
    is_module = all(part.isidentifier() for part in name.split("."))
    if step in STEPS and not is_module and not name.endswith(".py"):
        raise ConfigError(f"there is no model {name!r}", hint=suggestion(name, published()))


def _megatron_model(text: str) -> Model:
    from hespas.models.megatron import read_arguments  # noqa: PLC0415 - few workloads have them

    path = Path(text.removeprefix(ARGUMENTS_PREFIX)).resolve()
    arguments = read_arguments(path)
    count = parameters(arguments.model)
    return Model(
        name=f"{ARGUMENTS_PREFIX}{path}",
        summary=f"{path.name} training step, {count / 1e9:.3f} B parameters",
        settings=arguments.model,
        notes=arguments.notes,
    )


def configuration_of(name: str) -> Configuration | None:
    """Read the configuration of a name or path.

    Returns None for other texts. A checkpoint whose configuration is not shipped has the sizes of
    the one that it is made from, as ``-Instruct`` and ``-FP8`` behind a name say.
    """
    meant = SHORT_NAMES.get(name, name)
    if not isinstance(meant, str):
        return configured(meant, location=name, name=name)
    file = _file(meant)
    if file is not None:
        return read_configuration(file)
    base, stored = _base_model(name)
    if base is None:
        return None
    configuration = read_configuration(SHIPPED / f"{base}.json")
    note = f"{name} has the sizes of {base}"
    if stored is None:
        return replace(configuration, notes=(*configuration.notes, note))
    precision = Precision(
        attention=stored, dense=stored, experts=stored, cache=configuration.precision.cache
    )
    note += f", and all products of its layers have weights in {stored}"
    return replace(configuration, precision=precision, notes=(*configuration.notes, note))


_VARIANT = re.compile(r"-(instruct|thinking|chat|it|hf|base|\d{4})$")
_STORED = re.compile(r"-(fp8|nvfp4|fp4|awq|int4)(-.*)?$")
_FORMATS = {"fp8": "f8", "nvfp4": "nvfp4", "fp4": "nvfp4", "awq": "int4", "int4": "int4"}


def _base_model(name: str) -> tuple[str | None, str | None]:
    """Return a checkpoint's shipped configuration, and how it is stored."""
    folded = name.casefold()
    stored = _STORED.search(folded)
    key = _plain_name(folded[: stored.start()] if stored else folded)
    alike = [
        full for folded_name, full in _shipped_names().items() if _plain_name(folded_name) == key
    ]
    organisation = folded.partition("/")[0]
    own = [full for full in alike if full.casefold().startswith(f"{organisation}/")]
    of_organisation = own or alike
    if len(of_organisation) != 1:
        return None, None
    return of_organisation[0], _FORMATS[stored[1]] if stored else None


def _plain_name(name: str) -> str:
    """Return a name's second part, without fine-tuning suffixes.

    >>> _plain_name("meta-llama/meta-llama-3.1-8b-instruct")
    'llama-3.1-8b'
    """
    plain = name.rpartition("/")[2].removeprefix("meta-")
    while match := _VARIANT.search(plain):
        plain = plain[: match.start()]
    return plain


def _name_and_step(text: str) -> tuple[str, str]:
    name, _, step = text.rpartition(":")
    if step in STEPS and name:
        return name, step
    name, _, step = text.rpartition("-")
    return (name, step) if step in STEPS and name in SHORT_NAMES else (text, "training")


def _file(name: str) -> Path | None:
    path = Path(name)
    if path.is_dir():
        return path if (path / FILE).is_file() else None
    if path.is_file():
        return path if path.suffix == ".json" else None
    folded = name.casefold()
    matches = [
        full
        for key, full in _shipped_names().items()
        if folded == (key if "/" in name else key.partition("/")[2])
    ]
    return SHIPPED / f"{matches[0]}.json" if len(matches) == 1 else None


@cache
def _shipped_names() -> Mapping[str, str]:
    names = sorted(
        f"{file.parent.name}/{file.stem}"
        for file in SHIPPED.glob("*/*.json")
        if is_known(json.loads(file.read_bytes()))
    )
    return {name.casefold(): name for name in names}


def _step(configuration: Configuration, name: str, step: str) -> Model:
    model = configuration.model
    if isinstance(model, LanguageModel):
        count, active = parameters(model), active_parameters(model)
    else:
        count = active = counted(model)
    _check_step(model, name, step)
    some = f", {active / 1e9:.3f} B of them active" if active != count else ""
    # Another process, in another directory, reads a file by the same name.
    location = str(Path(name).resolve()) if Path(name).exists() else name
    title = configuration.name.removesuffix(".json")
    trains = step == "training"
    settings: Any
    match model:
        case ResNet():
            mesh = MeshAxes(axes=(("data", 8 if trains else 1),))
            settings = replace(model, train=trains, loss_scale=trains, mesh=mesh)
        case Network():
            settings = replace(model, run=_network_run(model, step))
        case LanguageModel():
            settings = replace(model, run=_language_run(model, configuration, step))
    return Model(
        name=location if trains else f"{location}{'-' if name in SHORT_NAMES else ':'}{step}",
        summary=f"{title} {_SUMMARIES[step]}, {count / 1e9:.3f} B parameters{some}",
        settings=settings,
        notes=configuration.notes,
    )


def counted(model: Network | ResNet) -> int:
    """Return how many weights a network has."""
    if isinstance(model, Network):
        return network_parameters(model)
    return sum(prod(shape) for shape in model.weights.values())


def _check_step(model: LanguageModel | Network | ResNet, name: str, step: str) -> None:
    steps = STEPS[:3]
    if not isinstance(model, LanguageModel):
        steps = steps_of(model.design if isinstance(model, Network) else model)
    if step not in steps:
        lacks = "writes no tokens one after the other" if step != "inference" else "writes tokens"
        raise ConfigError(
            f"{name} has no step {step}: it {lacks}", hint=f"its steps are {', '.join(steps)}"
        )


def _network_run(model: Network, step: str) -> Learning | Inferring | Reading | Writing:
    count = network_parameters(model)
    is_small = count * _TRAINED_BYTES < _DEVICE_BYTES / 2
    if step == "training":
        devices = _devices(count * _TRAINED_BYTES, least=8)
        mesh = MeshAxes(axes=(("data" if is_small else "fsdp", devices),))
        return run_of(model.design, step, mesh)
    return run_of(model.design, step, MeshAxes(axes=(("data", 1),)))


def _language_run(
    model: LanguageModel, configuration: Configuration, step: str
) -> Training | Prefill | Decode:
    """Return a decoder's default run, on few devices."""
    sequence = min(configuration.longest, _LONGEST)
    count = parameters(model)
    if step == "training":
        devices = _devices(count * _TRAINED_BYTES, least=8)
        axes = (("fsdp", devices),)
        if model.routing is not None and model.routing.experts % _EXPERT_DEVICES == 0:
            axes = (("fsdp", devices // _EXPERT_DEVICES), ("expert", _EXPERT_DEVICES))
        return Training(mesh=MeshAxes(axes=axes), sequence=sequence)
    heads = model.kv_heads if model.latent is None else model.sizes_of_layers.heads
    devices = _devices(weight_bytes(model, configuration.precision), least=1)
    while model.sizes_of_layers.heads % devices or (devices > heads and devices % heads):
        devices //= 2
    mesh = MeshAxes(axes=(("tp", devices),))
    tokens = min(sequence, 2048)
    run = Decode(mesh=mesh, context=tokens)
    if step == "prefill":
        run = Prefill(mesh=mesh, sequence=tokens)
    precision = configuration.precision
    dense, experts = precision.dense, precision.experts
    return replace(
        run,
        weight_dtype=dense,
        attention_dtype="same" if precision.attention == dense else precision.attention,
        expert_dtype="same" if model.routing is None or experts == dense else experts,
        cache_dtype=precision.cache,
    )


def _devices(needed: float, *, least: int) -> int:
    devices = least
    while needed / devices > _DEVICE_BYTES:
        devices *= 2
    return devices
