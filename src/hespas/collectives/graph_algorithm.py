"""The algorithm that graphs of sends and receives came from, as far as their notes tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hespas.collectives.algorithm import (
    Algorithm,
    Buffer,
    Collective,
    Place,
    Rank,
    Step,
    StepId,
    StepKind,
    Threadblock,
    chunk_counts,
)
from hespas.schedule.chakra_node import ParsedNode
from hespas.schedule.tasks import ComputeTask, ReceiveTask, SendTask

_NEEDED = ("tb_id", "local_time_step", "msg_chunk_cnt", "chunk_offset", "total_chunk_cnt")


class UnknownAlgorithmError(Exception):
    """The graphs don't say what they do; the message tells what is lacking."""


class _Found(NamedTuple):
    """A step, the nodes that it became, and all nodes that the first of them waits for."""

    step: Step
    nodes: tuple[int, ...]
    depends_on: tuple[int, ...]


def graph_algorithm(
    graphs: Sequence[Sequence[ParsedNode]], collective: Collective, *, name: str
) -> Algorithm:
    """Return the algorithm whose graphs these are.

    Without notes on buffers, all chunks are taken to be of one buffer, in place. Raises
    `UnknownAlgorithmError` where notes are lacking or contradict the graph: chunks, threadblocks,
    and the order of steps in them.
    """
    notes = [node.notes for nodes in graphs for node in nodes if node.notes]
    counts = {note.get("total_chunk_cnt") for note in notes}
    total = counts.pop() if len(counts) == 1 else None
    if not isinstance(total, int):
        raise UnknownAlgorithmError("they don't say into how many chunks the buffer is cut")
    _check_sizes(graphs)
    ranks = tuple([_Rank(rank, nodes, collective).rank() for rank, nodes in enumerate(graphs)])
    inputs, outputs = chunk_counts(collective, len(graphs), total)
    return Algorithm(
        name=name,
        collective=collective,
        input_chunks=inputs,
        output_chunks=outputs,
        is_in_place=all(note.get("inplace", 1) == 1 for note in notes),
        ranks=ranks,
    )


def _check_sizes(graphs: Sequence[Sequence[ParsedNode]]) -> None:
    """Raise unless every message has the same number of bytes per chunk."""
    ratios: set[tuple[int, int]] = set()
    for nodes in graphs:
        for node in nodes:
            if isinstance(node.task, SendTask | ReceiveTask):
                count = node.notes.get("msg_chunk_cnt")
                if not isinstance(count, int) or count < 1:
                    text = f"node {node.task.id} doesn't say how many chunks it moves"
                    raise UnknownAlgorithmError(text)
                ratios.add(divmod(node.task.size_bytes, count))
    if len(ratios) > 1:
        raise UnknownAlgorithmError("the bytes of messages don't fit their numbers of chunks")


