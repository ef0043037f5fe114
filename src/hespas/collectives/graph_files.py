"""Write the graphs of an algorithm as Chakra files, and find such files again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hespas.collectives.algorithm import Algorithm
from hespas.collectives.graphs import rank_graph
from hespas.errors import AlgorithmError
from hespas.files import write_file
from hespas.schedule import wire
from hespas.schedule.chakra_node import ParsedNode
from hespas.schedule.chakra_reader import read_messages
from hespas.schedule.tasks import ReceiveTask, SendTask


def write_graphs(algorithm: Algorithm, prefix: Path, *, size_bytes: int) -> tuple[Path, ...]:
    """Write ``<prefix>.<rank>.et`` for every rank, whose input is ``size_bytes``.

    ``all-reduce-implementation-custom`` and its like in ``system.json`` take the prefix. The same
    algorithm gives the same bytes. Raises `AlgorithmError` for fewer bytes than chunks. Verify
    the algorithm first: see `hespas.collectives.verify.verify`.
    """
    if size_bytes < algorithm.input_chunks:
        message = f"{size_bytes} bytes cannot be cut into {algorithm.input_chunks} chunks"
        raise AlgorithmError(message, location=algorithm.name)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for rank in range(len(algorithm.ranks)):
        file = prefix.with_name(f"{prefix.name}.{rank}.et")
        write_file(file, graph_bytes(rank_graph(algorithm, rank, size_bytes)))
        files.append(file)
    return tuple(files)


def graph_bytes(nodes: tuple[ParsedNode, ...]) -> bytes:
    """Return a rank's graph as a Chakra file."""
    metadata = wire.schema().metadata(version=wire.SCHEMA_VERSION)
    return wire.delimited([metadata.SerializeToString(), *map(_node_bytes, nodes)])


def _node_bytes(node: ParsedNode) -> bytes:
    task = node.task
    attributes: list[Mapping[str, object]] = []
    node_type = wire.NodeType.COMP
    if isinstance(task, SendTask | ReceiveTask):
        sends = isinstance(task, SendTask)
        node_type = wire.NodeType.COMM_SEND if sends else wire.NodeType.COMM_RECV
        attributes = [
            {"name": "comm_type", "int64_val": node_type.value},
            {"name": "comm_size", "int64_val": task.size_bytes},
            {"name": "comm_dst" if sends else "comm_src", "int32_val": node.peer},
            {"name": "comm_tag", "int32_val": task.tag},
        ]
    attributes += _note_attributes(node.notes)
    message = wire.schema().node(
        id=task.id, name=task.name, type=node_type, data_deps=task.depends_on, attr=attributes
    )
    return message.SerializeToString()


def _note_attributes(notes: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    for name, value in notes.items():
        match value:
            case bool():
                yield {"name": name, "bool_val": value}
            case int():
                yield {"name": name, "int32_val": value}
            case _:
                yield {"name": name, "string_val": str(value)}


def read_graphs(prefix: Path) -> tuple[tuple[ParsedNode, ...], ...]:
    """Read ``<prefix>.<rank>.et`` for ranks 0, 1, ...

    Raises `AlgorithmError` where there are fewer than two or one is missing, `TraceError` for
    what is malformed.
    """
    directory = prefix.parent
    pattern = re.compile(rf"{re.escape(prefix.name)}\.(0|[1-9][0-9]*)\.et")
    names = [entry.name for entry in directory.iterdir()] if directory.is_dir() else []
    ranks = {int(match[1]) for name in names if (match := pattern.fullmatch(name))}
    absent = next((rank for rank in range(max(ranks, default=0)) if rank not in ranks), None)
    if len(ranks) < 2 or absent is not None:
        missing = f"{prefix.name}.{len(ranks) if absent is None else absent}.et"
        raise AlgorithmError(
            f"there is no {missing}",
            location=str(directory),
            hint="give an .xml file, or the part of the names before .<rank>.et",
        )
    return tuple([read_messages(directory / f"{prefix.name}.{rank}.et") for rank in sorted(ranks)])
