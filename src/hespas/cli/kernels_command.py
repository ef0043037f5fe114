"""``hespas kernels``: the kernels of a compiled program, and why they take their time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from hespas.cli import options
from hespas.cli.flags import Flags
from hespas.cli.settings import settings_of
from hespas.cli.stages import Loaded, check_targets, load, write_json
from hespas.errors import ConfigError, ProgramError
from hespas.estimate.kernel.kept import KeptAnalyses
from hespas.estimate.kernel.pricer import kernel_pricer
from hespas.hardware.presets import load_device
from hespas.program.kernels import CompiledKernels, decode_kernels
from hespas.report.kernel_report import kernel_rows, kernels_json, kernels_text


@click.command("kernels", short_help="Tell which kernels take longest, and why.")
@options.workload_argument
@options.program
@options.optimising
@click.option("--node", help="The device: a preset's name.", required=True)
@click.option(
    "--kernels",
    "kernels_file",
    type=options.FILE,
    help="The kernels of a compiled WORKLOAD, as hespas compile --kernels writes them.",
)
@click.option(
    "--top", type=click.IntRange(min=1), default=20, help="How many kernels to show (default 20)."
)
@options.json_option
@options.common
def command(kernels_file: Path | None, top: int, json_file: str | None, **given: Any) -> None:
    """Tell which kernels of WORKLOAD take longest on a device, and why.

    WORKLOAD is compiled for the node with --optimise, or was compiled before; its kernels' PTX is
    then given with --kernels, without which they are priced by their kind. Matrix products and
    convolutions, which libraries run, are not among them.
    """
    settings = settings_of(Flags(**given))
    check_targets(json_file, None)
    loaded = _with_kernels(load(settings, system=None, alone=True), kernels_file)
    if not loaded.program.is_scheduled:
        raise ConfigError(
            "a program that is not compiled has no kernels",
            place=loaded.program.source,
            mend="add --optimise",
        )
    device = load_device(str(given["node"]))
    kept = KeptAnalyses(directory=settings.compiled_directory if settings.optimise else None)
    pricer = kernel_pricer(device, loaded.kernels, kept=kept)
    if pricer is None:
        raise ConfigError(
            f"the inside of {device.name} is not described", mend="give a GPU's preset"
        )
    rows = kernel_rows(loaded.program, pricer)
    if json_file is not None:
        write_json(json_file, kernels_json(rows))
    if json_file != "-":
        click.echo(f"{loaded.program.source} on {device.name}\n")
        click.echo(kernels_text(rows, shown=top))


def _with_kernels(loaded: Loaded, file: Path | None) -> Loaded:
    """Return the program with the kernels of a file."""
    if file is None:
        return loaded
    if loaded.kernels is not None:
        raise ConfigError("--kernels has no effect with --optimise", mend="drop one of them")
    kernels = _read_kernels(file)
    return replace(loaded, kernels=kernels)


def _read_kernels(file: Path) -> CompiledKernels:
    try:
        return decode_kernels(file.read_bytes())
    except OSError as error:
        raise ProgramError(f"cannot be read: {error.strerror}", place=str(file)) from error
    except msgspec.DecodeError as error:
        raise ProgramError(
            f"holds no kernels: {error}",
            place=str(file),
            mend="give a file of hespas compile --kernels",
        ) from error
