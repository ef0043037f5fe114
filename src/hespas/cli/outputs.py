"""What every command writes: JSON, and a timeline."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hespas.base.files import check_file, json_bytes, write_file
from hespas.errors import OutputError

if TYPE_CHECKING:
    from hespas.prediction.answer import PipelinePrediction
    from hespas.prediction.result import Prediction
    from hespas.report.timeline.chart import Chart
    from hespas.simulate.timeline import Timeline

log = logging.getLogger("hespas")


def check_targets(json_file: str | None, timeline: Path | None, output: Path | None = None) -> None:
    """Raise `OutputError` for files that can't be written: before the work, not after it."""
    named = [] if json_file in (None, "-") else [Path(json_file)]
    targets = named if timeline is None else [*named, timeline]
    for target in targets:
        check_file(target, made_later=output)
    if len(targets) == 2 and targets[0].absolute() == targets[1].absolute():
        raise OutputError(
            "is named for both --json and --timeline", location=str(timeline), hint="name two files"
        )


def write_timeline(timeline: Timeline, file: Path) -> None:
    """Write a timeline for ui.perfetto.dev, and log what it leaves out."""
    # Few ask for one.
    from hespas.report.timeline.step import step_chart  # noqa: PLC0415

    _write_chart(step_chart(timeline), file)


def write_prediction(prediction: Prediction, file: Path) -> None:
    """Write the timeline of a prediction, with what its program says of it."""
    from hespas.prediction.result import computation_alone  # noqa: PLC0415 - as above
    from hespas.report.timeline.details import program_details  # noqa: PLC0415
    from hespas.report.timeline.step import step_chart  # noqa: PLC0415

    timeline = prediction.timeline or computation_alone(prediction.tasks)
    _write_chart(step_chart(timeline, program_details(prediction)), file)


def write_pipeline(prediction: PipelinePrediction, file: Path) -> None:
    """Write the timeline of a pipeline: a track for each stage, a slice for each pass."""
    from hespas.report.timeline.pipeline import pipeline_chart  # noqa: PLC0415 - as above

    _write_chart(pipeline_chart(prediction), file)


def _write_chart(chart: Chart, file: Path) -> None:
    from hespas.report.timeline.write import write_chart  # noqa: PLC0415 - as above

    write_chart(chart, file)
    for note in chart.notes:
        log.warning("%s: %s", file, note)


def write_json(target: str, value: object) -> None:
    """Write JSON to a file, or to standard output for "-"."""
    content = json_bytes(value)
    if target == "-":
        click.echo(content.decode(), nl=False)
    else:
        write_file(Path(target), content)
