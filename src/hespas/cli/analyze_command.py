"""``hespas analyze``: the operator histogram."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import click

from hespas.cli import flags
from hespas.cli.outputs import check_targets, write_json
from hespas.prediction.loading import load
from hespas.prediction.options import AS_GIVEN, PredictOptions, ProgramOptions
from hespas.report.regions import count_operators

_WIDTH = 30


@flags.command(
    "analyze",
    short_help="Count the operations of a program.",
    example="hespas analyze -e step.mlir",
)
@click.argument("file", type=flags.FILE)
@flags.plain("-s", "--signatures", is_flag=True, help="Count by operand types too.")
@flags.plain("-e", "--expand", is_flag=True, help="Open calls and fusions.")
@flags.plain(
    "-f",
    "--format",
    "form",
    type=click.Choice(["table", "csv"]),
    default="table",
    help="How to print (default: table).",
)
@flags.json_option
@flags.common
def command(
    *,
    file: Path,
    signatures: bool,
    expand: bool,
    form: str,
    json_file: str | None,
    log_level: str | None,
    log_path: Path | None,
) -> None:
    """Count the operations of FILE, most frequent first.

    The return of the main function counts as one.
    """
    flags.start_logging(log_level, log_path)
    check_targets(json_file, None)
    program = load(PredictOptions(program=ProgramOptions(file=file), compile=AS_GIVEN))
    counts = count_operators(program, expand=expand, signatures=signatures)
    if json_file is not None:
        total = {"total": sum(counts.values()), "unique": len(counts)}
        write_json(json_file, {"operators": counts, **total})
    if json_file != "-":
        click.echo(_csv(counts) if form == "csv" else _table(counts), nl=False)


def _table(counts: dict[str, int]) -> str:
    width = max([_WIDTH, *map(len, counts)])
    lines = [f"{name:.<{width}}: {count}" for name, count in counts.items()]
    total = f"{sum(counts.values())} operations, {len(counts)} unique"
    return "\n".join([*lines, total, ""])


def _csv(counts: dict[str, int]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["operator", "count"])
    writer.writerows(counts.items())
    return text.getvalue()
