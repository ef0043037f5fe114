"""``hespas compare``: what differs between two results of ``hespas run``."""

from __future__ import annotations

from pathlib import Path

import click

from hespas.cli import flags
from hespas.cli.outputs import check_targets, write_json
from hespas.report.compare import compared, comparison_text, read_result


@flags.command("compare", short_help="Show what differs between two results of a run.")
@click.argument("first", type=flags.FILE, metavar="A.json")
@click.argument("second", type=flags.FILE, metavar="B.json")
@flags.json_option
@flags.common
def command(
    first: Path, second: Path, json_file: str | None, log_level: str | None, log_path: Path | None
) -> None:
    """Show what differs between two results that hespas run --json wrote, and where.

    A.json and B.json are files, or directories with a run.json. Every table is sorted by the time
    that its rows add or take away, and adds up to the difference of the steps.
    """
    flags.start_logging(log_level, log_path)
    check_targets(json_file, None)
    names = (str(first), str(second))
    comparison = compared(read_result(first), read_result(second), names=names)
    if json_file is not None:
        write_json(json_file, comparison)
    if json_file != "-":
        click.echo(comparison_text(comparison))
