"""``hespas kernels``: the kernels of a compiled program, and why they take their time."""

from __future__ import annotations

from typing import Any

import click

from hespas.cli import flags
from hespas.cli.outputs import check_targets, write_json
from hespas.errors import ConfigError, option
from hespas.prediction.checks import checked
from hespas.prediction.composition import divide, load_alone, price
from hespas.prediction.figures.assumptions import grouped_assumptions
from hespas.prediction.machines import compiled_directory, device_of
from hespas.prediction.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    ProgramOptions,
)
from hespas.price.measured import Measured
from hespas.price.ptx.kernels import AnalysisCache, KernelEstimator, kernel_pricer
from hespas.report.kernels import kernel_table, kernels_json, kernels_text
from hespas.report.text import assumption_lines


@flags.command(
    "kernels",
    short_help="Show which kernels take longest, and why.",
    example="hespas kernels step.mlir --node H100_80GB",
)
@flags.workload_argument
@flags.derived(ProgramOptions)
@flags.derived(CompileChoice)
@flags.derived(EstimateOptions, only=("custom_call", "node", "power_limit_w", "clocks"))
@flags.derived(NetworkOptions, only=("cluster", "system"))
@flags.plain(
    "--top",
    type=click.IntRange(min=1),
    default=20,
    metavar="N",
    help="How many kernels to show (default: 20).",
)
@flags.json_option
@flags.common
def command(top: int, json_file: str | None, **given: Any) -> None:
    """Show which kernels of WORKLOAD take longest on a device, and why.

    WORKLOAD is compiled for the node, unless it was compiled before; its kernels' PTX is then
    given with --kernels, without which they are priced by their kind. Launches count every
    round of a loop. Matrix products, convolutions and fused attention, which libraries run, stand
    in one line.
    """
    options = checked(flags.requested(given))
    check_targets(json_file, None)
    device = device_of(options.estimate)
    if device is None:
        raise ConfigError(
            "no device is given", hint=f"give {option('node')}, or {option('cluster')}"
        )
    program = load_alone(options)
    if not program.is_scheduled:
        raise ConfigError(
            "a program that is not compiled has no kernels",
            location=program.source,
            hint=f"give {option('fidelity')} {Fidelity.COMPILED.value}",
        )
    cache = AnalysisCache(directory=compiled_directory(options.estimate))
    pricer = kernel_pricer(device, program.kernels, cache=cache)
    if pricer is None:
        raise ConfigError(
            f"the microarchitecture of {device.name} is not described",
            hint="give a GPU's preset, or a node with a microarchitecture.json",
        )
    prepared = divide(program, options)
    # As hespas run prices them: at the clock that the whole computation sustains.
    method = price(prepared, options, store=None).estimator
    if not isinstance(method, Measured | KernelEstimator):
        raise TypeError(f"{type(method).__name__} does not price single kernels")
    graph = prepared.graph
    custom_calls = options.estimate.custom_calls
    table = kernel_table(graph, method, pricer, custom_calls=custom_calls)
    groups = grouped_assumptions((*graph.assumptions, *table.notes))
    assumptions = [group.text for group in groups]
    if json_file is not None:
        write_json(json_file, {**kernels_json(table), "assumptions": assumptions})
    if json_file != "-":
        click.echo(f"{program.source} on {device.name}\n")
        click.echo(kernels_text(table, shown=top))
        if assumptions:
            click.echo("\n".join(["", *assumption_lines(assumptions, ())]))
