"""Connection matrices: a flow for each message, and triggers that start flows when others end.

A flow waits for at most one trigger, and fires at most one when it has been sent. What a rank does
next waits for its exchange, so that the flows of all ranks that exchange with each other fire one
barrier, for which all that these ranks do next waits: rounds of a group start together. htsim
aborts where a trigger fires for which nothing waits, so that none is written. A trigger fires
without delay, so that no flow can wait for computation. Where all ranks compute for as long between
their messages, all flows would start later alike: that time is counted beside the matrix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hespas.backends.rank_programs import Action, Exchange, Place, Wait, matched
from hespas.errors import SimulationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A message: it starts when ``waits_for`` fires, or at once, and counts for ``fires``.

    None stands for no trigger.
    """

    source: int
    target: int
    size_bytes: int
    waits_for: int | None
    fires: int | None


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
    sent = list(matched(ranks))
    barrier_of = _barriers(sent)

    def before(place: Place) -> Place | None:
        rank, number = place
        return barrier_of[rank, number - 1] if number else None

    awaited = dict.fromkeys([before(source) for source, _, _ in sent])
    order = {barrier: n for n, barrier in enumerate([b for b in awaited if b is not None], 1)}
    flows = tuple(
        [
            Flow(
                source=source[0],
                target=target[0],
                size_bytes=size_bytes,
                waits_for=order[barrier] if (barrier := before(source)) is not None else None,
                fires=order.get(barrier_of[source]),
            )
            for source, target, size_bytes in sent
        ]
    )
    fired = Counter(flow.fires for flow in flows)
    return Matrix(
        nodes=len(ranks),
        flows=flows,
        counts=tuple([fired[number] for number in order.values()]),
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
    lines = [f"Nodes {matrix.nodes}", f"Connections {len(matrix.flows)}"]
    if matrix.counts:
        lines.append(f"Triggers {len(matrix.counts)}")
    for number, flow in enumerate(matrix.flows, start=1):
        start = "start 0" if flow.waits_for is None else f"trigger {flow.waits_for}"
        fires = "" if flow.fires is None else f" send_done_trigger {flow.fires}"
        message = f"{flow.source}->{flow.target} id {number}"
        lines.append(f"{message} {start} size {flow.size_bytes}{fires}")
    for number, count in enumerate(matrix.counts, start=1):
        lines.append(f"trigger id {number} barrier count {count}")
    return "\n".join(lines) + "\n"
