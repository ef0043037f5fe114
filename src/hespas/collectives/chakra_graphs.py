"""Programs as graphs of sends, receives and computations, one per rank, in Chakra files.

Source of the form: ASTRA-sim's custom collectives, and the names and notes that MSCCL's
converter to them writes. The notes ``step_type``, ``srcbuf``, ``srcoff``, ``dstbuf``, ``dstoff``
and ``inplace`` are added here, so that a graph says all that the program did.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hespas.base.files import write_file
from hespas.base.units import PS_PER_NS
from hespas.collectives.program import Program, Rank, Step, StepId, StepKind, Threadblock
from hespas.collectives.schedule import Collective
from hespas.errors import AlgorithmError
from hespas.hardware.system import CollectiveKind
from hespas.tasks.chakra import format as wire
from hespas.tasks.chakra.format import NodeType
from hespas.tasks.chakra.nodes import ParsedNode
from hespas.tasks.chakra.reader import read_messages
from hespas.tasks.graph import ComputeTask, ReceiveTask, SendTask

_LOCAL_PS = PS_PER_NS
_LOCAL = (StepKind.COPY, StepKind.REDUCE)


def rank_graph(program: Program, rank: int, size_bytes: int) -> tuple[ParsedNode, ...]:
    """Return what a rank does where its input is ``size_bytes``, dependencies first.

    Chunks are of equal size, rounded up to whole bytes. A send ends when it has arrived, and
    copying and reducing take 1 ns, as in the graphs that MSCCL's converter makes.
    """
    return tuple(_Lowering(program, rank, program.chunk_bytes(size_bytes)).nodes())


class _Head(NamedTuple):
    """What every node has."""

    number: int
    name: str
    depends_on: tuple[int, ...]


@dataclass(slots=True)
class _Lowering:
    program: Program
    rank: int
    chunk_bytes: int
    made: list[ParsedNode] = field(default_factory=list[ParsedNode])
    ends: dict[StepId, tuple[int, ...]] = field(default_factory=dict[StepId, tuple[int, ...]])
    number_of: dict[StepId, int] = field(default_factory=dict[StepId, int])

    def nodes(self) -> Sequence[ParsedNode]:
        rank = self.program.ranks[self.rank]
        for number, at in enumerate(_step_ids(rank)):
            # Several nodes of a step have following numbers: of threadblocks in turn.
            self.number_of[at] = 3 * number
        waited_for = {
            step.after for block in rank.threadblocks for step in block.steps if step.after
        }
        position = dict.fromkeys((block.id for block in rank.threadblocks), 0)
        has_moved = True
        while has_moved:
            has_moved = False
            for block in rank.threadblocks:
                while position[block.id] < len(block.steps):
                    at = StepId(block.id, position[block.id])
                    after = block.steps[at.step].after
                    if after is not None and after not in self.ends:
                        break
                    self._add(block, at, is_waited_for=at in waited_for)
                    position[block.id] += 1
                    has_moved = True
        return self.made

    def _add(self, block: Threadblock, at: StepId, *, is_waited_for: bool) -> None:
        step = block.steps[at.step]
        before = self.ends.get(StepId(at.threadblock, at.step - 1), ())
        depends_on = before if step.after is None else (*before, *self.ends[step.after])
        depends_on = tuple(sorted(dict.fromkeys(depends_on)))
        notes = self._notes(step, at, is_waited_for=is_waited_for)
        for offset, node_type in enumerate(_node_types(step)):
            number = self.number_of[at] + offset
            name = f"{node_type.name}_NODE_tb{at.threadblock}_step{at.step}"
            head = _Head(number, name, depends_on)
            self.made.append(self._node(node_type, head, block, step)._replace(notes=notes))
            depends_on = (number,)
        self.ends[at] = depends_on

    def _node(self, node_type: NodeType, head: _Head, block: Threadblock, step: Step) -> ParsedNode:
        number, name, depends_on = head
        if node_type is NodeType.COMP:
            return ParsedNode(
                ComputeTask(id=number, name=name, depends_on=depends_on, duration_ps=_LOCAL_PS)
            )
        make = SendTask if node_type is NodeType.COMM_SEND else ReceiveTask
        peer = block.send_peer if node_type is NodeType.COMM_SEND else block.receive_peer
        task = make(
            id=number,
            name=name,
            depends_on=depends_on,
            pairs=(),
            size_bytes=step.count * self.chunk_bytes,
            tag=block.channel,
        )
        return ParsedNode(task, peer=-1 if peer is None else peer)

    def _notes(self, step: Step, at: StepId, *, is_waited_for: bool) -> Mapping[str, object]:
        main = step.target if step.kind.receives or not step.kind.reads else step.source
        after = step.after or StepId(-1, -1)
        notes: dict[str, object] = {
            "msg_chunk_cnt": step.count,
            "msg_chunk_idx": main.offset,
            "total_chunk_cnt": max(self.program.input_chunks, self.program.output_chunks),
            "local_time_step": at.step,
            "chunk_offset": main.offset,
            "hasdep": int(is_waited_for),
            "deps": after.step,
            "depid": after.threadblock,
            "tb_id": at.threadblock,
            "step_type": step.kind.value,
            "srcbuf": step.source.buffer.value,
            "srcoff": step.source.offset,
            "dstbuf": step.target.buffer.value,
            "dstoff": step.target.offset,
            "inplace": int(self.program.is_in_place),
        }
        if step.kind.receives and step.kind.reduces:
            notes["is_rrc"] = True
        return notes


def _step_ids(rank: Rank) -> Iterator[StepId]:
    for block in rank.threadblocks:
        for index in range(len(block.steps)):
            yield StepId(block.id, index)


def _node_types(step: Step) -> Iterator[NodeType]:
    kind = step.kind
    if kind.receives:
        yield NodeType.COMM_RECV
    if kind in _LOCAL or (kind.receives and kind.reduces):
        yield NodeType.COMP
    if kind.sends:
        yield NodeType.COMM_SEND


def write_graphs(program: Program, prefix: Path, *, size_bytes: int) -> tuple[Path, ...]:
    """Write ``<prefix>.<rank>.et`` for every rank, whose input is ``size_bytes``.

    ``all-reduce-implementation-custom`` and its like in ``system.json`` take the prefix. The same
    algorithm gives the same bytes. Raises `AlgorithmError` for fewer bytes than chunks. Verify
    the algorithm first: see `hespas.collectives.verify.verify`.
    """
    if size_bytes < program.input_chunks:
        message = f"{size_bytes} bytes cannot be cut into {program.input_chunks} chunks"
        raise AlgorithmError(message, location=program.name)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for rank in range(len(program.ranks)):
        file = prefix.with_name(f"{prefix.name}.{rank}.et")
        write_file(file, graph_bytes(rank_graph(program, rank, size_bytes)))
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


COLLECTIVE_OF = {
    CollectiveKind.ALL_REDUCE: Collective.ALL_REDUCE,
    CollectiveKind.ALL_GATHER: Collective.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER: Collective.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL: Collective.ALL_TO_ALL,
}


def collective_graphs(
    path: Path, program: Program, *, kind: CollectiveKind, members: int, size_bytes: int
) -> Sequence[Sequence[ParsedNode]]:
    """Return what every member of a collective does.

    Raises `AlgorithmError` for an algorithm of another collective or number of ranks, and for
    nothing to send. One whose ``coll`` is custom is taken for whatever it is used for.
    """
    collective = COLLECTIVE_OF[kind]
    problem = ""
    if program.collective not in (collective, Collective.CUSTOM):
        problem = f"the algorithm does {program.collective.value}, not {collective.value}"
    elif len(program.ranks) != members:
        problem = f"the algorithm is for {len(program.ranks)} ranks, the collective has {members}"
    elif size_bytes < 1:
        problem = f"a collective of {size_bytes} bytes"
    if problem:
        raise AlgorithmError(problem, location=str(path))
    return [rank_graph(program, rank, size_bytes) for rank in range(members)]
