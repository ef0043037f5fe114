"""Whether graphs of sends and receives, one per rank, compute their collective.

Where their notes say which chunks they move, the program that they came from is restored and
verified. Of other graphs it can be checked that every send has its receive, that no rank waits
for ever, and that what a rank ends with can hold something of every rank that it must.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
)
from hespas.collectives.schedule import Collective
from hespas.collectives.verify import Verified, verify
from hespas.errors import AlgorithmError
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
    graphs: Sequence[Sequence[ParsedNode]], collective: Collective, *, name: str
) -> GraphsVerified:
    """Verify graphs, one per rank, that are to do a collective, as far as their notes allow.

    Raises `AlgorithmError` for what is wrong: see
    `hespas.collectives.chakra_verify.check_graphs` and `hespas.collectives.verify.verify`.
    """
    check_graphs(graphs, collective)
    try:
        program = graph_program(graphs, collective, name=name)
    except UnknownProgramError as error:
        return GraphsVerified(verified=None, unknown=str(error))
    return GraphsVerified(verified=verify(program))


_Key = tuple[int, int, int, int]
"""Tag, source, target and size: what a receive must share with its send."""


def check_graphs(
    graphs: Sequence[Sequence[ParsedNode]], collective: Collective, *, root: int = 0
) -> None:
    """Raise `AlgorithmError`, naming rank and node, for graphs that can't do a collective.

    A message that is never received, a receive that waits for ever, peers that are not there;
    and a rank that never hears, not even through others, of one whose data it must have.
    """
    run = _Run([_RankState({node.task.id: node for node in nodes}) for nodes in graphs])
    run.run()
    run.check_ended()
    everyone = (1 << len(graphs)) - 1
    for rank, state in enumerate(run.ranks):
        match collective:
            case Collective.CUSTOM:
                needed = 0
            case Collective.BROADCAST | Collective.SCATTER:
                needed = 1 << root
            case Collective.REDUCE | Collective.GATHER:
                needed = everyone if rank == root else 0
            case _:
                needed = everyone
        lacking = needed & ~(state.heard_of | 1 << rank)
        if lacking:
            raise AlgorithmError(
                f"nothing of {ranks_text(lacking)} ever comes", location=f"rank {rank}"
            )


@dataclass(slots=True)
class _RankState:
    """One rank's nodes; of those that ended, the ranks whose data they may hold."""

    nodes: dict[int, ParsedNode]
    ended: dict[int, int] = field(default_factory=dict[int, int])
    heard_of: int = 0


@dataclass(slots=True)
class _Run:
    ranks: list[_RankState]
    in_flight: dict[_Key, deque[tuple[int, int]]] = field(
        default_factory=dict[_Key, deque[tuple[int, int]]]
    )

    def run(self) -> None:
        has_moved = True
        while has_moved:
            has_moved = False
            for rank, state in enumerate(self.ranks):
                for number, node in state.nodes.items():
                    if number not in state.ended and self._end(rank, state, node):
                        has_moved = True

    def _end(self, rank: int, state: _RankState, node: ParsedNode) -> bool:
        """End a node if it can, and return whether it could."""
        task = node.task
        if not state.ended.keys() >= set(task.depends_on):
            return False
        heard_of = 1 << rank
        for dependency in task.depends_on:
            heard_of |= state.ended[dependency]
        match task:
            case SendTask():
                key = (task.tag, rank, self._peer(rank, node), task.size_bytes)
                self.in_flight.setdefault(key, deque()).append((task.id, heard_of))
            case ReceiveTask():
                key = (task.tag, self._peer(rank, node), rank, task.size_bytes)
                if not self.in_flight.get(key):
                    return False
                heard_of |= self.in_flight[key].popleft()[1]
            case _:
                pass
        state.ended[task.id] = heard_of
        state.heard_of |= heard_of
        return True

    def _peer(self, rank: int, node: ParsedNode) -> int:
        if node.peer == rank or node.peer >= len(self.ranks):
            message = f"the peer {node.peer} is not another one of {len(self.ranks)} ranks"
            raise AlgorithmError(message, location=_node_text(rank, node))
        return node.peer

    def check_ended(self) -> None:
        for rank, state in enumerate(self.ranks):
            for number, node in state.nodes.items():
                waits = number not in state.ended
                if waits and state.ended.keys() >= set(node.task.depends_on):
                    message = (
                        f"waits for ever for a message of rank {node.peer}, of this tag and size"
                    )
                    raise AlgorithmError(message, location=_node_text(rank, node))
        for (_, source, target, _), messages in self.in_flight.items():
            if messages:
                node = self.ranks[source].nodes[messages[0][0]]
                message = f"sends a message that rank {target} never receives"
                raise AlgorithmError(message, location=_node_text(source, node))


def _node_text(rank: int, node: ParsedNode) -> str:
    return f"rank {rank}: node {node.task.id} ({node.task.name})"


_NEEDED = ("tb_id", "local_time_step", "msg_chunk_cnt", "chunk_offset", "total_chunk_cnt")


class UnknownProgramError(Exception):
    """The graphs don't say what they do; the message names what is lacking."""


class _FoundStep(NamedTuple):
    """A step, the nodes that it became, and all nodes that the first of them waits for."""

    step: Step
    nodes: tuple[int, ...]
    depends_on: tuple[int, ...]


