"""``hespas export``: models, functions and compiler dumps as StableHLO."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from hespas.base.files import check_file, write_file
from hespas.cli import flags
from hespas.compile.targets import find_target
from hespas.errors import ConfigError, OutputError, option
from hespas.frontend.whole import whole_of_source, with_device_order, with_mesh
from hespas.hardware.sized import find_system
from hespas.sources.exported import partitioned
from hespas.sources.maxtext import DEFAULT_CONFIG, MaxTextStep, check_slices
from hespas.sources.options import MaxTextOptions, ModelOptions
from hespas.sources.source import (
    DumpSource,
    FunctionSource,
    ModelSource,
    Source,
    find_source,
)
from hespas.sources.workload import export_source

_MAXTEXT = "maxtext"


@flags.command(
    "export",
    short_help="Write a model or function as StableHLO.",
    example="hespas export llama3-1b --mesh fsdp=8 -o step.mlir",
)
@click.argument("source", required=False)
@click.argument("settings", nargs=-1, metavar="[[CONFIG.yml] KEY=VALUE ...]")
@flags.plain("--list", "list_models", is_flag=True, help="List the models and their options.")
@flags.both("output", "-o", type=flags.FILE, metavar="FILE", help="The file to write.")
@flags.derived(ModelOptions)
@flags.plain(
    "--devices", type=click.IntRange(1), metavar="N", help="Virtual devices for one's own function."
)
@flags.plain("--module", metavar="NAME", help="Part of a module's name, for a dump of several.")
@flags.derived(MaxTextOptions)
@flags.plain("--unpartitioned", is_flag=True, help="Keep the annotations, and do not partition.")
@flags.common
def command(
    *,
    source: str | None,
    settings: tuple[str, ...],
    output: Path | None,
    list_models: bool,
    unpartitioned: bool,
    devices: int | None,
    module: str | None,
    log_level: str | None,
    log_path: Path | None,
    **given: Any,
) -> None:
    """Write SOURCE as the StableHLO of one device, or of all with --unpartitioned.

    SOURCE is a model of the zoo (--list), package.module:function, a file that jax.export
    serialised, or a directory that XLA dumped into. Or it is maxtext, with MaxText's own
    configuration and settings: for --target and --devices, or for --cluster.
    """
    flags.start_logging(log_level, log_path)
    if list_models:
        _print_models()
        return
    if source is None:
        raise ConfigError("no source is given", hint="name a model; --list lists them")
    if output is None:
        raise OutputError("no output is given", hint="name a file with -o")
    check_file(output)
    found = _found(source, settings, {**given, "devices": devices})
    found = _of_its_kind(found, devices=devices, module=module)
    made = export_source(found)
    text = made.text
    if not unpartitioned and not isinstance(found, MaxTextStep):
        whole = whole_of_source(text, name=source)
        made = partitioned(made)
        text = with_device_order(with_mesh(made.text, whole.mesh), whole.device_order)
    write_file(output, text)
    click.echo(f"{output}: {source} for {made.devices} devices")
    settled = found.notes if isinstance(found, ModelSource) else ()
    for note in (*settled, *made.notes):
        click.echo(f"  {note}")


def _found(source: str, settings: tuple[str, ...], given: dict[str, Any]) -> Source:
    maxtext = flags.built(MaxTextOptions, given)
    model = flags.built(ModelOptions, given)
    if source == _MAXTEXT:
        return _maxtext(settings, maxtext, model, devices=given["devices"])
    if settings:
        raise ConfigError(
            f"{' '.join(settings[:2])} stands behind {source}",
            hint=f"drop it; settings of MaxText stand behind {_MAXTEXT}",
        )
    for name in ("cluster", "target", "topology", "python"):
        if given[name] is not None:
            raise ConfigError(f"{option(name)} is for MaxText", hint="drop it")
    return find_source(source, model)


def _of_its_kind(found: Source, *, devices: int | None, module: str | None) -> Source:
    """Return a source with the options of its kind; `ConfigError` for those of others."""
    if devices is not None and not isinstance(found, FunctionSource | MaxTextStep):
        raise ConfigError(
            "--devices is for a function, package.module:function, and for MaxText", hint="drop it"
        )
    if module is not None and not isinstance(found, DumpSource):
        raise ConfigError("--module is for a directory that XLA dumped into", hint="drop it")
    match found:
        case FunctionSource():
            return replace(found, devices=devices)
        case DumpSource():
            return replace(found, module=module)
        case _:
            return found


def _maxtext(
    settings: tuple[str, ...],
    options: MaxTextOptions,
    model: ModelOptions,
    *,
    devices: int | None,
) -> MaxTextStep:
    if model.names:
        raise ConfigError(
            f"{', '.join(map(option, model.names))} is for models of the zoo",
            hint="write MaxText's own settings, as in ici_fsdp_parallelism=8",
        )
    config, *rest = settings if settings and "=" not in settings[0] else (DEFAULT_CONFIG, *settings)
    system = None if options.cluster is None else find_system(options.cluster)
    if system is not None:
        if system.part is None or devices not in (None, system.device_count):
            raise ConfigError(
                f"{option('cluster')} {options.cluster} has {system.device_count} devices",
                hint=f"give {option('target')} and {option('devices')}, or the cluster alone",
            )
        target, devices = system.part, system.device_count
    elif options.target is None or devices is None:
        raise ConfigError(
            "a step of MaxText is made for a cluster",
            hint=f"give {option('cluster')}, as in 32xH100_80GB, or {option('target')} and "
            f"{option('devices')}",
        )
    else:
        target = options.target
    step = MaxTextStep(
        config=config,
        settings=tuple(rest),
        target=find_target(target),
        devices=devices,
        topology=options.topology,
        python=options.python,
    )
    if system is not None:
        check_slices(step, system)
    return step


def _print_models() -> None:
    for model in import_module("hespas.models.catalogue").models().values():
        click.echo(f"{model.name}: {model.summary}")
        listed = (f"{name}={value}" for name, value in model.options().items())
        click.echo(f"  {' '.join(listed)}")
