"""``hespas estimate``: the computation alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hespas.cli import options
from hespas.cli.flags import Flags
from hespas.cli.outputs import estimate_into, output_of, stats_of, summary_of
from hespas.cli.settings import settings_of
from hespas.cli.stages import check_targets, divide, load, write_json


@click.command("estimate", short_help="Price the computation of a program on a device.")
@options.workload_argument
@options.both("config_file", type=options.FILE, help="The configuration.")
@options.program
@options.kernels
@options.device
@options.splitting
@options.caching
@options.output
@options.json_option
@options.common
def command(json_file: str | None, config_file: Path | None, **given: Any) -> None:
    """Price the computation of WORKLOAD on one device; communication is left out.

    WORKLOAD is a program or a configuration (.json).
    """
    settings = settings_of(Flags(**given), config_file)
    check_targets(json_file, None, settings.output)
    program = load(settings, system=None, alone=True)
    divided = divide(settings, program)
    with output_of(settings) as output:
        estimates = estimate_into(settings, divided, output)
    if json_file is not None:
        write_json(json_file, stats_of(estimates, divided))
    if json_file != "-":
        click.echo(summary_of(estimates, divided))
