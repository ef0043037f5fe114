"""``hespas kernels``: the kernels of a compiled program, and why they take their time."""

from __future__ import annotations

from typing import Any

import click

from hespas.cli import flags
from hespas.cli.outputs import check_targets, write_json
from hespas.errors import ConfigError, option
from hespas.estimate.ptx.kernels import AnalysisCache, kernel_pricer
from hespas.hardware.presets import load_device
from hespas.options import CompileChoice, ProgramOptions
from hespas.pipeline import compiled_directory, load_alone
from hespas.report.assumptions import assumption_lines
from hespas.report.kernels import kernel_rows, kernels_json, kernels_text


@click.command("kernels", short_help="Show which kernels take longest, and why.")
@flags.workload_argument
@flags.derived(ProgramOptions)
@flags.derived(CompileChoice)
@click.option("--node", help="The device: a preset's name.", required=True)
@click.option(
    "--top", type=click.IntRange(min=1), default=20, help="How many kernels to show (default 20)."
)
@flags.json_option
@flags.common
def command(top: int, json_file: str | None, **given: Any) -> None:
    """Show which kernels of WORKLOAD take longest on a device, and why.

    WORKLOAD is compiled for the node with --optimise, or was compiled before; its kernels' PTX is
    then given with --kernels, without which they are priced by their kind. Matrix products and
    convolutions, which libraries run, are not among them.
    """
    options = flags.requested(given)
    check_targets(json_file, None)
    program = load_alone(options)
    if not program.is_scheduled:
        raise ConfigError(
            "a program that is not compiled has no kernels",
            location=program.source,
            hint=f"add {option('optimise')}",
        )
    device = load_device(str(given["node"]))
    cache = AnalysisCache(directory=compiled_directory(options.estimate))
    pricer = kernel_pricer(device, program.kernels, cache=cache)
    if pricer is None:
        raise ConfigError(
            f"the microarchitecture of {device.name} is not described",
            hint="give a GPU's preset, or a node with a microarchitecture.json",
        )
    rows = kernel_rows(program, pricer)
    if json_file is not None:
        write_json(json_file, {**kernels_json(rows), "assumptions": list(program.assumptions)})
    if json_file != "-":
        click.echo(f"{program.source} on {device.name}\n")
        click.echo(kernels_text(rows, shown=top))
        if program.assumptions:
            click.echo("\n".join(["", *assumption_lines(program.assumptions, ())]))
