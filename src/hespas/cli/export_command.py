"""``hespas export``: models, functions and compiler dumps as StableHLO."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hespas.cli import options
from hespas.config.suggest import suggestion
from hespas.errors import ConfigError, OutputError
from hespas.files import check_file, write_file

_FIELDS = ("mesh", "batch", "sequence", "remat", "scan", "dtype")


@click.command("export", short_help="Write a model or function as StableHLO.")
@click.argument("source", required=False)
@click.option("--list", "list_models", is_flag=True, help="List the models and their options.")
@options.both("output", "-o", type=options.FILE, help="The file to write.")
@click.option("--mesh", metavar="AXIS=N,..", help="The devices, as in fsdp=4,tp=2.")
@click.option("--batch", help="Sequences or images per data-parallel part of the mesh.")
@click.option("--sequence", help="Tokens in a sequence.")
@click.option("--remat", help="What the backward pass computes again.")
@click.option("--scan/--unrolled", default=None, help="One loop over the layers, or each layer.")
@click.option("--dtype", help="The type computed in, as in bf16.")
@click.option("--set", "more", multiple=True, metavar="NAME=VALUE", help="Another option.")
@click.option("--unpartitioned", is_flag=True, help="Keep the annotations, and do not partition.")
@options.common
def command(
    source: str | None,
    list_models: bool,
    output: Path | None,
    more: tuple[str, ...],
    unpartitioned: bool,
    scan: bool | None,
    log_level: str | None,
    log_path: Path | None,
    **given: str | None,
) -> None:
    """Write SOURCE as the StableHLO of one device, or of all with --unpartitioned.

    SOURCE is a model of the zoo.
    """
    # Nothing runs here: accelerators that are there are left alone.
    os.environ["JAX_PLATFORMS"] = "cpu"
    options.start_logging(log_level, log_path)
    if list_models:
        _print_models()
        return
    if source is None:
        raise ConfigError("no source is given", mend="name a model; --list lists them")
    if output is None:
        raise OutputError("no output is given", mend="name a file with -o")
    check_file(output)
    changed = {name: value for name, value in given.items() if value is not None}
    if scan is not None:
        changed["scan"] = "true" if scan else "false"
    _export(source, changed | _pairs(more), output, unpartitioned)


def _pairs(more: tuple[str, ...]) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in more]
    for name, equals, _ in pairs:
        if not equals:
            raise ConfigError(f"--set {name} has no value", mend="write NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _export(source: str, changed: dict[str, str], output: Path, unpartitioned: bool) -> None:
    from hespas.export.exported import partitioned
    from hespas.export.zoo import export_model

    exported = export_model(source, changed)
    made = exported if unpartitioned else partitioned(exported)
    write_file(output, made.text)
    click.echo(f"{output}: {source} for {made.devices} devices")
    for note in made.notes:
        click.echo(f"  {note}")


def _print_models() -> None:
    from hespas.workloads.registry import models

    for model in models().values():
        click.echo(f"{model.name}: {model.summary}")
        listed = (f"{name}={value}" for name, value in model.options().items())
        click.echo(f"  {' '.join(listed)}")
