"""``hespas trace``: split, estimate, write Chakra traces."""

from __future__ import annotations

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
    write_tasks,
)
from hespas.errors import ConfigError, option
from hespas.prediction import checks, composition, machines
from hespas.prediction.options import EstimateOptions, NetworkOptions, OutputOptions, ProgramOptions
from hespas.split.strategies import SplitOptions
from hespas.tasks.build import check_host_link, estimated_tasks


@flags.command(
    "trace",
    short_help="Write the Chakra traces of all devices.",
    example="hespas trace step.mlir --node H100_80GB -o traces",
)
@flags.workload_argument
@flags.derived(ProgramOptions)
@flags.derived(EstimateOptions)
@flags.derived(NetworkOptions, only=("cluster", "system"))
@flags.derived(SplitOptions)
@flags.derived(OutputOptions)
@flags.json_option
@flags.estimator_times
@flags.common
def command(json_file: str | None, estimator_times: bool, **given: Any) -> None:
    """Split and price WORKLOAD, and write a Chakra trace for every device to --output.

    WORKLOAD is a program or a configuration (.json).
    """
    options = checks.checked(flags.requested(given))
    directory = options.output.directory
    check_targets(json_file, None, directory)
    if directory is None:
        raise ConfigError("no output directory is given", hint=f"give {option('output')}")
    checks.check_priced(options)
    with output_of(options) as output:
        prepared = composition.prepare_alone(options)
        check_host_link(prepared.graph, machines.host_bandwidth(options.estimate))
        estimates = estimate_into(prepared, options, output)
        tasks = estimated_tasks(
            prepared.graph,
            estimates,
            host_bandwidth_bytes_per_s=machines.host_bandwidth(options.estimate),
        )
        write_tasks(tasks, output)
    if json_file is not None:
        write_json(json_file, stats_of(estimates, prepared))
    if json_file != "-":
        click.echo(summary_of(estimates, prepared, options, times=estimator_times))
        click.echo(f"Traces of {tasks.device_count} devices: {directory}/dev.*.et")
