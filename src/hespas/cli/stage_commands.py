"""``hespas split``, ``estimate``, ``trace`` and ``analyze``: single stages."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import click

from hespas.cli import flags
from hespas.cli.answers import Answer, answering, check_targets
from hespas.cli.outputs import estimate_into, output_of, stats_of, summary_of, write_tasks
from hespas.errors import ConfigError, option
from hespas.prediction import checks, composition, machines
from hespas.prediction.loading import load
from hespas.prediction.options import (
    AS_GIVEN,
    EstimateOptions,
    NetworkOptions,
    OutputOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.program.experts import ExpertOptions
from hespas.report.regions import (
    count_operators,
    file_of_region,
    region_descriptions,
    write_region_files,
)
from hespas.split.options import SplitOptions
from hespas.split.regions import operations_of
from hespas.tasks.build import check_host_link, estimated_tasks

_WIDTH = 30


@answering("split", example="hespas split step.mlir -o regions", checks_target=True)
@flags.workload_argument
@flags.derived(ProgramOptions, without=("kernels",))
@flags.derived(SplitOptions)
@flags.derived(OutputOptions)
@flags.both("print_meta", is_flag=True, help="Print a line for every region.")
def split(print_meta: bool, json_file: str | None, **values: Any) -> Answer:
    """Cut WORKLOAD into regions of computation and communication.

    With --output each distinct region is written as a StableHLO module.
    """
    options = flags.requested(values)
    check_targets(json_file, made_later=options.output.directory)
    with output_of(options) as output:
        prepared = composition.prepare_alone(options)
        if output.stage is not None:
            write_region_files(prepared.graph, prepared.modules, output.stage)

    def text() -> str:
        graph, modules = prepared.graph, prepared.modules
        lines = [
            f"{region.id}: {_kinds(Counter(op.kind for op in operations_of(region)))}"
            f" [{file_of_region(region.id, modules)}] after {list(graph.producers[region.id])}"
            for region in (graph.regions if print_meta else ())
        ]
        summary = (
            f"{len(graph.compute_regions)} compute regions, "
            f"{len(graph.collective_regions)} communication regions, "
            f"{len(modules.modules)} distinct"
        )
        return "\n".join([*lines, summary])

    return Answer(text=text, json=lambda: region_descriptions(prepared.graph, prepared.modules))


def _kinds(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common())


@answering("estimate", example="hespas estimate step.mlir --node H100_80GB", checks_target=True)
@flags.workload_argument
@flags.both("config_file", type=flags.FILE, metavar="FILE", help="The configuration.")
@flags.derived(ProgramOptions)
@flags.derived(ExpertOptions)
@flags.derived(EstimateOptions, without=("host_bandwidth",))
@flags.derived(NetworkOptions, only=("cluster", "system"))
@flags.derived(SplitOptions)
@flags.derived(OutputOptions)
@flags.estimator_times
def estimate(
    json_file: str | None, estimator_times: bool, config_file: Path | None, **values: Any
) -> Answer:
    """Price the computation of WORKLOAD on one device; communication is left out.

    WORKLOAD is a program or a configuration (.json).
    """
    options = checks.checked(flags.requested(values, config_file))
    check_targets(json_file, made_later=options.output.directory)
    checks.check_priced(options)
    with output_of(options) as output:
        prepared = composition.prepare_alone(options)
        estimates = estimate_into(prepared, options, output)
    return Answer(
        text=lambda: summary_of(estimates, prepared, options, times=estimator_times),
        json=lambda: stats_of(estimates, prepared),
    )


@answering("trace", example="hespas trace step.mlir --node H100_80GB -o traces", checks_target=True)
@flags.workload_argument
@flags.derived(ProgramOptions)
@flags.derived(EstimateOptions)
@flags.derived(NetworkOptions, only=("cluster", "system"))
@flags.derived(SplitOptions)
@flags.derived(OutputOptions)
@flags.estimator_times
def trace(json_file: str | None, estimator_times: bool, **values: Any) -> Answer:
    """Split and price WORKLOAD, and write a Chakra trace for every device to --output.

    WORKLOAD is a program or a configuration (.json).
    """
    options = checks.checked(flags.requested(values))
    directory = options.output.directory
    check_targets(json_file, made_later=directory)
    if directory is None:
        raise ConfigError("no output directory is given", hint=f"give {option('output')}")
    checks.check_priced(options)
    bandwidth = machines.host_bandwidth(options.estimate)
    with output_of(options) as output:
        prepared = composition.prepare_alone(options)
        check_host_link(prepared.graph, bandwidth)
        estimates = estimate_into(prepared, options, output)
        tasks = estimated_tasks(prepared.graph, estimates, host_bandwidth_bytes_per_s=bandwidth)
        write_tasks(tasks, output)

    def text() -> str:
        summary = summary_of(estimates, prepared, options, times=estimator_times)
        return f"{summary}\nTraces of {tasks.device_count} devices: {directory}/dev.*.et"

    return Answer(text=text, json=lambda: stats_of(estimates, prepared))


@answering("analyze", example="hespas analyze -e step.mlir")
@click.argument("file", type=flags.FILE)
@flags.plain("-s", "--signatures", is_flag=True, help="Count by operand types too.")
@flags.plain("-e", "--expand", is_flag=True, help="Open calls and fusions.")
@flags.plain(
    "-f",
    "--format",
    "form",
    type=click.Choice(["table", "csv"]),
    default="table",
    help="How to print (default: table).",
)
def analyze(*, file: Path, signatures: bool, expand: bool, form: str) -> Answer:
    """Count the operations of FILE, most frequent first.

    The return of the main function counts as one.
    """
    program = load(PredictOptions(program=ProgramOptions(file=file), compile=AS_GIVEN))
    counts = count_operators(program, expand=expand, signatures=signatures)
    total = {"total": sum(counts.values()), "unique": len(counts)}

    def text() -> str:
        if form == "csv":
            import csv  # noqa: PLC0415 - few ask for it

            written = io.StringIO()
            rows = [("operator", "count"), *counts.items()]
            csv.writer(written, lineterminator="\n").writerows(rows)
            return written.getvalue().removesuffix("\n")
        width = max([_WIDTH, *map(len, counts)])
        lines = [f"{name:.<{width}}: {count}" for name, count in counts.items()]
        return "\n".join([*lines, f"{total['total']} operations, {total['unique']} unique"])

    return Answer(text=text, json=lambda: {"operators": counts, **total})
