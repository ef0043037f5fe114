"""Read a verified program from Chakra graphs of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

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
from hespas.program.collectives import CollectiveKind
from hespas.tasks.chakra.nodes import ParsedNode
from hespas.tasks.graph import ComputeTask, ReceiveTask, SendTask


class UnknownProgramError(Exception):
    """Graphs lack information about their program; the message names it."""


def graph_program(
    graphs: Sequence[Sequence[ParsedNode]], collective: CollectiveKind, *, name: str
) -> Program:
    """Restore the program of graphs.

    Without notes on buffers, all chunks are assumed in one buffer, in place. Raises
    `UnknownProgramError` if notes are missing or contradict the graph.
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
"""A threadblock and the index of a step."""


class _GraphStep(NamedTuple):
    """A step without its dependencies, and its nodes."""

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
            for index, graph_step in enumerate(steps)
            for node in graph_step.nodes
        }
        waits = {
            (block, index): self._waits(graph_step, (block, index), step_of)
            for block, steps in blocks.items()
            for index, graph_step in enumerate(steps)
        }
        # A step that waits for several others has nops before it, which shift later steps.
        step_ids: dict[_Position, StepId] = {}
        for block, index in waits:
            nops = sum(max(0, len(waits[block, step]) - 1) for step in range(index + 1))
            step_ids[block, index] = StepId(block, index + nops)
        threadblocks: list[Threadblock] = []
        for block, graph_steps in blocks.items():
            steps: list[Step] = []
            for index, graph_step in enumerate(graph_steps):
                awaited = [step_ids[position] for position in waits[block, index]]
                steps += [wait_step(step_id) for step_id in awaited[:-1]]
                last = awaited[-1] if awaited else None
                steps.append(replace(graph_step.step, after=last))
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
        """Return the steps of every threadblock in order."""
        position_of: dict[int, _Position] = {}
        nodes_at: dict[_Position, list[ParsedNode]] = {}
        for node in self.nodes:
            position = self._position(node, position_of)
            position_of[node.task.id] = position
            nodes_at.setdefault(position, []).append(node)
        blocks: dict[int, list[_GraphStep]] = {}
        for (block, _), nodes in sorted(nodes_at.items()):
            steps = blocks.setdefault(block, [])
            # Without a kind, each transfer is its own step.
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
        dependencies = node.task.depends_on
        if (
            isinstance(node.task, ComputeTask)
            and len(dependencies) == 1
            and dependencies[0] in position_of
        ):
            (received,) = [item for item in self.nodes if item.task.id == dependencies[0]]
            if received.notes.get("is_rrc"):
                return position_of[dependencies[0]]  # the addition of a receive-reduce-copy
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
        buffer_of_kind = Buffer.INPUT if in_input else Buffer.OUTPUT
        return Place(buffer_of_kind, self._integer(node, "chunk_offset"))

    def _integer(self, node: ParsedNode, name: str) -> int:
        value = node.notes.get(name)
        if not isinstance(value, int):
            raise self.unknown(node, f" lacks {name}")
        return value

    def _waits(
        self, graph_step: _GraphStep, position: _Position, step_of: Mapping[int, _Position]
    ) -> list[_Position]:
        """Return the awaited steps of other threadblocks."""
        block, index = position
        waits = [step_of[number] for number in graph_step.nodes[0].task.depends_on]
        if index and (block, index - 1) not in waits:
            raise self.unknown(graph_step.nodes[0], " doesn't follow its threadblock's last step")
        return [wait for wait in dict.fromkeys(waits) if wait[0] != block]

    def _threadblock(
        self, number: int, graph_steps: list[_GraphStep], steps: list[Step]
    ) -> Threadblock:
        nodes = [node for graph_step in graph_steps for node in graph_step.nodes]
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
