"""``hespas split``: regions as modules."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from hespas.cli import options
from hespas.cli.flags import Flags
from hespas.cli.outputs import output_of
from hespas.cli.settings import settings_of
from hespas.cli.stages import Divided, check_targets, divide, load, write_json
from hespas.report.region_files import file_of_region, region_descriptions, write_region_files
from hespas.split.regions import operations_of


@click.command("split", short_help="Cut a program into regions and write them as modules.")
@options.workload_argument
@options.program
@options.splitting
@options.output
@options.both("print_meta", is_flag=True, help="Print a line for every region.")
@options.json_option
@options.common
def command(print_meta: bool, json_file: str | None, **given: Any) -> None:
    """Cut WORKLOAD into regions of computation and communication.

    With --output each distinct region is written as a StableHLO module.
    """
    settings = settings_of(Flags(**given))
    check_targets(json_file, None, settings.output)
    divided = divide(settings, load(settings, system=None, alone=True))
    with output_of(settings) as output:
        if output.stage is not None:
            write_region_files(divided.graph, divided.modules, output.stage)
    if json_file is not None:
        write_json(json_file, region_descriptions(divided.graph, divided.modules))
    if json_file == "-":
        return
    if print_meta:
        click.echo("\n".join(_lines(divided)))
    click.echo(_summary(divided))


def _lines(divided: Divided) -> list[str]:
    return [
        f"{region.id}: {_kinds(Counter(op.kind for op in operations_of(region)))}"
        f" [{file_of_region(region.id, divided.modules)}]"
        f" after {list(divided.graph.producers[region.id])}"
        for region in divided.graph.regions
    ]


def _kinds(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common())


def _summary(divided: Divided) -> str:
    graph = divided.graph
    return (
        f"{len(graph.compute_regions)} compute regions, "
        f"{len(graph.collective_regions)} communication regions, "
        f"{len(divided.modules.modules)} distinct"
    )
