"""Whether graphs of sends and receives, one per rank, end, and who learns of whom.

Graphs that don't say which chunks they move can't be run on symbols. What can be told of any:
that every send has its receive, that nobody waits for ever, and that what a rank ends with
can hold something of every rank that it must.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hespas.collectives.algorithm import Collective
from hespas.collectives.values import ranks_text
from hespas.errors import AlgorithmError
from hespas.schedule.chakra_node import ParsedNode
from hespas.schedule.tasks import ReceiveTask, SendTask

_Key = tuple[int, int, int, int]
"""Tag, source, target and size: what a receive must share with its send."""


def check_graphs(
    graphs: Sequence[Sequence[ParsedNode]], collective: Collective, *, root: int = 0
) -> None:
    """Raise `AlgorithmError`, naming rank and node, for graphs that can't do a collective.

    A message that is never received, a receive that waits for ever, peers that are not there;
    and a rank that never hears, not even through others, of one whose data it must have.
    """
    run = _Run([_Rank({node.task.id: node for node in nodes}) for nodes in graphs])
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
        lacking = needed & ~(state.known | 1 << rank)
        if lacking:
            raise AlgorithmError(
                f"nothing of {ranks_text(lacking)} ever comes", location=f"rank {rank}"
            )


@dataclass(slots=True)
class _Rank:
    """One rank's nodes; of those that ended, the ranks whose data they may hold."""

    nodes: dict[int, ParsedNode]
    ended: dict[int, int] = field(default_factory=dict[int, int])
    known: int = 0


@dataclass(slots=True)
class _Run:
    ranks: list[_Rank]
    under_way: dict[_Key, deque[tuple[int, int]]] = field(
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

    def _end(self, rank: int, state: _Rank, node: ParsedNode) -> bool:
        """End a node if it can, and return whether it could."""
        task = node.task
        if not state.ended.keys() >= set(task.depends_on):
            return False
        known = 1 << rank
        for dependency in task.depends_on:
            known |= state.ended[dependency]
        match task:
            case SendTask():
                key = (task.tag, rank, self._peer(rank, node), task.size_bytes)
                self.under_way.setdefault(key, deque()).append((task.id, known))
            case ReceiveTask():
                key = (task.tag, self._peer(rank, node), rank, task.size_bytes)
                if not self.under_way.get(key):
                    return False
                known |= self.under_way[key].popleft()[1]
            case _:
                pass
        state.ended[task.id] = known
        state.known |= known
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
        for (_, source, target, _), messages in self.under_way.items():
            if messages:
                node = self.ranks[source].nodes[messages[0][0]]
                message = f"sends a message that rank {target} never receives"
                raise AlgorithmError(message, location=_node_text(source, node))


def _node_text(rank: int, node: ParsedNode) -> str:
    return f"rank {rank}: node {node.task.id} ({node.task.name})"
