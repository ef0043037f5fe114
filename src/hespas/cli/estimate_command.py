"""``hespas estimate``: the computation alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hespas.cli import flags
from hespas.cli.outputs import (
    check_targets,
    estimate_into,
    output_of,
    stats_of,
    summary_of,
    write_json,
)
from hespas.prediction import checks, composition
from hespas.prediction.options import EstimateOptions, NetworkOptions, OutputOptions, ProgramOptions
from hespas.program.experts import ExpertOptions
from hespas.split.strategies import SplitOptions


@flags.command(
    "estimate",
    short_help="Price the computation of a program on a device.",
    example="hespas estimate step.mlir --node H100_80GB",
)
@flags.workload_argument
@flags.both("config_file", type=flags.FILE, metavar="FILE", help="The configuration.")
@flags.derived(ProgramOptions)
@flags.derived(ExpertOptions)
@flags.derived(EstimateOptions, without=("host_bandwidth",))
@flags.derived(NetworkOptions, only=("cluster", "system"))
@flags.derived(SplitOptions)
@flags.derived(OutputOptions)
@flags.json_option
@flags.estimator_times
@flags.common
def command(
    json_file: str | None, estimator_times: bool, config_file: Path | None, **given: Any
) -> None:
    """Price the computation of WORKLOAD on one device; communication is left out.

    WORKLOAD is a program or a configuration (.json).
    """
    options = checks.checked(flags.requested(given, config_file))
    check_targets(json_file, None, options.output.directory)
    checks.check_priced(options)
    with output_of(options) as output:
        prepared = composition.prepare_alone(options)
        estimates = estimate_into(prepared, options, output)
    if json_file is not None:
        write_json(json_file, stats_of(estimates, prepared))
    if json_file != "-":
        click.echo(summary_of(estimates, prepared, options, times=estimator_times))
