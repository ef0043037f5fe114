"""``hespas run``: predict a step, or show its cached report."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from hespas.base.fields import refuse_unused
from hespas.cli import flags
from hespas.cli.answers import Answer, answering, check_targets
from hespas.cli.progress import is_terminal
from hespas.errors import HespasError
from hespas.prediction.options import TEXT, PredictOptions
from hespas.prediction.report_cache import report_cache
from hespas.report.run import run_text

_MODEL, _CLUSTER = "llama3-8b", "8xH100_80GB"
_NAMES = ("workload", "mlir_file")
log = logging.getLogger("hespas")


@answering(
    "run",
    example="hespas run llama3-100m --mesh fsdp=4 --cluster 4xA100_SXM_40GB",
    checks_target=True,
)
@flags.workload_argument
@flags.derived(PredictOptions)
@flags.timeline_option
def run(json_file: str | None, timeline: Path | None, **values: Any) -> Answer:
    """Predict how long one step of WORKLOAD takes, and why.

    WORKLOAD is a model (hespas export --list), a program (StableHLO, HLO, what jax.export wrote, or
    a directory of XLA's dumps), one's own package.module:function, a configuration (.json), or
    megatron:FILE, the arguments of Megatron-LM.
    Where the node's compiler is installed, the program is compiled first. With --output the traces
    and regions are written too.
    """
    options = flags.requested(completed(values))
    refuse_unused(options.report, {TEXT: json_file == "-"})
    has_charts = json_file is not None
    # A timeline needs more than figures, and a log reports the work.
    is_made = timeline is not None or log.isEnabledFor(logging.INFO)
    cached = None if is_made else report_cache(options, has_charts=has_charts)
    report = None if cached is None else cached.read()
    if report is None:
        # A cached report needs no prediction.
        from hespas.cli.predicted import predicted_report  # noqa: PLC0415

        report = predicted_report(options, json_file=json_file, timeline=timeline)
        if cached is not None:
            cached.write(report)
    else:
        check_targets(json_file)
    return Answer(
        text=lambda: run_text(report, verbose=options.report.verbose),
        json=lambda: msgspec.to_builtins(report),
    )


def completed(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ask a user at a terminal for the missing workload.

    The equivalent command is shown. A name that nothing has is asked for again. Nothing is asked if
    a flag names the program, or without a terminal; the cluster is asked too unless it is named.
    """
    has_program = any(values.get(name) is not None for name in _NAMES)
    if has_program or not (sys.stdin.isatty() and is_terminal(sys.stderr)):
        return values
    click.echo("What runs? A model (hespas models lists them), or the path of a program.", err=True)
    model = click.prompt("model", default=_MODEL, err=True, value_proc=_known(_workload))
    answers: dict[str, Any] = {"workload": Path(model)}
    words = ["hespas", *sys.argv[1:], model]
    if values.get("cluster") is None and values.get("system") is None:
        click.echo("Where? COUNTxPART (hespas hardware lists the parts).", err=True)
        cluster = str(
            click.prompt("cluster", default=_CLUSTER, err=True, value_proc=_known(_system))
        )
        answers["cluster"] = cluster
        words += ["--cluster", cluster]
    click.echo(f"\n{shlex.join(words)}\n", err=True)
    return {**values, **answers}


def _known(check: Callable[[str], object]) -> Callable[[str], str]:
    """Return what reads an answer; one that nothing is named is asked for again."""

    def read(answer: str) -> str:
        try:
            check(answer.strip())
        except HespasError as error:
            raise click.UsageError(error.text(flags.flag)) from error
        return answer.strip()

    return read


def _workload(text: str) -> None:
    from hespas.sources.source import find_source  # noqa: PLC0415 - of use at a terminal alone

    find_source(text)


def _system(text: str) -> None:
    from hespas.hardware.sized import find_system  # noqa: PLC0415 - of use at a terminal alone

    find_system(text)
