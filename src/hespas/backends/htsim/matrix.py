"""Connection matrices: a flow for each message, and triggers that start flows when others end.

A flow fires one trigger when it has been sent, and waits for one. What a rank does next waits for
its exchange, so that the flows of all ranks that exchange with each other fire one barrier, for
which all that these ranks do next waits: rounds of a group start together. A trigger fires without
delay, so that no flow can wait for computation. Where all ranks compute for as long between their
messages, all flows would start later alike: that time is counted beside the matrix.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hespas.backends.rank_programs import Action, Exchange, Wait
from hespas.errors import SimulationError

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

    ``computation_ps`` is what every rank computes between its messages.
    """

    nodes: int
    flows: tuple[Flow, ...]
    counts: tuple[int, ...]
    computation_ps: int


def connection_matrix(ranks: Sequence[Sequence[Action]]) -> Matrix:
    """Return the matrix of what ranks do.

    Raises `SimulationError` for messages that are sent and never received, or the reverse, and for
    ranks that compute at different times.
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
        computation_ps=_computation_ps(ranks),
    )


def _computation_ps(ranks: Sequence[Sequence[Action]]) -> int:
    """Return what every rank computes; `SimulationError` where they differ."""
    runs = [_runs_ps(actions) for actions in ranks]
    other = next((rank for rank, own in enumerate(runs) if own != runs[0]), None)
    if other is not None:
        raise SimulationError(
            f"device {other} computes at other times than device 0, which no trigger says",
            hint="use a back end that plays computation: --backend sst, or hespas",
        )
    return sum(runs[0]) if runs else 0


def _runs_ps(actions: Sequence[Action]) -> list[int]:
    """Return what a rank computes before its first messages, between them, and after its last."""
    runs = [0]
    for before, action in pairwise([None, *actions]):
        if isinstance(action, Wait):
            if isinstance(before, Exchange):
                runs.append(0)
            runs[-1] += action.duration_ps
    return runs


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