def graph_program(
    graphs: Sequence[Sequence[ParsedNode]], collective: Collective, *, name: str
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
    ranks = tuple(
        [_RankReader(rank, nodes, collective).rank() for rank, nodes in enumerate(graphs)]
    )
    inputs, outputs = chunk_counts(collective, len(graphs), total)
    return Program(
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
                    raise UnknownProgramError(text)
                ratios.add(divmod(node.task.size_bytes, count))
    if len(ratios) > 1:
        raise UnknownProgramError("the bytes of messages don't fit their numbers of chunks")


@dataclass(frozen=True, slots=True)
class _RankReader:
    number: int
    nodes: Sequence[ParsedNode]
    collective: Collective

    def rank(self) -> Rank:
        found_steps = self._steps()
        step_of = {
            node: (block, index)
            for block, steps in found_steps.items()
            for index, one in enumerate(steps)
            for node in one.nodes
        }
        others = {
            block: [self._others(steps, index, block, step_of) for index in range(len(steps))]
            for block, steps in found_steps.items()
        }
        # A step that waits for several others has nops before it, which shifts what follows.
        new_index = {
            (block, index): index + sum(max(0, len(one) - 1) for one in waits[: index + 1])
            for block, waits in others.items()
            for index in range(len(waits))
        }
        blocks = [
            self._threadblock(block, found_steps[block], others[block], new_index)
            for block in found_steps
        ]
        used = [
            place.offset + step.count
            for block in blocks
            for step in block.steps
            for place in (step.source, step.target)
            if place.buffer is Buffer.SCRATCH
        ]
        return Rank(scratch_chunks=max(used, default=0), threadblocks=tuple(blocks))

    def _steps(self) -> dict[int, list[_FoundStep]]:
        """Return the steps of every threadblock in their order."""
        parts: dict[tuple[int, int], list[ParsedNode]] = {}
        owner: dict[int, tuple[int, int]] = {}
        for node in self.nodes:
            at = self._at(node, owner)
            owner[node.task.id] = at
            parts.setdefault(at, []).append(node)
        found_steps: dict[int, list[_FoundStep]] = {}
        for (block, _), nodes in sorted(parts.items()):
            found_steps.setdefault(block, []).extend(self._found(nodes))
        return found_steps

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
        raise UnknownProgramError(text)

    def _kind(self, node: ParsedNode, name: str) -> StepKind:
        kind = next((each for each in StepKind if each.value == name), None)
        if kind is None:
            text = f"rank {self.number}: node {node.task.id}: step_type is {name!r}"
            raise UnknownProgramError(text)
        return kind

    def _found(self, nodes: list[ParsedNode]) -> list[_FoundStep]:
        """Return the step that some nodes are; without its kind, one for each transfer."""
        numbers = tuple([node.task.id for node in nodes])
        kind_name = nodes[0].notes.get("step_type")
        if isinstance(kind_name, str):
            step = self._step(nodes[0], self._kind(nodes[0], kind_name))
            return [_FoundStep(step, numbers, nodes[0].task.depends_on)]
        found_steps: list[_FoundStep] = []
        for node in nodes:
            match node.task:
                case SendTask():
                    kind = StepKind.SEND
                case ReceiveTask():
                    is_rrc = bool(node.notes.get("is_rrc"))
                    kind = StepKind.RECEIVE_REDUCE_COPY if is_rrc else StepKind.RECEIVE
                case _:
                    last = found_steps[-1]
                    found_steps[-1] = last._replace(nodes=(*last.nodes, node.task.id))
                    continue
            found_steps.append(
                _FoundStep(self._step(node, kind), (node.task.id,), node.task.depends_on)
            )
        return found_steps

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
            if buffer not in {each.value for each in Buffer}:
                text = f"rank {self.number}: node {node.task.id}: {end}buf is {buffer!r}"
                raise UnknownProgramError(text)
            return Place(Buffer(buffer), self._integer(node, f"{end}off"))
        in_input = self.collective is Collective.REDUCE_SCATTER
        whole = Buffer.INPUT if in_input else Buffer.OUTPUT
        return Place(whole, self._integer(node, "chunk_offset"))

    def _integer(self, node: ParsedNode, name: str) -> int:
        value = node.notes.get(name)
        if not isinstance(value, int):
            raise UnknownProgramError(f"rank {self.number}: node {node.task.id} lacks {name}")
        return value

    def _others(
        self,
        steps: list[_FoundStep],
        index: int,
        block: int,
        step_of: Mapping[int, tuple[int, int]],
    ) -> list[tuple[int, int]]:
        """Return the steps of other threadblocks that a step waits for."""
        waits = [step_of[node] for node in steps[index].depends_on]
        if index and (block, index - 1) not in waits:
            first = steps[index].nodes[0]
            text = f"rank {self.number}: node {first} doesn't follow its threadblock's last step"
            raise UnknownProgramError(text)
        return [at for at in dict.fromkeys(waits) if at[0] != block]

    def _threadblock(
        self,
        block: int,
        found_steps: list[_FoundStep],
        others: list[list[tuple[int, int]]],
        new_index: Mapping[tuple[int, int], int],
    ) -> Threadblock:
        by_id = {node.task.id: node for node in self.nodes}
        transfers = [by_id[number] for one in found_steps for number in one.nodes]
        sends = {node.peer for node in transfers if isinstance(node.task, SendTask)}
        receives = {node.peer for node in transfers if isinstance(node.task, ReceiveTask)}
        tags = {
            node.task.tag for node in transfers if isinstance(node.task, SendTask | ReceiveTask)
        }
        if max(len(sends), len(receives), len(tags)) > 1:
            text = f"rank {self.number}: threadblock {block} has several peers or tags"
            raise UnknownProgramError(text)
        steps: list[Step] = []
        for one, waits in zip(found_steps, others, strict=True):
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
