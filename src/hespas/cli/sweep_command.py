"""``hespas sweep``: a step on several clusters, and whatever else is listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hespas.cli import flags
from hespas.cli.study_command import output_option, run_and_show, running
from hespas.cli.study_flags import searched, study_from


@flags.command(
    "sweep",
    short_help="Predict a step on several clusters: how it scales.",
    example="hespas sweep llama3-8b --cluster 8xH100_80GB,16xH100_80GB -o DIR",
)
@click.argument("model")
@searched
@output_option
@running
def command(model: str, output: Path, json_file: str | None, **given: Any) -> int:
    """Predict a step of MODEL for every combination of what is listed with commas.

    All are predicted to the end: compiled, where a compiler is.
    """
    return run_and_show(study_from(model, given), output, json_file, given)
