"""``hespas run``: the whole pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hespas.cli import options
from hespas.cli.flags import Flags
from hespas.cli.outputs import estimate_into, output_of, write_tasks
from hespas.cli.settings import Settings, settings_of
from hespas.cli.simulating import model_of, network_of, system_of
from hespas.cli.stages import check_targets, divide, load, write_json, write_timeline
from hespas.prediction import Prediction, computation_alone, predicted
from hespas.report.run_report import run_json, run_text


@click.command("run", short_help="Predict a step.")
@options.workload_argument
@options.program
@options.optimising
@options.kernels
@options.device
@options.network
@options.splitting
@options.caching
@options.output
@options.json_option
@options.timeline_option
@options.common
def command(json_file: str | None, timeline: Path | None, **given: Any) -> None:
    """Predict how long one step of WORKLOAD takes, and why.

    WORKLOAD is a program (StableHLO text, bytecode or portable artifact) or a configuration
    (.json). With --output the traces and regions are written too.
    """
    settings = settings_of(Flags(**given))
    check_targets(json_file, timeline, settings.output)
    prediction = _predict(settings)
    if timeline is not None:
        write_timeline(prediction.timeline or computation_alone(prediction.tasks), timeline)
    if json_file is not None:
        write_json(json_file, run_json(prediction))
    if json_file != "-":
        click.echo(run_text(prediction, settings.device_name))


def _predict(settings: Settings) -> Prediction:
    system = system_of(settings.flags)
    program = load(settings, system=system, alone=False)
    divided = divide(settings, program)
    with output_of(settings) as output:
        estimates = estimate_into(settings, divided, output)
        prediction = predicted(
            divided.graph,
            estimates,
            system,
            network_of(settings.flags),
            memory_capacity_bytes=settings.memory_capacity_bytes,
            model=model_of(settings.flags),
        )
        write_tasks(prediction.tasks, output)
    return prediction
