"""Ask a terminal for the workload and cluster that ``hespas run`` lacks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hespas.cli.progress import is_terminal

_MODEL, _CLUSTER = "llama3-8b", "8xH100_80GB"
_NAMES = ("workload", "mlir_file")


def completed(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the model and the cluster that a user at a terminal names.

    The equivalent command is shown. Nothing is asked if a flag names the program, or without a
    terminal.
    """
    has_program = any(given.get(name) is not None for name in _NAMES)
    if has_program or not (sys.stdin.isatty() and is_terminal(sys.stderr)):
        return given
    click.echo("What runs? A model (hespas models lists them), or the path of a program.", err=True)
    model = str(click.prompt("model", default=_MODEL, err=True)).strip()
    asked: dict[str, Any] = {"workload": Path(model)}
    words = ["hespas", *sys.argv[1:], model]
    if given.get("cluster") is None and given.get("system") is None:
        click.echo("Where? COUNTxPART (hespas hardware lists the parts).", err=True)
        cluster = str(click.prompt("cluster", default=_CLUSTER, err=True)).strip()
        asked["cluster"] = cluster
        words += ["--cluster", cluster]
    click.echo(f"\n{shlex.join(words)}\n", err=True)
    return {**given, **asked}
