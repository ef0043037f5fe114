"""Whether graphs of sends and receives, one per rank, compute their collective.

Where their notes say which chunks they move, the program that they came from is restored and
verified. Of other graphs it can be checked that every send has its receive, that no rank waits
for ever, and that what a rank ends with can hold something of every rank that it must.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hespas.collectives.execution import ranks_text
from hespas.collectives.program import (
    Buffer,
    Place,
    Program,
    Rank,
    Step,
    StepId,
    StepKind,
    Threadblock,
    chunk_counts,
    wait_step,
)
from hespas.collectives.verify import Verified, verify
from hespas.errors import AlgorithmError
from hespas.program.collectives import CollectiveKind
from hespas.tasks.chakra.nodes import ParsedNode
from hespas.tasks.graph import ComputeTask, ReceiveTask, SendTask


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphsVerified:
    """The result: ``verified`` where the graphs say which chunks they move.

    Else ``unknown`` says what they lack; then only this was checked: that they end, that every
    message has its receive, and that every rank can have heard of every other.
    """

    verified: Verified | None
    unknown: str = ""


def verify_graphs(
    graphs: Sequence[Sequence[ParsedNode]], collective: CollectiveKind, *, name: str
) -> GraphsVerified:
    """Verify graphs, one per rank, that are to do a collective, as far as their notes allow.

    The collective is one whose result every rank has a part in. Raises `AlgorithmError` for what
    is wrong: see `hespas.collectives.chakra_verify.check_graphs` and
    `hespas.collectives.verify.verify`.
    """
    check_graphs(graphs)
    try:
        program = graph_program(graphs, collective, name=name)
    except UnknownProgramError as error:
        return GraphsVerified(verified=None, unknown=str(error))
    return GraphsVerified(verified=verify(program))


_Key = tuple[int, int, int, int]
"""Tag, source, target and size: what a receive must share with its send."""


def check_graphs(graphs: Sequence[Sequence[ParsedNode]]) -> None:
    """Raise `AlgorithmError`, naming rank and node, for graphs that can't do a collective.

    A message that is never received, a receive that waits for ever, peers that are not there;
    and a rank that never hears, not even through others, of another one.
    """
    run = _Run(graphs)
    run.check_ended()
    everyone = (1 << len(graphs)) - 1
    for rank, ended in enumerate(run.ended):
        heard_of = 1 << rank
        for ranks in ended.values():
            heard_of |= ranks
        if heard_of != everyone:
            raise AlgorithmError(
                f"nothing of {ranks_text(everyone & ~heard_of)} ever comes", location=f"rank {rank}"
            )


class _Run:
    """``ended`` has, for each rank's nodes that ended, the ranks whose data they may hold."""

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
        """End a node if it can, and return whether it could."""
        if not self._can_start(rank, node):
            return False
        task = node.task
        heard_of = 1 << rank
        for dependency in task.depends_on:
            heard_of |= self.ended[rank][dependency]
        if isinstance(task, SendTask | ReceiveTask):
            if node.peer == rank or node.peer >= len(self._graphs):
                message = f"the peer {node.peer} is not another one of {len(self._graphs)} ranks"
                raise AlgorithmError(message, location=_node_text(rank, node))
            is_send = isinstance(task, SendTask)
            ends = (rank, node.peer) if is_send else (node.peer, rank)
            messages = self._in_flight[task.tag, *ends, task.size_bytes]
            if is_send:
                messages.append((node, heard_of))
            elif messages:
                heard_of |= messages.popleft()[1]
            else:
                return False
        self.ended[rank][task.id] = heard_of
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


class UnknownProgramError(Exception):
    """The graphs don't say what they do; the message names what is lacking."""


