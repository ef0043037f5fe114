"""``hespas schema``: the JSON Schema of answers."""

from __future__ import annotations

from pathlib import Path

from hespas.cli import flags
from hespas.cli.outputs import check_targets, write_json
from hespas.report.schema import run_schema


@flags.command("schema", short_help="Print the JSON Schema of what run answers.")
@flags.plain("--output", "-o", type=flags.FILE, metavar="FILE", help="Write it to this file.")
@flags.debug
def command(output: Path | None) -> None:
    """Print the JSON Schema (2020-12) of hespas run --json.

    Its schema_version is that of the answers; the keys that there are stay what they are until it
    counts up.
    """
    check_targets(None, output)
    write_json("-" if output is None else str(output), run_schema())
