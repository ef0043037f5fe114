"""Algorithms as graphs of sends, receives and computations, one per rank.

Source of the form: ASTRA-sim's custom collectives, and the names and notes that MSCCL's
converter to them writes. The notes ``step_type``, ``srcbuf``, ``srcoff``, ``dstbuf``, ``dstoff``
and ``inplace`` are added here, so that a graph says all that the algorithm did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hespas.collectives.algorithm import (
    Algorithm,
    Rank,
    Step,
    StepId,
    StepKind,
    Threadblock,
)
from hespas.schedule.chakra_node import ParsedNode
from hespas.schedule.tasks import ComputeTask, ReceiveTask, SendTask
from hespas.schedule.wire import NodeType
from hespas.units import PS_PER_NS

_LOCAL_PS = PS_PER_NS
_LOCAL = (StepKind.COPY, StepKind.REDUCE)


def rank_graph(algorithm: Algorithm, rank: int, size_bytes: int) -> tuple[ParsedNode, ...]:
    """Return what a rank does where its input is ``size_bytes``, dependencies first.

    Chunks are of equal size, rounded up to whole bytes. A send ends when it has arrived, and
    copying and reducing take 1 ns, as in the graphs that MSCCL's converter makes.
    """
    return tuple(_Lowering(algorithm, rank, algorithm.chunk_bytes(size_bytes)).nodes())


class _Head(NamedTuple):
    """What every node has."""

    number: int
    name: str
    depends_on: tuple[int, ...]


@dataclass(slots=True)
class _Lowering:
    algorithm: Algorithm
    rank: int
    chunk_bytes: int
    made: list[ParsedNode] = field(default_factory=list[ParsedNode])
    ends: dict[StepId, tuple[int, ...]] = field(default_factory=dict[StepId, tuple[int, ...]])
    number_of: dict[StepId, int] = field(default_factory=dict[StepId, int])

    def nodes(self) -> Sequence[ParsedNode]:
        rank = self.algorithm.ranks[self.rank]
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
            "total_chunk_cnt": max(self.algorithm.input_chunks, self.algorithm.output_chunks),
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
            "inplace": int(self.algorithm.is_in_place),
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
