"""Describe models in a table, or one in detail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from msgspec import to_builtins

from hespas.base.suggest import suggestion
from hespas.base.units import format_bytes_binary, format_quantity
from hespas.errors import ConfigError, option
from hespas.models.architecture import LayerKind
from hespas.models.catalogue import MODELS, model_named, names
from hespas.models.configuration import read_configuration
from hespas.models.configured import configuration_of, published
from hespas.models.families import SHORT_NAMES
from hespas.models.figures import (
    TRAINED_BYTES,
    TRAINED_TOKENS,
    USABLE,
    ModelFigures,
    PartFigures,
    model_figures,
    zoo_figures,
)
from hespas.models.language import LanguageModel

_AS_IT_IS: Mapping[str, str] = MappingProxyType({})
_WIDTH = 48
_PART = "H100_80GB"
_FOOT = (
    "FLOPs and KV bytes are those of a token; FLOPs of encoders, diffusion models and recommenders "
    "are those of a sample. hespas models NAME (or the path of a config.json) "
    "shows all of one; hespas run NAME predicts it."
)


def figures_of(name: str | None, settings: Mapping[str, str] = _AS_IT_IS) -> list[ModelFigures]:
    """Return the figures of one model, or of all.

    An unknown name selects the models whose names contain it. ``settings`` are those of one model.
    """
    matching = _matching_models(name)
    if settings and (name is None or matching):
        raise ConfigError(
            f"{option('set')} changes one model, and {name or 'no name'} is none",
            hint=f"name it, as in hespas models {matching[0]}",
        )
    return [_describe(model_name, settings)[1] for model_name in matching or [name or ""]]


def _matching_models(name: str | None) -> list[str]:
    """Return the models whose names contain ``name``, by default all.

    Empty if ``name`` is the whole name of a model or of a configuration.
    """
    zoo = (model_name for model_name in MODELS if _language(model_name) is not None)
    all_names = [*published(), *dict.fromkeys((*zoo, *SHORT_NAMES))]
    if name is None:
        return all_names
    if name in MODELS or Path(name).exists() or configuration_of(name) is not None:
        return []
    return [model_name for model_name in all_names if name.casefold() in model_name.casefold()]


def _describe(name: str, settings: Mapping[str, str] = _AS_IT_IS) -> tuple[object, ModelFigures]:
    """Return a named or configured model, and its figures.

    Raises `ConfigError` for settings that change none of these.
    """
    described = _with_settings(name, settings)
    for setting, value in settings.items():
        remaining = {key: text for key, text in settings.items() if key != setting}
        if _with_settings(name, remaining)[1] == described[1]:
            raise ConfigError(
                f"{option('set')} {setting}={value} changes no figure of {name}",
                hint="drop it: the model has it, or steps alone (hespas run) depend on it",
            )
    return described


def _with_settings(name: str, settings: Mapping[str, str]) -> tuple[object, ModelFigures]:
    model = _language(name)
    if model is not None:
        model = MODELS[name].with_options(settings)
        return model, zoo_figures(model, name=name)
    if name in MODELS:
        raise ConfigError(f"{name} has no tokens", hint="hespas export --list describes it")
    configuration = configuration_of(name)
    if configuration is None and Path(name).exists():
        configuration = read_configuration(Path(name))
    if configuration is None:
        raise ConfigError(f"there is no model {name!r}", hint=suggestion(name, names()))
    if settings:
        configuration = replace(configuration, model=model_named(name).with_options(settings))
    return configuration.model, model_figures(configuration, name=name)


def _language(name: str) -> LanguageModel | None:
    settings = MODELS[name].settings if name in MODELS else None
    return settings if isinstance(settings, LanguageModel) else None


def models_json(name: str | None, settings: Mapping[str, str] = _AS_IT_IS) -> object:
    """Return the figures of models as JSON values."""
    return [to_builtins(figures) for figures in figures_of(name, settings)]


def models_text(name: str | None, settings: Mapping[str, str] = _AS_IT_IS) -> str:
    """Return models as a table, or one in detail."""
    if name is not None and not _matching_models(name):
        return _details(name, settings)
    head = (
        f"{'Model':<{_WIDTH}} {'parameters':>10} {'active':>10} {'FLOPs':>10} {'KV bytes':>10}  "
        f"on {_PART}: training, inference"
    )
    lines = [_line(figures) for figures in figures_of(name, settings)]
    return "\n".join([head, *lines, "", _FOOT])


def _line(figures: ModelFigures) -> str:
    clusters = ", ".join(
        _devices(figures.smallest_cluster[step][_PART]) for step in ("training", "inference")
    )
    flops = figures.flops_per_token or figures.flops_per_sample or 0
    numbers = (figures.parameters, figures.active_parameters, flops)
    cells = " ".join(f"{_count(number):>10}" for number in numbers)
    cache = format_bytes_binary(figures.kv_bytes_per_token)
    return f"{figures.name:<{_WIDTH}} {cells} {cache:>10}  {clusters}"


def _devices(cluster: str) -> str:
    return cluster.partition("x")[0] or "none"


def _count(number: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number:.0f}"


def _details(name: str, settings: Mapping[str, str]) -> str:
    model, figures = _describe(name, settings)
    rows = {
        "parameters": f"{figures.parameters:,}",
        "active": f"{figures.active_parameters:,}",
        **_flops(figures),
        "weights": format_bytes_binary(figures.weight_bytes),
    }
    if figures.kv_bytes_per_token:
        rows["KV cache a token"] = f"{figures.kv_bytes_per_token:,} bytes in {figures.cache_format}"
    if figures.longest:
        rows["longest context"] = f"{figures.longest:,} tokens"
    if figures.state_bytes_per_sequence:
        rows["states a sequence"] = format_bytes_binary(figures.state_bytes_per_sequence)
    lines = [figures.name, *(f"  {label:<20} {value}" for label, value in rows.items())]
    if figures.parts:
        heading = "Weights" if settings else "Weights, as published"
        lines += ["", heading, *(_part(name, part) for name, part in figures.parts.items())]
    if isinstance(model, LanguageModel):
        kinds = Counter(model.kinds)
        lines += ["", "Layers", *(f"  {count:>4} x {_kind(kind)}" for kind, count in kinds.items())]
    memory = f"{TRAINED_BYTES} bytes a parameter, {TRAINED_TOKENS} tokens a device, recomputed"
    if not isinstance(model, LanguageModel):
        memory = "weights and the optimiser's states alone"
    rule = (
        f"Smallest clusters ({USABLE:.0%} of the memory; training: {memory}; inference: published "
        "weights, one longest sequence)"
    )
    lines += ["", rule]
    for part, training in figures.smallest_cluster["training"].items():
        inference = figures.smallest_cluster["inference"][part]
        lines.append(f"  {part:<20} {_devices(training):>6} {_devices(inference):>6}")
    lines += [f"  - {note}" for note in figures.notes]
    if figures.source:
        lines += ["", f"Source: {figures.source}, {figures.date}"]
    return "\n".join(lines)


def _part(name: str, part: PartFigures) -> str:
    size = format_bytes_binary(part.weight_bytes)
    return f"  {name:<20} {part.parameters:>18,} in {part.format:<6} {size:>10}"


def _flops(figures: ModelFigures) -> dict[str, str]:
    if figures.flops_per_token is None or figures.attention_flops_per_token is None:
        forward = format_quantity(figures.flops_per_sample or 0, "FLOP")
        return {"FLOPs a sample": f"{forward} forward: {figures.sample}"}
    forward, attention = figures.flops_per_token, figures.attention_flops_per_token
    return {
        "FLOPs a token": f"{format_quantity(forward, 'FLOP')} forward, and "
        f"{format_quantity(attention, 'FLOP')} for each token before it"
    }


def _kind(kind: LayerKind) -> str:
    mixer = {
        "attention": "attention",
        "state_space": "state space",
        "delta": "gated delta rule",
        "none": "",
    }[kind.mixer]
    if kind.window:
        mixer += f" over {kind.window} tokens"
    if kind.chunk:
        mixer += f" in chunks of {kind.chunk} tokens"
    feed_forward = ("experts" if kind.is_routed else "dense layer") if kind.feeds_forward else ""
    return ", ".join(part for part in (mixer, feed_forward) if part)
