"""Write and read programs as per-rank graphs in Chakra files.

A graph has sends, receives and computations. Source of the form: ASTRA-sim's custom collectives,
and the names and notes that MSCCL's converter to them writes. hespas adds the notes ``step_type``,
``srcbuf``, ``srcoff``, ``dstbuf``, ``dstoff`` and ``inplace``, so a graph preserves the whole
program.

If notes say which chunks are moved, the program of a graph is restored and verified. For other
graphs the check is that every send has its receive, that no rank waits forever, and that each
rank's result can hold data of every rank that it must.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hespas.base.files import write_file
from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_NS
from hespas.collectives.graph_programs import UnknownProgramError, graph_program
from hespas.collectives.program import Program, Rank, Step, StepId, StepKind, Threadblock
from hespas.collectives.verify import Verified, ranks_text, verify
from hespas.errors import AlgorithmError
from hespas.program.collectives import CollectiveKind
from hespas.tasks.chakra import format as wire
from hespas.tasks.chakra.format import NodeType
from hespas.tasks.chakra.nodes import ParsedNode
from hespas.tasks.chakra.reader import read_messages
from hespas.tasks.graph import ComputeTask, ReceiveTask, SendTask

_LOCAL_PS = PS_PER_NS
_NODES_OF_A_STEP = 3


def rank_graph(program: Program, rank: int, size_bytes: int) -> tuple[ParsedNode, ...]:
    """Return a rank's graph for ``size_bytes`` of input, dependencies first.

    Chunks have equal sizes, rounded up to whole bytes. A send ends at its arrival, and copying and
    reducing take 1 ns, as in the graphs of MSCCL's converter.
    """
    threadblocks = program.ranks[rank].threadblocks
    step_ids = [
        StepId(block.id, index) for block in threadblocks for index in range(len(block.steps))
    ]
    first_number = {step_id: _NODES_OF_A_STEP * index for index, step_id in enumerate(step_ids)}
    awaited = program.ranks[rank].awaited()
    last_nodes: dict[StepId, tuple[int, ...]] = {}
    nodes: list[ParsedNode] = []
    for block, step_id in _steps_in_order(program.ranks[rank]):
        step = block.steps[step_id.step]
        previous_nodes = last_nodes.get(StepId(block.id, step_id.step - 1), ())
        awaited_nodes = () if step.after is None else last_nodes[step.after]
        depends_on = tuple(sorted({*previous_nodes, *awaited_nodes}))
        notes = _notes(program, step, step_id, is_awaited=step_id in awaited)
        for number, node_type in enumerate(_node_types(step.kind), first_number[step_id]):
            task, peer = _task(node_type, block, step, program.chunk_bytes(size_bytes))
            name = f"{node_type.name}_NODE_tb{block.id}_step{step_id.step}"
            task = replace(task, id=number, name=name, depends_on=depends_on)
            nodes.append(ParsedNode(task, peer=peer, notes=notes))
            depends_on = (number,)
        last_nodes[step_id] = depends_on
    return tuple(nodes)


def _steps_in_order(rank: Rank) -> Iterator[tuple[Threadblock, StepId]]:
    """Yield the steps of a rank, dependencies first."""
    ended: set[StepId] = set()
    position = {block.id: 0 for block in rank.threadblocks}
    has_moved = True
    while has_moved:
        has_moved = False
        for block in rank.threadblocks:
            for step in block.steps[position[block.id] :]:
                if step.after is not None and step.after not in ended:
                    break
                step_id = StepId(block.id, position[block.id])
                yield block, step_id
                ended.add(step_id)
                position[block.id] += 1
                has_moved = True


def _node_types(kind: StepKind) -> Iterator[NodeType]:
    if kind.receives:
        yield NodeType.COMM_RECV
    if kind.reduces or kind is StepKind.COPY:
        yield NodeType.COMP
    if kind.sends:
        yield NodeType.COMM_SEND


def _task(
    node_type: NodeType, block: Threadblock, step: Step, chunk_bytes: int
) -> tuple[ComputeTask | SendTask | ReceiveTask, int]:
    if node_type is NodeType.COMP:
        return ComputeTask(id=0, name="", depends_on=(), duration_ps=_LOCAL_PS), -1
    make, peer = SendTask, block.send_peer
    if node_type is NodeType.COMM_RECV:
        make, peer = ReceiveTask, block.receive_peer
    size_bytes = step.count * chunk_bytes
    task = make(id=0, name="", depends_on=(), pairs=(), size_bytes=size_bytes, tag=block.channel)
    return task, -1 if peer is None else peer


def _notes(
    program: Program, step: Step, step_id: StepId, *, is_awaited: bool
) -> Mapping[str, object]:
    main = step.target if step.kind.receives or not step.kind.reads else step.source
    after = step.after or StepId(-1, -1)
    notes: dict[str, object] = {
        "msg_chunk_cnt": step.count,
        "msg_chunk_idx": main.offset,
        "total_chunk_cnt": max(program.input_chunks, program.output_chunks),
        "local_time_step": step_id.step,
        "chunk_offset": main.offset,
        "hasdep": int(is_awaited),
        "deps": after.step,
        "depid": after.threadblock,
        "tb_id": step_id.threadblock,
        "step_type": step.kind.value,
        "srcbuf": step.source.buffer.value,
        "srcoff": step.source.offset,
        "dstbuf": step.target.buffer.value,
        "dstoff": step.target.offset,
        "inplace": int(program.is_in_place),
    }
    return {**notes, "is_rrc": True} if step.kind.receives and step.kind.reduces else notes


def write_graphs(program: Program, prefix: Path, *, size_bytes: int) -> tuple[Path, ...]:
    """Write ``<prefix>.<rank>.et`` for every rank with ``size_bytes`` of input.

    ``all-reduce-implementation-custom`` and similar keys in ``system.json`` take the prefix. Verify
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
    fields: Mapping[type, str] = {bool: "bool_val", int: "int32_val", str: "string_val"}
    attributes += [{"name": name, fields[type(value)]: value} for name, value in node.notes.items()]
    message = wire.schema().node(
        id=task.id, name=task.name, type=node_type, data_deps=task.depends_on, attr=attributes
    )
    return message.SerializeToString()


