"""Connection matrices: a flow for each message, and triggers that start flows when others end.

A flow fires one trigger when it has been sent, and waits for one. What a rank does next waits for
its exchange, so that the flows of all ranks that exchange with each other fire one barrier, for
which all that these ranks do next waits: rounds of a group start together. Computation has no
flows, and is left out.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hespas.backends.rank_programs import Action, Exchange, Wait
from hespas.errors import SimulationError
from hespas.units import PS_PER_S

Place = tuple[int, int]
"""A rank, and the number of its exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A message: it starts when ``waits_for`` fires, or at once, and counts for ``fires``."""

    source: int
    target: int
    size_bytes: int
    waits_for: int | None
    fires: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The flows of a job; trigger n, from 1, fires when ``counts[n - 1]`` flows have ended.

    ``left_out_s`` is the most computation that a rank has.
    """

    nodes: int
    flows: tuple[Flow, ...]
    counts: tuple[int, ...]
    left_out_s: float


def connection_matrix(ranks: Sequence[Sequence[Action]]) -> Matrix:
    """Return the matrix of what ranks do.

    Raises `SimulationError` for messages that are sent and never received, or the reverse.
    """
    exchanges = [[each for each in actions if isinstance(each, Exchange)] for actions in ranks]
    sent = list(_matched(exchanges))
    barrier_of = _barriers(sent)
    order = {
        barrier: number for number, barrier in enumerate(dict.fromkeys(barrier_of.values()), 1)
    }
    counts = [0] * len(order)
    flows: list[Flow] = []
    for source, target, size_bytes in sent:
        fires = order[barrier_of[source]]
        counts[fires - 1] += 1
        rank, number = source
        waits_for = order[barrier_of[rank, number - 1]] if number else None
        flows.append(
            Flow(
                source=rank,
                target=target[0],
                size_bytes=size_bytes,
                waits_for=waits_for,
                fires=fires,
            )
        )
    return Matrix(
        nodes=len(ranks),
        flows=tuple(flows),
        counts=tuple(counts),
        left_out_s=max(map(_computation_s, ranks), default=0.0),
    )


def _computation_s(actions: Sequence[Action]) -> float:
    return sum(each.duration_ps for each in actions if isinstance(each, Wait)) / PS_PER_S


def _matched(exchanges: Sequence[Sequence[Exchange]]) -> Iterator[tuple[Place, Place, int]]:
    """Yield each message with the exchanges that send and receive it."""
    waiting: dict[tuple[int, int, int], deque[tuple[Place, int]]] = defaultdict(deque)
    for rank, own in enumerate(exchanges):
        for number, exchange in enumerate(own):
            for each in exchange.receives:
                waiting[each.peer, rank, each.tag].append(((rank, number), each.size_bytes))
    for rank, own in enumerate(exchanges):
        for number, exchange in enumerate(own):
            for each in exchange.sends:
                expected = waiting[rank, each.peer, each.tag]
                if not expected or expected[0][1] != each.size_bytes:
                    raise SimulationError(
                        f"device {each.peer} never receives {each.size_bytes} bytes of {rank}"
                    )
                yield (rank, number), expected.popleft()[0], each.size_bytes
    for (source, target, _), left in waiting.items():
        if left:
            raise SimulationError(f"device {source} never sends what device {target} waits for")


def _barriers(sent: Sequence[tuple[Place, Place, int]]) -> dict[Place, Place]:
    """Return for each exchange the first one of those that it meets, directly or through others."""
    parent: dict[Place, Place] = {}

    def first(place: Place) -> Place:
        parent.setdefault(place, place)
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for source, target, _ in sent:
        low, high = sorted((first(source), first(target)))
        parent[high] = low
    return {place: first(place) for place in parent}


def matrix_text(matrix: Matrix) -> str:
    """Return the file that htsim reads."""
    lines = [
        f"Nodes {matrix.nodes}",
        f"Connections {len(matrix.flows)}",
        f"Triggers {len(matrix.counts)}",
    ]
    for number, flow in enumerate(matrix.flows, start=1):
        start = "start 0" if flow.waits_for is None else f"trigger {flow.waits_for}"
        lines.append(
            f"{flow.source}->{flow.target} id {number} {start} size {flow.size_bytes} "
            f"send_done_trigger {flow.fires}"
        )
    for number, count in enumerate(matrix.counts, start=1):
        lines.append(f"trigger id {number} barrier count {count}")
    return "\n".join(lines) + "\n"
