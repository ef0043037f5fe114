"""``hespas hardware``: the presets."""

from __future__ import annotations

import click

from hespas.cli import flags
from hespas.cli.outputs import check_targets, write_json
from hespas.report.hardware import hardware_json, hardware_text, preset_details


@flags.command(
    "hardware",
    short_help="List the presets of nodes, systems and links.",
    example="hespas hardware 32xH100_80GB",
)
@click.argument("name", required=False)
@flags.json_option
@flags.debug
def command(*, name: str | None, json_file: str | None) -> None:
    """List the presets, or show all figures of NAME, with their sources.

    NAME is a node (H100_80GB), a system (H100_80GB_8GPU), any number of a node (32xH100_80GB), or
    the path of a node of one's own.
    """
    check_targets(json_file, None)
    if json_file is not None:
        write_json(json_file, hardware_json(name))
    if json_file != "-":
        click.echo(hardware_text() if name is None else preset_details(name))
