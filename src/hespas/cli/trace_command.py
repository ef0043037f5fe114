"""``hespas trace``: split, estimate, write Chakra traces."""

from __future__ import annotations

from typing import Any

import click

from hespas.cli import options
from hespas.cli.flags import Flags
from hespas.cli.outputs import estimate_into, output_of, stats_of, summary_of, write_tasks
from hespas.cli.settings import settings_of
from hespas.cli.stages import check_targets, divide, load, write_json
from hespas.errors import ConfigError
from hespas.schedule.estimated import estimated_tasks


@click.command("trace", short_help="Write the Chakra traces of all devices.")
@options.workload_argument
@options.program
@options.kernels
@options.device
@options.splitting
@options.caching
@options.output
@options.json_option
@options.common
def command(json_file: str | None, **given: Any) -> None:
    """Split and price WORKLOAD, and write a Chakra trace for every device to --output.

    WORKLOAD is a program or a configuration (.json).
    """
    settings = settings_of(Flags(**given))
    check_targets(json_file, None, settings.output)
    if settings.output is None:
        raise ConfigError("no output directory is given", hint="give --output")
    program = load(settings, system=None, alone=True)
    divided = divide(settings, program)
    with output_of(settings) as output:
        estimates = estimate_into(settings, divided, output)
        tasks = estimated_tasks(divided.graph, estimates)
        write_tasks(tasks, output)
    if json_file is not None:
        write_json(json_file, stats_of(estimates, divided))
    if json_file != "-":
        click.echo(summary_of(estimates, divided))
        click.echo(f"Traces of {tasks.device_count} devices: {settings.output}/dev.*.et")
