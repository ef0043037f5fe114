"""Predict a step for ``hespas run``, with the requested files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hespas.cli.answers import check_targets
from hespas.cli.outputs import estimate_into, output_of, write_all_tasks, write_prediction
from hespas.prediction import checks
from hespas.prediction.composition import finish, predict_folded, prepare
from hespas.prediction.figures.schema import RunReport
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import PredictOptions
from hespas.prediction.result import Prediction
from hespas.split.flatten import MOST_OPERATIONS

if TYPE_CHECKING:
    from hespas.prediction.answer import PipelinePrediction


def predicted_report(
    options: PredictOptions, *, json_file: str | None, timeline: Path | None
) -> RunReport:
    """Predict a step, write its files, and return its report.

    The report has chart data if JSON is requested. Files that can't be written are refused before
    the work.
    """
    if not options.is_pipeline:
        options = checks.checked(options)
    check_targets(json_file, timeline=timeline, made_later=options.output.directory)
    prediction = _predict(options, needs_whole=timeline is not None)
    if timeline is not None:
        write_prediction(prediction, timeline)
    report = run_report(prediction)
    if json_file is None:
        return report
    from hespas.report.answers import with_chart_data  # noqa: PLC0415 - texts need none of it

    return with_chart_data(report, prediction)


def _predict(options: PredictOptions, *, needs_whole: bool) -> Prediction | PipelinePrediction:
    """Predict a step, and write its requested files."""
    if options.is_pipeline:
        # Few models are divided into stages.
        from hespas.prediction import staged  # noqa: PLC0415

        return staged.predict_pipeline(options)
    if options.output.directory is None and not needs_whole:
        return predict_folded(options, whole_up_to=MOST_OPERATIONS)
    with output_of(options) as output:
        prepared = prepare(options)
        estimates = estimate_into(prepared, options, output)
        prediction = finish(prepared, estimates, options)
        write_all_tasks(prediction, output)
    return prediction
