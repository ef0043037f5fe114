"""Serve several models on one cluster, each on devices of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from hespas.base.decode import read_yaml
from hespas.base.fields import options_by_field, options_in, overridden
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.base.units import HOUR_S
from hespas.errors import ConfigError, HespasError, option
from hespas.hardware.sized import find_system
from hespas.models.model import MeshAxes
from hespas.serve.answer import ServingReport
from hespas.serve.options import NOT_SERVED, ServeOptions
from hespas.serve.serving import Fleet, fleet_of, serving
from hespas.serve.surface import Surfaces
from hespas.study.executor import ExecutorOptions

_SUFFIXES = frozenset({".yaml", ".yml"})
_MODEL = "model"
_COMMON = frozenset(
    {"cluster", "device_hour_usd", *(each.name for each in options_in(ExecutorOptions))}
)
"""Options that all models have in common."""


class ServedTogether(msgspec.Struct, frozen=True, kw_only=True):
    """A served model by its name in the file."""

    name: str
    report: ServingReport


class TogetherReport(msgspec.Struct, frozen=True, kw_only=True):
    """Several models on one cluster; null is what is not known.

    Rates are sums of the models', each while its own load runs.
    """

    cluster: str
    devices: int
    idle_devices: int
    models: tuple[ServedTogether, ...]
    output_tokens_per_s: float
    output_tokens_per_s_per_device: Annotated[
        float, Meta(description="of all devices of the cluster, idle ones too")
    ]
    requests_per_s: float
    goodput: Annotated[
        float | None,
        Meta(description="requests/s that meet their model's objectives; null if one has none"),
    ]
    power_w: Annotated[float | None, Meta(description="of the devices that serve")]
    usd_per_million_output_tokens: float | None
    assumptions: list[str]


@frozen
class _Member:
    name: str
    options: ServeOptions
    fleet: Fleet


def is_file_of_models(model: str) -> bool:
    """Return whether a model's name is a file of several models.

    >>> is_file_of_models("models.yaml"), is_file_of_models("Qwen/Qwen3-8B")
    (True, False)
    """
    return Path(model).suffix in _SUFFIXES


def serving_together(file: Path, options: ServeOptions) -> TogetherReport:
    """Predict how the models of a file are served.

    The file has a name for each model, with ``model`` and what differs from ``options`` by the
    names of flags. A model without a mesh has one device, without ``replicas`` one of them. Raises
    `ConfigError` for an unknown option, more devices than the cluster has, and what `serving`
    raises.
    """
    members = _members(file, options)
    devices = find_system(options.cluster).device_count
    used = sum(member.fleet.devices for member in members)
    if used > devices:
        counts = ", ".join(f"{member.name} {member.fleet.devices}" for member in members)
        raise ConfigError(
            f"the models need {used} devices ({counts}), and {options.cluster} has {devices}",
            location=str(file),
            hint=f"give a larger {option('cluster')}, or fewer replicas",
        )
    surfaces = Surfaces()
    served = [_served(member, str(file), surfaces) for member in members]
    return _report(served, options, devices=devices, idle=devices - used)


def _members(file: Path, options: ServeOptions) -> list[_Member]:
    location, content = str(file), read_yaml(file)
    if not isinstance(content, dict) or not content:
        raise ConfigError(
            "names no models",
            location=location,
            hint="write NAME: {model: Qwen/Qwen3-8B, mesh: tp=1, rate: 5} for each",
        )
    return [
        _member(str(name), entry, options, f"{location}: {name}")
        for name, entry in cast("dict[object, object]", content).items()
    ]


def _member(name: str, entry: object, options: ServeOptions, location: str) -> _Member:
    if not isinstance(entry, dict) or _MODEL not in entry:
        raise ConfigError(f"has no {_MODEL}", location=location, hint="give one, and its load")
    own = {str(key).replace("-", "_"): value for key, value in cast("Any", entry).items()}
    fields = {
        declared.name: field
        for field, declared in options_by_field(ServeOptions).items()
        if declared.name not in _COMMON | NOT_SERVED
    }
    fields[_MODEL] = fields.pop("model_name")
    for key in own:
        if key not in fields:
            raise ConfigError(
                f"there is no option {key} of a model",
                location=location,
                hint=suggestion(key, list(fields)),
            )
    try:
        changed = overridden(options, {fields[key]: _raw(value) for key, value in own.items()})
        one_device = MeshAxes(axes=(("tp", 1),))
        model = replace(changed.model, mesh=changed.model.mesh or one_device)
        changed = replace(changed, model=model, replicas=changed.replicas or 1)
        fleet = fleet_of(changed)
    except HespasError as error:
        raise _located(error, location) from error
    return _Member(name=name, options=changed, fleet=fleet)


def _raw(value: object) -> object:
    """Return a file's value as flags have it."""
    if not isinstance(value, dict):
        return value
    settings = cast("Mapping[object, object]", value)
    return [
        f"{name}={str(setting).lower() if isinstance(setting, bool) else setting}"
        for name, setting in settings.items()
    ]


def _located(error: HespasError, location: str) -> ConfigError:
    where = f"{location}, {error.location}" if error.location else location
    return ConfigError(error.marked_message, location=where, hint=error.marked_hint)


def _served(member: _Member, file: str, surfaces: Surfaces) -> ServedTogether:
    try:
        return ServedTogether(name=member.name, report=serving(member.options, surfaces))
    except HespasError as error:
        raise _located(error, f"{file}: {member.name}") from error


def _report(
    served: Sequence[ServedTogether], options: ServeOptions, *, devices: int, idle: int
) -> TogetherReport:
    reports = [model.report for model in served]
    rate = sum(report.output_tokens_per_s for report in reports)
    goodputs = [report.goodput for report in reports]
    powers = [
        energy_j and energy_j * report.output_tokens_per_s
        for report in reports
        if (energy_j := report.energy_j_per_output_token) is not None
    ]
    usd = options.device_hour_usd
    return TogetherReport(
        cluster=options.cluster,
        devices=devices,
        idle_devices=idle,
        models=tuple(served),
        output_tokens_per_s=rate,
        output_tokens_per_s_per_device=rate / devices,
        requests_per_s=sum(report.requests_per_s for report in reports),
        goodput=None if None in goodputs else sum(model or 0.0 for model in goodputs),
        power_w=sum(powers) if len(powers) == len(reports) else None,
        usd_per_million_output_tokens=usd and usd * devices / HOUR_S / rate * 1e6,
        assumptions=[
            "each model has devices, links and servers of its own: loads of one slow no other",
            "what leaves a node, its host and its power supply are not shared by models here",
        ],
    )