@dataclass(frozen=True, slots=True)
class _Rank:
    number: int
    nodes: Sequence[ParsedNode]
    collective: Collective

    def rank(self) -> Rank:
        found = self._steps()
        step_of = {
            node: (block, index)
            for block, steps in found.items()
            for index, one in enumerate(steps)
            for node in one.nodes
        }
        others = {
            block: [self._others(steps, index, block, step_of) for index in range(len(steps))]
            for block, steps in found.items()
        }
        # A step that waits for several others has nops before it, which shifts what follows.
        new_index = {
            (block, index): index + sum(max(0, len(one) - 1) for one in waits[: index + 1])
            for block, waits in others.items()
            for index in range(len(waits))
        }
        blocks = [
            self._threadblock(block, found[block], others[block], new_index) for block in found
        ]
        used = [
            place.offset + step.count
            for block in blocks
            for step in block.steps
            for place in (step.source, step.target)
            if place.buffer is Buffer.SCRATCH
        ]
        return Rank(scratch_chunks=max(used, default=0), threadblocks=tuple(blocks))

    def _steps(self) -> dict[int, list[_Found]]:
        """Return the steps of every threadblock in their order."""
        parts: dict[tuple[int, int], list[ParsedNode]] = {}
        owner: dict[int, tuple[int, int]] = {}
        for node in self.nodes:
            at = self._at(node, owner)
            owner[node.task.id] = at
            parts.setdefault(at, []).append(node)
        found: dict[int, list[_Found]] = {}
        for (block, _), nodes in sorted(parts.items()):
            found.setdefault(block, []).extend(self._found(nodes))
        return found

    def _at(self, node: ParsedNode, owner: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
        block, step = (node.notes.get(name) for name in _NEEDED[:2])
        if isinstance(block, int) and isinstance(step, int):
            return block, step
        before = node.task.depends_on
        is_adding = isinstance(node.task, ComputeTask) and len(before) == 1
        by_id = {other.task.id: other for other in self.nodes}
        if is_adding and before[0] in owner and by_id[before[0]].notes.get("is_rrc"):
            return owner[before[0]]  # the addition of a receive-reduce-copy
        text = f"rank {self.number}: node {node.task.id} doesn't say which step it is of"
        raise UnknownAlgorithmError(text)

    def _found(self, nodes: list[ParsedNode]) -> list[_Found]:
        """Return the step that some nodes are; without its kind, one for each transfer."""
        numbers = tuple([node.task.id for node in nodes])
        told = nodes[0].notes.get("step_type")
        if isinstance(told, str):
            step = self._step(nodes[0], StepKind(told))
            return [_Found(step, numbers, nodes[0].task.depends_on)]
        found: list[_Found] = []
        for node in nodes:
            match node.task:
                case SendTask():
                    kind = StepKind.SEND
                case ReceiveTask():
                    is_rrc = bool(node.notes.get("is_rrc"))
                    kind = StepKind.RECEIVE_REDUCE_COPY if is_rrc else StepKind.RECEIVE
                case _:
                    last = found[-1]
                    found[-1] = last._replace(nodes=(*last.nodes, node.task.id))
                    continue
            found.append(_Found(self._step(node, kind), (node.task.id,), node.task.depends_on))
        return found

    def _step(self, node: ParsedNode, kind: StepKind) -> Step:
        return Step(
            kind=kind,
            source=self._place(node, "src"),
            target=self._place(node, "dst"),
            count=self._integer(node, "msg_chunk_cnt"),
        )

    def _place(self, node: ParsedNode, end: str) -> Place:
        buffer = node.notes.get(f"{end}buf")
        if isinstance(buffer, str):
            return Place(Buffer(buffer), self._integer(node, f"{end}off"))
        in_input = self.collective is Collective.REDUCE_SCATTER
        whole = Buffer.INPUT if in_input else Buffer.OUTPUT
        return Place(whole, self._integer(node, "chunk_offset"))

    def _integer(self, node: ParsedNode, name: str) -> int:
        value = node.notes.get(name)
        if not isinstance(value, int):
            raise UnknownAlgorithmError(f"rank {self.number}: node {node.task.id} lacks {name}")
        return value

    def _others(
        self,
        steps: list[_Found],
        index: int,
        block: int,
        step_of: Mapping[int, tuple[int, int]],
    ) -> list[tuple[int, int]]:
        """Return the steps of other threadblocks that a step waits for."""
        waits = [step_of[node] for node in steps[index].depends_on]
        if index and (block, index - 1) not in waits:
            first = steps[index].nodes[0]
            text = f"rank {self.number}: node {first} doesn't follow its threadblock's last step"
            raise UnknownAlgorithmError(text)
        return [at for at in dict.fromkeys(waits) if at[0] != block]

    def _threadblock(
        self,
        block: int,
        found: list[_Found],
        others: list[list[tuple[int, int]]],
        new_index: Mapping[tuple[int, int], int],
    ) -> Threadblock:
        by_id = {node.task.id: node for node in self.nodes}
        transfers = [by_id[number] for one in found for number in one.nodes]
        sends = {node.peer for node in transfers if isinstance(node.task, SendTask)}
        receives = {node.peer for node in transfers if isinstance(node.task, ReceiveTask)}
        tags = {
            node.task.tag for node in transfers if isinstance(node.task, SendTask | ReceiveTask)
        }
        if max(len(sends), len(receives), len(tags)) > 1:
            text = f"rank {self.number}: threadblock {block} has several peers or tags"
            raise UnknownAlgorithmError(text)
        steps: list[Step] = []
        for one, waits in zip(found, others, strict=True):
            ids = [StepId(other, new_index[other, index]) for other, index in waits]
            nowhere = Place(Buffer.INPUT, 0)
            steps += [
                Step(kind=StepKind.NOP, source=nowhere, target=nowhere, count=0, after=after)
                for after in ids[:-1]
            ]
            last = ids[-1] if ids else None
            steps.append(
                Step(
                    kind=one.step.kind,
                    source=one.step.source,
                    target=one.step.target,
                    count=one.step.count,
                    after=last,
                )
            )
        return Threadblock(
            id=block,
            send_peer=next(iter(sends), None),
            receive_peer=next(iter(receives), None),
            channel=next(iter(tags), 0),
            steps=tuple(steps),
        )
