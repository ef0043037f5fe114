"""``hespas search``: the best mesh for a model on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hespas.cli import flags
from hespas.cli.study_command import output_option, run_and_show, running
from hespas.cli.study_flags import search_from, searched


@flags.command(
    "search",
    short_help="Find the best mesh for a model on a cluster.",
    example="hespas search llama3-70b --cluster 256xH100_80GB -o DIR",
)
@click.argument("model")
@searched
@flags.plain(
    "--compile",
    "compiled",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many of the best are compiled (default: 8).",
)
@output_option
@running
def command(
    model: str, output: Path, json_file: str | None, compiled: int | None, **given: Any
) -> int:
    """Find the mesh of MODEL that gives the most tokens a second and device, and fits.

    Unless they are given, all meshes of the model's axes are searched (pipe and context only where
    --mesh names them), what the backward pass computes again, and how many sequences are computed
    at a time.
    """
    return run_and_show(search_from(model, given, compiled=compiled), output, json_file, given)
