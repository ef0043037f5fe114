"""``hespas compare``: what differs between two results of ``hespas run``."""

from __future__ import annotations

import re
from pathlib import Path

import click

from hespas.cli import flags
from hespas.cli.outputs import check_targets, write_json
from hespas.errors import ConfigError, option
from hespas.report.compare import compared, comparison_text, read_report, with_limit

ABOVE_CODE = 3
"""The exit code where the second step takes longer than the first by more than is allowed."""
_PER_CENT = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) *%")


@flags.command(
    "compare",
    short_help="Show what differs between two results of a run.",
    example="hespas compare before.json after.json --fail-above 3%",
)
@click.argument("first", type=flags.FILE, metavar="A.json")
@click.argument("second", type=flags.FILE, metavar="B.json")
@flags.plain(
    "--fail-above",
    metavar="PERCENT",
    help=f"Exit with code {ABOVE_CODE} where the step of B takes longer than that of A by more "
    "than this, as in 3%. A shorter step never fails.",
)
@flags.json_option
@flags.common
def command(
    *,
    first: Path,
    second: Path,
    fail_above: str | None,
    json_file: str | None,
    log_level: str | None,
    log_path: Path | None,
) -> int:
    """Show what differs between two results that hespas run --json wrote, and where.

    A.json and B.json are files, or directories with a run.json. Every table is sorted by the time
    that its rows add or take away, and adds up to the difference of the steps.
    """
    flags.start_logging(log_level, log_path)
    check_targets(json_file, None)
    limit = None if fail_above is None else _share(fail_above)
    names = (str(first), str(second))
    a, b = (read_report(path) for path in (first, second))
    comparison = compared(a, b, names=names)
    if limit is not None:
        comparison = with_limit(comparison, limit)
    if json_file is not None:
        write_json(json_file, comparison)
    if json_file != "-":
        click.echo(comparison_text(comparison))
    return ABOVE_CODE if comparison.fails else 0


def _share(text: str) -> float:
    match = _PER_CENT.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{option('fail_above')} is {text!r}", hint="give per cent, as in 3%")
    return float(match[1]) / 100
