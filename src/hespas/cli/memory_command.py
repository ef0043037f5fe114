"""``hespas memory``: what a step needs of a device's memory."""

from __future__ import annotations

from typing import Any

import click

from hespas.cli import options
from hespas.cli.flags import Flags
from hespas.cli.settings import settings_of
from hespas.cli.stages import check_targets, load, write_json
from hespas.hardware.presets import load_device
from hespas.memory.analyse import memory_use
from hespas.report.memory_report import memory_json, memory_text


@click.command("memory", short_help="Tell how much device memory a step needs, and for what.")
@options.workload_argument
@options.program
@options.optimising
@click.option("--node", help="The device: a preset's name, or a configuration's path.")
@click.option(
    "--top", type=click.IntRange(min=0), default=10, help="How many buffers to show (default 10)."
)
@options.json_option
@options.common
def command(top: int, json_file: str | None, **given: Any) -> None:
    """Tell how much memory one step of WORKLOAD needs on a device, and what for.

    WORKLOAD is a program or a configuration (.json). With --optimise the program is compiled
    for the node first; without, no operations are fused, which takes far more memory.
    """
    settings = settings_of(Flags(**given))
    check_targets(json_file, None)
    program = load(settings, system=None, alone=True)
    node = settings.flags.node
    capacity_bytes = None if node is None else load_device(node).memory_capacity_bytes
    use = memory_use(program)
    if json_file is not None:
        write_json(json_file, memory_json(use, capacity_bytes, shown=top))
    if json_file != "-":
        click.echo(f"{program.source}: the memory of one device for one step\n")
        click.echo(memory_text(use, capacity_bytes, source=program.source, shown=top))