def read_graphs(prefix: Path) -> tuple[tuple[ParsedNode, ...], ...]:
    """Read ``<prefix>.<rank>.et`` for ranks 0, 1, ..."""
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


def collective_graphs(
    path: Path, program: Program, *, kind: CollectiveKind, members: int, size_bytes: int
) -> Sequence[Sequence[ParsedNode]]:
    """Return the graph of every member of a collective.

    Raises `AlgorithmError` for an algorithm of another collective or number of ranks, and for a
    size below 1 byte. An algorithm whose ``coll`` is custom may run any collective.
    """
    problem = ""
    if program.collective not in (kind, CollectiveKind.CUSTOM):
        problem = f"the algorithm does {program.collective.value}, not {kind.value}"
    elif len(program.ranks) != members:
        problem = f"the algorithm is for {len(program.ranks)} ranks, the collective has {members}"
    elif size_bytes < 1:
        problem = f"a collective of {size_bytes} bytes"
    if problem:
        raise AlgorithmError(problem, location=str(path))
    return [rank_graph(program, rank, size_bytes) for rank in range(members)]


@frozen
class GraphsVerified:
    """The verification result of graphs.

    ``verified`` is set if the graphs say which chunks they move. Else ``unknown`` says what they
    lack, and the checks were only that they end, that every message has its receive, and that data
    of every rank can reach every other.
    """

    verified: Verified | None
    unknown: str = ""


def verify_graphs(
    graphs: Sequence[Sequence[ParsedNode]], collective: CollectiveKind, *, name: str
) -> GraphsVerified:
    """Verify a graph per rank as far as notes allow.

    Every rank must contribute to the result of the collective.
    """
    check_graphs(graphs)
    try:
        program = graph_program(graphs, collective, name=name)
    except UnknownProgramError as error:
        return GraphsVerified(verified=None, unknown=str(error))
    return GraphsVerified(verified=verify(program))


_Key = tuple[int, int, int, int]
"""Tag, source, target and size, which a receive shares with its send."""


def check_graphs(graphs: Sequence[Sequence[ParsedNode]]) -> None:
    """Raise `AlgorithmError` for graphs that can't run a collective.

    These are messages without a receive, receives that wait forever, missing peers, and ranks that
    no data of another rank reaches, not even through others. The error names rank and node.
    """
    run = _Run(graphs)
    run.check_ended()
    everyone = (1 << len(graphs)) - 1
    for rank, ended in enumerate(run.ended):
        contributing = 1 << rank
        for ranks in ended.values():
            contributing |= ranks
        if contributing != everyone:
            raise AlgorithmError(
                f"nothing of {ranks_text(everyone & ~contributing)} ever comes",
                location=f"rank {rank}",
            )


class _Run:
    """A run of graphs.

    ``ended`` maps each rank's ended nodes to the ranks that contributed. A bit is set for each rank
    whose data a node may hold.
    """

    def __init__(self, graphs: Sequence[Sequence[ParsedNode]]) -> None:
        self.ended: list[dict[int, int]] = [{} for _ in graphs]
        self._graphs = graphs
        self._in_flight: dict[_Key, deque[tuple[ParsedNode, int]]] = defaultdict(deque)
        has_moved = True
        while has_moved:
            has_moved = False
            for rank, nodes in enumerate(graphs):
                for node in nodes:
                    if node.task.id not in self.ended[rank] and self._end(rank, node):
                        has_moved = True

    def _can_start(self, rank: int, node: ParsedNode) -> bool:
        return self.ended[rank].keys() >= set(node.task.depends_on)

    def _end(self, rank: int, node: ParsedNode) -> bool:
        if not self._can_start(rank, node):
            return False
        task = node.task
        contributing = 1 << rank
        for dependency in task.depends_on:
            contributing |= self.ended[rank][dependency]
        if isinstance(task, SendTask | ReceiveTask):
            if node.peer == rank or node.peer >= len(self._graphs):
                message = f"the peer {node.peer} is not another one of {len(self._graphs)} ranks"
                raise AlgorithmError(message, location=_node_text(rank, node))
            is_send = isinstance(task, SendTask)
            ends = (rank, node.peer) if is_send else (node.peer, rank)
            messages = self._in_flight[task.tag, *ends, task.size_bytes]
            if is_send:
                messages.append((node, contributing))
            elif messages:
                contributing |= messages.popleft()[1]
            else:
                return False
        self.ended[rank][task.id] = contributing
        return True

    def check_ended(self) -> None:
        for rank, nodes in enumerate(self._graphs):
            for node in nodes:
                if node.task.id not in self.ended[rank] and self._can_start(rank, node):
                    message = (
                        f"waits for ever for a message of rank {node.peer}, of this tag and size"
                    )
                    raise AlgorithmError(message, location=_node_text(rank, node))
        for (_, source, target, _), messages in self._in_flight.items():
            if messages:
                message = f"sends a message that rank {target} never receives"
                raise AlgorithmError(message, location=_node_text(source, messages[0][0]))


def _node_text(rank: int, node: ParsedNode) -> str:
    return f"rank {rank}: node {node.task.id} ({node.task.name})"
