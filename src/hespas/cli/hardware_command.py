"""``hespas hardware``: the presets."""

from __future__ import annotations

from pathlib import Path

import click

from hespas.cli import options
from hespas.cli.stages import write_json
from hespas.report.hardware_text import device_details, hardware_json, hardware_text


@click.command("hardware", short_help="List the presets of nodes and systems.")
@click.argument("name", required=False)
@options.json_option
@options.common
def command(
    *, name: str | None, json_file: str | None, log_level: str | None, log_path: Path | None
) -> None:
    """List the presets, or show the figures and sources of the node NAME."""
    options.start_logging(log_level, log_path)
    if json_file is not None:
        write_json(json_file, hardware_json(name))
    if json_file != "-":
        click.echo(hardware_text() if name is None else device_details(name))
