"""``hespas split``: regions as modules."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from hespas.cli import flags
from hespas.cli.outputs import check_targets, output_of, write_json
from hespas.prediction.composition import Prepared, prepare_alone
from hespas.prediction.options import OutputOptions, ProgramOptions
from hespas.report.regions import file_of_region, region_descriptions, write_region_files
from hespas.split.regions import operations_of
from hespas.split.strategies import SplitOptions


@flags.command(
    "split",
    short_help="Cut a program into regions and write them as modules.",
    example="hespas split step.mlir -o regions",
)
@flags.workload_argument
@flags.derived(ProgramOptions, without=("kernels",))
@flags.derived(SplitOptions)
@flags.derived(OutputOptions)
@flags.both("print_meta", is_flag=True, help="Print a line for every region.")
@flags.json_option
@flags.common
def command(print_meta: bool, json_file: str | None, **given: Any) -> None:
    """Cut WORKLOAD into regions of computation and communication.

    With --output each distinct region is written as a StableHLO module.
    """
    options = flags.requested(given)
    check_targets(json_file, None, options.output.directory)
    with output_of(options) as output:
        prepared = prepare_alone(options)
        if output.stage is not None:
            write_region_files(prepared.graph, prepared.modules, output.stage)
    if json_file is not None:
        write_json(json_file, region_descriptions(prepared.graph, prepared.modules))
    if json_file == "-":
        return
    if print_meta:
        click.echo("\n".join(_lines(prepared)))
    click.echo(_summary(prepared))


def _lines(prepared: Prepared) -> list[str]:
    return [
        f"{region.id}: {_kinds(Counter(op.kind for op in operations_of(region)))}"
        f" [{file_of_region(region.id, prepared.modules)}]"
        f" after {list(prepared.graph.producers[region.id])}"
        for region in prepared.graph.regions
    ]


def _kinds(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common())


def _summary(prepared: Prepared) -> str:
    graph = prepared.graph
    return (
        f"{len(graph.compute_regions)} compute regions, "
        f"{len(graph.collective_regions)} communication regions, "
        f"{len(prepared.modules.modules)} distinct"
    )
