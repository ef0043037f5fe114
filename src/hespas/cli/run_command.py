"""``hespas run``: the whole pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from hespas.cli import flags
from hespas.cli.outputs import (
    check_targets,
    estimate_into,
    output_of,
    write_json,
    write_pipeline,
    write_prediction,
    write_tasks,
)
from hespas.errors import ConfigError, option
from hespas.prediction import checks, composition
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import PredictOptions
from hespas.prediction.result import Prediction
from hespas.report.run import run_text
from hespas.split.flatten import MOST_OPERATIONS


@flags.command(
    "run",
    short_help="Predict a step.",
    example="hespas run llama3-100m --mesh fsdp=4 --cluster 4xA100_SXM_40GB",
)
@flags.workload_argument
@flags.derived(PredictOptions)
@flags.json_option
@flags.timeline_option
@flags.common
def command(json_file: str | None, timeline: Path | None, **given: Any) -> None:
    """Predict how long one step of WORKLOAD takes, and why.

    WORKLOAD is a model (hespas export --list), a program (StableHLO, HLO, what jax.export wrote, or
    a directory of XLA's dumps), one's own package.module:function, or a configuration (.json).
    Where the node's compiler is installed, the program is compiled first. With --output the traces
    and regions are written too.
    """
    requested = flags.requested(given)
    flags.check_verbose(requested.report, json_file)
    if requested.is_pipeline:
        check_targets(json_file, timeline, requested.output.directory)
        _run_pipeline(requested, json_file, timeline)
        return
    options = checks.checked(requested)
    check_targets(json_file, timeline, options.output.directory)
    if timeline is None and options.output.directory is None:
        prediction = composition.predict_folded(options, whole_up_to=MOST_OPERATIONS)
    else:
        prediction = _with_files(options)
    if timeline is not None:
        write_prediction(prediction, timeline)
    report = run_report(prediction)
    if json_file is not None:
        # Texts need none of it.
        from hespas.report.answers import detailed  # noqa: PLC0415

        write_json(json_file, msgspec.to_builtins(detailed(report, prediction)))
    if json_file != "-":
        click.echo(run_text(report, verbose=options.report.verbose))


def _with_files(options: PredictOptions) -> Prediction:
    """Predict a step, and write its regions and traces where they are asked for."""
    with output_of(options) as output:
        prepared = composition.prepare(options)
        estimates = estimate_into(prepared, options, output)
        prediction = composition.finish(prepared, estimates, options)
        write_tasks(prediction.tasks, output)
    return prediction


def _run_pipeline(options: PredictOptions, json_file: str | None, timeline: Path | None) -> None:
    """Predict a model that is divided into stages with programs of their own."""
    # Few models are.
    from hespas.prediction import staged  # noqa: PLC0415
    from hespas.prediction.figures.pipeline import pipeline_report  # noqa: PLC0415

    if options.output.directory is not None:
        raise ConfigError(
            f"{option('output')} has no effect on a pipeline of several programs", hint="drop it"
        )
    prediction = staged.predict_pipeline(options)
    if timeline is not None:
        write_pipeline(prediction, timeline)
    report = pipeline_report(prediction)
    if json_file is not None:
        write_json(json_file, msgspec.to_builtins(report))
    if json_file != "-":
        click.echo(run_text(report, verbose=options.report.verbose))
