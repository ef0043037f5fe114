"""``hespas explain``: what would change a step, priced again with one cause taken away."""

from __future__ import annotations

from typing import Any

import click

from hespas.base.fields import options_in
from hespas.cli import flags
from hespas.cli.outputs import check_targets, write_json
from hespas.prediction import checks, composition, machines
from hespas.prediction.explain.changes import all_changes
from hespas.prediction.figures.communication import communication_rows
from hespas.prediction.figures.step import explain_rows
from hespas.prediction.goodput import GoodputOptions
from hespas.prediction.options import (
    EnergyOptions,
    OutputOptions,
    PredictOptions,
    ReportOptions,
    StepOptions,
)
from hespas.report.run import explain_text

_WITHOUT_EFFECT = [
    each.name
    for section in (OutputOptions, ReportOptions, GoodputOptions, EnergyOptions, StepOptions)
    for each in options_in(section)
    if each.name != "verbose"
]


@flags.command("explain", short_help="Show what would make a step faster, and by how much.")
@flags.workload_argument
@flags.derived(PredictOptions, without=_WITHOUT_EFFECT)
@flags.json_option
@flags.common
def command(json_file: str | None, **given: Any) -> None:
    """Show what would make one step of WORKLOAD faster, and by how much.

    The step is predicted as by hespas run, and then again with one thing changed at a time: the
    memory bandwidth, the peak rates, the launches of kernels, the links, and what is not perfect.
    Attention that is not fused, and kernels that are far from what their bytes take, are named.
    """
    requested = flags.requested(given)
    flags.check_verbose(requested.report, json_file)
    options = checks.checked(requested)
    check_targets(json_file, None)
    prepared = composition.prepare(options)
    estimates = composition.price(prepared, options, store=machines.store_of(options.estimate))
    prediction = composition.finish(prepared, estimates, options)
    changes = all_changes(prediction)
    if json_file is not None:
        figures = {
            "step_time_s": prediction.step_time_s,
            "explain": explain_rows(changes),
            "communication": communication_rows(prediction),
        }
        listed = {
            "notes": [each.note for each in changes if each.note],
            "assumptions": list(prediction.assumptions),
            "warnings": list(prediction.warnings),
        }
        write_json(json_file, figures | listed)
    if json_file != "-":
        click.echo(explain_text(prediction, changes, verbose=options.report.verbose))
