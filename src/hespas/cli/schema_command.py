"""``hespas schema``: the JSON Schema of answers."""

from __future__ import annotations

from hespas.cli import flags
from hespas.cli.outputs import write_json
from hespas.report.schema import run_schema


@flags.command("schema", short_help="Print the JSON Schema of what run answers.")
@flags.debug
def command() -> None:
    """Print the JSON Schema (2020-12) of hespas run --json.

    Its schema_version is that of the answers; the keys that there are stay what they are until it
    counts up.
    """
    write_json("-", run_schema())
