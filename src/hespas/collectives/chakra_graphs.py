"""Programs as graphs of sends, receives and computations, one per rank, in Chakra files.

Source of the form: ASTRA-sim's custom collectives, and the names and notes that MSCCL's
converter to them writes. The notes ``step_type``, ``srcbuf``, ``srcoff``, ``dstbuf``, ``dstoff``
and ``inplace`` are added here, so that a graph says all that the program did.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hespas.base.files import write_file
from hespas.base.units import PS_PER_NS
from hespas.collectives.program import Program, Rank, Step, StepId, StepKind, Threadblock
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
    """Return what a rank does where its input is ``size_bytes``, dependencies first.

    Chunks are of equal size, rounded up to whole bytes. A send ends when it has arrived, and
    copying and reducing take 1 ns, as in the graphs that MSCCL's converter makes.
    """
    threadblocks = program.ranks[rank].threadblocks
    step_ids = [
        StepId(block.id, index) for block in threadblocks for index in range(len(block.steps))
    ]
    first_number = {step_id: _NODES_OF_A_STEP * index for index, step_id in enumerate(step_ids)}
    awaited = program.ranks[rank].awaited()
    last_nodes: dict[StepId, tuple[int, ...]] = {}
    nodes: list[ParsedNode] = []
    for block, step_id in _in_order(program.ranks[rank]):
        step = block.steps[step_id.step]
        before = last_nodes.get(StepId(block.id, step_id.step - 1), ())
        after = () if step.after is None else last_nodes[step.after]
        depends_on = tuple(sorted({*before, *after}))
        notes = _notes(program, step, step_id, is_awaited=step_id in awaited)
        for number, node_type in enumerate(_node_types(step.kind), first_number[step_id]):
            task, peer = _task(node_type, block, step, program.chunk_bytes(size_bytes))
            name = f"{node_type.name}_NODE_tb{block.id}_step{step_id.step}"
            task = replace(task, id=number, name=name, depends_on=depends_on)
            nodes.append(ParsedNode(task, peer=peer, notes=notes))
            depends_on = (number,)
        last_nodes[step_id] = depends_on
    return tuple(nodes)


def _in_order(rank: Rank) -> Iterator[tuple[Threadblock, StepId]]:
    """Yield the steps of a rank, each after those that it waits for."""
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
    """Return a node's task, still without number, name and dependencies, and its peer."""
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
    fields: Mapping[type, str] = {bool: "bool_val", int: "int32_val", str: "string_val"}
    attributes += [{"name": name, fields[type(value)]: value} for name, value in node.notes.items()]
    message = wire.schema().node(
        id=task.id, name=task.name, type=node_type, data_deps=task.depends_on, attr=attributes
    )
    return message.SerializeToString()


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


def collective_graphs(
    path: Path, program: Program, *, kind: CollectiveKind, members: int, size_bytes: int
) -> Sequence[Sequence[ParsedNode]]:
    """Return what every member of a collective does.

    Raises `AlgorithmError` for an algorithm of another collective or number of ranks, and for
    nothing to send. One whose ``coll`` is custom is taken for whatever it is used for.
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
