"""``hespas algorithm``: verify and convert the user's collective algorithms."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hespas.base.files import write_file
from hespas.base.suggest import suggestion
from hespas.base.units import parse_quantity
from hespas.cli import flags
from hespas.cli.answers import Answer, answering, check_targets
from hespas.errors import AlgorithmError, ConfigError

if TYPE_CHECKING:
    from hespas.collectives.verify import Verified
    from hespas.program.collectives import CollectiveKind

_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


@answering("algorithm", example="hespas algorithm ring --ranks 8", checks_target=True)
@click.argument("source")
@flags.plain(
    "--ranks", type=click.IntRange(min=2), metavar="N", help="How many ranks: made for, or checked."
)
@flags.plain(
    "--collective",
    type=click.Choice(_COLLECTIVES),
    metavar="COLLECTIVE",
    help="What a made algorithm, or Chakra graphs, compute: all-reduce (default), "
    "all-gather, reduce-scatter or all-to-all.",
)
@flags.plain(
    "--size",
    default="1MiB",
    metavar="SIZE",
    help="Bytes of a rank's input, as in 64MiB (default: 1MiB).",
)
@flags.plain(
    "--chakra",
    type=flags.FILE,
    metavar="DIR",
    help="Write Chakra graphs, DIR/NAME.RANK.et, as ASTRA-sim reads them.",
)
@flags.plain("--xml", type=flags.FILE, metavar="FILE", help="Write MSCCL's XML.")
def algorithm(
    *,
    source: str,
    ranks: int | None,
    collective: str | None,
    size: str,
    chakra: Path | None,
    xml: Path | None,
    json_file: str | None,
) -> Answer | int:
    """Verify that SOURCE computes its collective, and show what it does.

    SOURCE is a file of MSCCL's XML, the prefix of Chakra graphs (PREFIX.0.et, ...), or the name
    of a common algorithm to make for --ranks: ring, bidirectional-ring, direct,
    halving-doubling, double-binary-tree.
    """
    from hespas.report.stages import algorithm_json, algorithm_text  # noqa: PLC0415 (numpy comes with it)

    check_targets(json_file, xml=xml)
    size_bytes = round(parse_quantity(size, "B", location="--size"))
    if size_bytes < 1:
        raise ConfigError(f"{size} is not a size", location="--size", hint="give 1 byte or more")
    verified = _read_and_verify(source, ranks, collective)
    if verified is None:
        if chakra or xml or json_file:
            message = "the graphs don't say which chunks they move, so nothing can be written"
            raise AlgorithmError(message, location=source)
        return 0
    program = verified.program
    if chakra is not None:
        from hespas.collectives.chakra_graphs import write_graphs  # noqa: PLC0415 (as above)

        if program.name in {".", ".."} or Path(program.name).name != program.name:
            message = f"its name, {program.name!r}, is no file's name, so no graphs can be written"
            raise AlgorithmError(message, location=source, hint="change the name in the file")
        write_graphs(program, chakra / program.name, size_bytes=size_bytes)
    if xml is not None:
        from hespas.collectives.msccl_xml import program_xml  # noqa: PLC0415 (as above)

        write_file(xml, program_xml(program).encode())
    return Answer(
        text=lambda: algorithm_text(verified, size_bytes=size_bytes),
        json=lambda: algorithm_json(verified, size_bytes=size_bytes),
    )


def _read_and_verify(source: str, ranks: int | None, name: str | None) -> Verified | None:
    """Return the verified algorithm.

    Graphs that are incomplete give None, with a message.
    """
    from hespas.collectives.algorithms import ALGORITHMS  # noqa: PLC0415 (as above)
    from hespas.collectives.msccl_xml import read_verified  # noqa: PLC0415 (as above)
    from hespas.collectives.program import common_program  # noqa: PLC0415 (as above)
    from hespas.collectives.verify import verify  # noqa: PLC0415 (as above)
    from hespas.program.collectives import COMMON_KINDS  # noqa: PLC0415 (as above)

    kinds = {kind.option: kind for kind in COMMON_KINDS}
    collective = kinds[name or "all-reduce"]
    if source in ALGORITHMS:
        if ranks is None:
            raise click.UsageError(f"{source} is made for a number of ranks: give --ranks")
        return verify(common_program(source, collective, ranks))
    has_graphs = any(True for _ in Path().glob(f"{glob.escape(source)}.*.et"))
    if Path(source).suffix == "" and Path(source).name == source and not has_graphs:
        raise AlgorithmError(
            f"there is no algorithm {source!r}, and no {source}.0.et",
            hint=suggestion(source, ALGORITHMS),
        )
    if not source.endswith(".xml"):
        return _verify_graphs(Path(source), collective, ranks)
    program = read_verified(Path(source))
    if name is not None and program.collective is not collective:
        message = f"the algorithm does {program.collective.value}, not {collective.value}"
        raise AlgorithmError(message, location=source)
    _check_ranks(source, ranks, len(program.ranks))
    return verify(program)


def _verify_graphs(prefix: Path, collective: CollectiveKind, ranks: int | None) -> Verified | None:
    from hespas.collectives.chakra_graphs import read_graphs, verify_graphs  # noqa: PLC0415

    graphs = read_graphs(prefix)
    _check_ranks(str(prefix), ranks, len(graphs))
    checked = verify_graphs(graphs, collective, name=prefix.name)
    if checked.verified is None:
        click.echo(
            f"{prefix}: every message has its receive, no rank waits for ever, and every rank can "
            f"have heard of every other; whether they compute {collective.value} is not known: "
            f"{checked.unknown}"
        )
    return checked.verified


def _check_ranks(source: str, requested: int | None, ranks: int) -> None:
    if requested is not None and requested != ranks:
        message = f"the algorithm is for {ranks} ranks, not {requested}"
        raise AlgorithmError(message, location=source)
