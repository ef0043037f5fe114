"""``hespas memory``: what a step needs of a device's memory."""

from __future__ import annotations

from typing import Any

import click

from hespas.cli import flags
from hespas.cli.outputs import check_targets, write_json
from hespas.memory.usage import memory_use
from hespas.prediction.checks import checked
from hespas.prediction.composition import load_alone
from hespas.prediction.figures.assumptions import grouped_assumptions
from hespas.prediction.machines import device_of
from hespas.prediction.options import CompileChoice, EstimateOptions, NetworkOptions, ProgramOptions
from hespas.report.stages import memory_json, memory_text
from hespas.report.text import assumption_lines


@flags.command(
    "memory",
    short_help="Show how much device memory a step needs, and for what.",
    example="hespas memory step.mlir --node H100_80GB",
)
@flags.workload_argument
@flags.derived(ProgramOptions, without=("kernels",))
@flags.derived(CompileChoice)
@flags.derived(EstimateOptions, only=("node",))
@flags.derived(NetworkOptions, only=("cluster", "system"))
@flags.plain(
    "--top",
    type=click.IntRange(min=0),
    default=10,
    metavar="N",
    help="How many buffers to show (default: 10).",
)
@flags.json_option
@flags.common
def command(top: int, json_file: str | None, **given: Any) -> None:
    """Show how much memory one step of WORKLOAD needs on a device, and what for.

    WORKLOAD is a program or a configuration (.json). Where its node is given, the program is
    compiled for it first. As exported no operations are fused, which takes far more memory.
    """
    options = checked(flags.requested(given))
    check_targets(json_file, None)
    program = load_alone(options)
    device = device_of(options.estimate)
    capacity_bytes = None if device is None else device.memory_capacity_bytes
    use = memory_use(program)
    assumptions = [group.text for group in grouped_assumptions(program.assumptions)]
    if json_file is not None:
        document = memory_json(use, capacity_bytes, shown=top)
        write_json(json_file, {**document, "assumptions": assumptions})
    if json_file != "-":
        click.echo(f"{program.source}: the memory of one device for one step\n")
        click.echo(memory_text(use, capacity_bytes, source=program.source, shown=top))
        if assumptions:
            click.echo("\n".join(["", *assumption_lines(assumptions, ())]))
