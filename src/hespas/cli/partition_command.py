"""``hespas partition``: a sharded program as one device runs it."""

from __future__ import annotations

from pathlib import Path

import click

from hespas.base.files import check_file, write_file
from hespas.cli import flags
from hespas.errors import OutputError
from hespas.frontend.load import read_source
from hespas.frontend.whole import whole_of_source, with_device_order, with_mesh
from hespas.xla.hlo.forms import is_hlo
from hespas.xla.hlo.module import stablehlo_of_hlo
from hespas.xla.partition.partition import partition


@flags.command(
    "partition",
    short_help="Divide a sharded program over its devices.",
    example="hespas partition sharded.mlir -o step.mlir",
)
@click.argument("program", type=flags.FILE)
@flags.both("output", "-o", type=flags.FILE, metavar="FILE", help="The file to write.")
@flags.common
def command(
    program: Path, output: Path | None, log_level: str | None, log_path: Path | None
) -> None:
    """Write PROGRAM, which shardings annotate, as one device runs it, with its collectives.

    PROGRAM is StableHLO annotated by Shardy or GSPMD, or HLO from before partitioning.
    """
    flags.start_logging(log_level, log_path)
    if output is None:
        raise OutputError("no output is given", hint="name a file with -o")
    check_file(output)
    source = read_source(program)
    if is_hlo(source):
        source = stablehlo_of_hlo(source, name=str(program))
    made = partition(source, name=str(program))
    whole = whole_of_source(source, name=str(program))
    write_file(output, with_device_order(with_mesh(made.text, whole.mesh), whole.device_order))
    click.echo(f"{output}: the program of one of {made.devices} devices, by {made.partitioner}")