def graph_program(
    graphs: Sequence[Sequence[ParsedNode]], collective: CollectiveKind, *, name: str
) -> Program:
    """Return the program whose graphs these are.

    Without notes on buffers, all chunks are taken to be of one buffer, in place. Raises
    `UnknownProgramError` where notes are lacking or contradict the graph: chunks, threadblocks,
    and the order of steps in them.
    """
    notes = [node.notes for nodes in graphs for node in nodes if node.notes]
    counts = {note.get("total_chunk_cnt") for note in notes}
    total = counts.pop() if len(counts) == 1 else None
    if not isinstance(total, int):
        raise UnknownProgramError("they don't say into how many chunks the buffer is cut")
    _check_sizes(graphs)
    inputs, outputs = chunk_counts(collective, len(graphs), total)
    return Program(
        name=name,
        collective=collective,
        input_chunks=inputs,
        output_chunks=outputs,
        is_in_place=all(note.get("inplace", 1) == 1 for note in notes),
        ranks=tuple([_RankReader(*rank, collective).rank() for rank in enumerate(graphs)]),
    )


def _check_sizes(graphs: Sequence[Sequence[ParsedNode]]) -> None:
    """Raise unless every message has the same number of bytes per chunk."""
    ratios: set[tuple[int, int]] = set()
    for node in [node for nodes in graphs for node in nodes]:
        if isinstance(node.task, SendTask | ReceiveTask):
            count = node.notes.get("msg_chunk_cnt")
            if not isinstance(count, int) or count < 1:
                text = f"node {node.task.id} doesn't say how many chunks it moves"
                raise UnknownProgramError(text)
            ratios.add(divmod(node.task.size_bytes, count))
    if len(ratios) > 1:
        raise UnknownProgramError("the bytes of messages don't fit their numbers of chunks")


_Position = tuple[int, int]
"""A threadblock, and a step of it."""


class _GraphStep(NamedTuple):
    """A step without what it waits for, and the nodes that it became."""

    step: Step
    nodes: list[ParsedNode]


