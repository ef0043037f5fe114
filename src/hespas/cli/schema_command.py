"""``hespas schema``: the JSON Schema of answers and of studies."""

from __future__ import annotations

from pathlib import Path

import click

from hespas.cli import flags
from hespas.cli.outputs import check_targets, write_json
from hespas.prediction.figures.schema import run_schema


@flags.command("schema", short_help="Print the JSON Schema of what run answers, or of a study.")
@click.argument("what", type=click.Choice(["run", "study"]), default="run")
@flags.plain("--output", "-o", type=flags.FILE, metavar="FILE", help="Write it to this file.")
@flags.debug
def command(what: str, output: Path | None) -> None:
    """Print the JSON Schema (2020-12) of hespas run --json, or of a study's YAML file.

    The schema_version of run's is that of the answers; the keys that there are stay what they are
    until it counts up.
    """
    check_targets(None, output)
    write_json("-" if output is None else str(output), _schema(what))


def _schema(what: str) -> dict[str, object]:
    if what == "run":
        return run_schema()
    # Few ask for it.
    from hespas.study.study import study_schema  # noqa: PLC0415

    return study_schema()