@dataclass(frozen=True, slots=True)
class _RankReader:
    number: int
    nodes: Sequence[ParsedNode]
    collective: CollectiveKind

    def rank(self) -> Rank:
        blocks = self._blocks()
        step_of = {
            node.task.id: (block, index)
            for block, steps in blocks.items()
            for index, one in enumerate(steps)
            for node in one.nodes
        }
        waits = {
            (block, index): self._waits(one, (block, index), step_of)
            for block, steps in blocks.items()
            for index, one in enumerate(steps)
        }
        # A step that waits for several others has nops before it, which shifts what follows.
        step_ids = {
            (block, index): StepId(
                block, index + sum(max(0, len(waits[block, one]) - 1) for one in range(index + 1))
            )
            for block, index in waits
        }
        threadblocks: list[Threadblock] = []
        for block, graph_steps in blocks.items():
            steps: list[Step] = []
            for index, one in enumerate(graph_steps):
                *others, last = [step_ids[other] for other in waits[block, index]] or [None]
                steps += [wait_step(other) for other in others if other is not None]
                steps.append(replace(one.step, after=last))
            threadblocks.append(self._threadblock(block, graph_steps, steps))
        scratch_chunks = [
            place.offset + step.count
            for block in threadblocks
            for step in block.steps
            for place in (step.source, step.target)
            if place.buffer is Buffer.SCRATCH
        ]
        return Rank(scratch_chunks=max(scratch_chunks, default=0), threadblocks=tuple(threadblocks))

    def unknown(self, node: ParsedNode, text: str) -> UnknownProgramError:
        return UnknownProgramError(f"rank {self.number}: node {node.task.id}{text}")

    def _blocks(self) -> dict[int, list[_GraphStep]]:
        """Return the steps of every threadblock in their order."""
        position_of: dict[int, _Position] = {}
        nodes_at: dict[_Position, list[ParsedNode]] = {}
        for node in self.nodes:
            position = self._position(node, position_of)
            position_of[node.task.id] = position
            nodes_at.setdefault(position, []).append(node)
        blocks: dict[int, list[_GraphStep]] = {}
        for (block, _), nodes in sorted(nodes_at.items()):
            steps = blocks.setdefault(block, [])
            # Without its kind, a step is one for each transfer.
            is_one = "step_type" in nodes[0].notes
            for index, node in enumerate(nodes):
                if not index or not (is_one or isinstance(node.task, ComputeTask)):
                    steps.append(_GraphStep(self._step(node), []))
                steps[-1].nodes.append(node)
        return blocks

    def _position(self, node: ParsedNode, position_of: Mapping[int, _Position]) -> _Position:
        block, step = (node.notes.get(name) for name in ("tb_id", "local_time_step"))
        if isinstance(block, int) and isinstance(step, int):
            return block, step
        before = node.task.depends_on
        if isinstance(node.task, ComputeTask) and len(before) == 1 and before[0] in position_of:
            (received,) = [other for other in self.nodes if other.task.id == before[0]]
            if received.notes.get("is_rrc"):
                return position_of[before[0]]  # the addition of a receive-reduce-copy
        raise self.unknown(node, " doesn't say which step it is of")

    def _step(self, node: ParsedNode) -> Step:
        return Step(
            kind=self._kind(node),
            source=self._place(node, "src"),
            target=self._place(node, "dst"),
            count=self._integer(node, "msg_chunk_cnt"),
        )

    def _kind(self, node: ParsedNode) -> StepKind:
        name = node.notes.get("step_type")
        for kind in StepKind:
            if kind.value == name:
                return kind
        if isinstance(name, str) or not isinstance(node.task, SendTask | ReceiveTask):
            raise self.unknown(node, f": step_type is {name!r}")
        if isinstance(node.task, SendTask):
            return StepKind.SEND
        return StepKind.RECEIVE_REDUCE_COPY if node.notes.get("is_rrc") else StepKind.RECEIVE

    def _place(self, node: ParsedNode, end: str) -> Place:
        name = node.notes.get(f"{end}buf")
        if isinstance(name, str):
            for buffer in Buffer:
                if buffer.value == name:
                    return Place(buffer, self._integer(node, f"{end}off"))
            raise self.unknown(node, f": {end}buf is {name!r}")
        in_input = self.collective is CollectiveKind.REDUCE_SCATTER
        whole = Buffer.INPUT if in_input else Buffer.OUTPUT
        return Place(whole, self._integer(node, "chunk_offset"))

    def _integer(self, node: ParsedNode, name: str) -> int:
        value = node.notes.get(name)
        if not isinstance(value, int):
            raise self.unknown(node, f" lacks {name}")
        return value

    def _waits(
        self, one: _GraphStep, position: _Position, step_of: Mapping[int, _Position]
    ) -> list[_Position]:
        """Return the steps of other threadblocks that a step waits for."""
        block, index = position
        waits = [step_of[number] for number in one.nodes[0].task.depends_on]
        if index and (block, index - 1) not in waits:
            raise self.unknown(one.nodes[0], " doesn't follow its threadblock's last step")
        return [other for other in dict.fromkeys(waits) if other[0] != block]

    def _threadblock(
        self, number: int, graph_steps: list[_GraphStep], steps: list[Step]
    ) -> Threadblock:
        nodes = [node for one in graph_steps for node in one.nodes]
        sends = {node.peer for node in nodes if isinstance(node.task, SendTask)}
        receives = {node.peer for node in nodes if isinstance(node.task, ReceiveTask)}
        tags = {node.task.tag for node in nodes if isinstance(node.task, SendTask | ReceiveTask)}
        if max(len(sends), len(receives), len(tags)) > 1:
            text = f"rank {self.number}: threadblock {number} has several peers or tags"
            raise UnknownProgramError(text)
        return Threadblock(
            id=number,
            send_peer=next(iter(sends), None),
            receive_peer=next(iter(receives), None),
            channel=next(iter(tags), 0),
            steps=tuple(steps),
        )
