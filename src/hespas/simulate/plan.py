"""How a collective is cut: into chunks, and each chunk's way into phases.

Source: ASTRA-sim's system layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from hespas.errors import SimulationError
from hespas.hardware.system import CollectiveKind, System
from hespas.simulate.algorithms import Algorithm, output_bytes

_AR, _AG = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER
_RS = CollectiveKind.REDUCE_SCATTER


class PhaseRing(NamedTuple):
    """A ring that a phase runs along, and the dimension whose queues it takes."""

    algorithm: Algorithm
    members: int
    dimension: int


@dataclass(frozen=True, slots=True)
class Phase:
    """What a chunk does along one ring, ``size_bytes`` at its start.

    ``queues`` are those that chunks wait in, in turn. A ring turns backwards for the queues that
    aren't ``lower_queues``.
    """

    ring: int
    kind: CollectiveKind
    size_bytes: int
    queues: range
    lower_queues: range

    def queue(self, turn: int) -> int:
        """Return the queue that a chunk takes when it is its turn."""
        return self.queues[turn % len(self.queues)]

    def direction(self, turn: int) -> int:
        """Return 1, or -1 for a ring that turns backwards."""
        return 1 if self.queue(turn) in self.lower_queues else -1


def chunks_of(system: System, kind: CollectiveKind, size_bytes: int) -> tuple[int, int]:
    """Return how many chunks a collective is cut into, and the bytes of each.

    Raises `SimulationError` for fewer bytes than chunks.
    """
    splits = system.preferred_dataset_splits
    chunk_bytes = size_bytes // splits
    if kind is not _AG and chunk_bytes < system.device_count:
        chunk_bytes = system.device_count
        size_bytes = splits * chunk_bytes
    if chunk_bytes == 0:
        raise SimulationError(f"{size_bytes} bytes can't be cut into {splits} chunks")
    # A rest makes one chunk more, of full size.
    return ceil(size_bytes / chunk_bytes), chunk_bytes


def phases_of(
    system: System,
    kind: CollectiveKind,
    size_bytes: int,
    rings: Sequence[PhaseRing],
    queues: int,
) -> Iterator[Phase]:
    """Yield what a chunk does along rings, in order."""
    for index, phase in _phase_kinds(system, kind, len(rings)):
        algorithm, members, dimension = rings[index]
        pool = _queue_pool(system, kind, dimension, phase, queues)
        first = dimension * queues
        lower = range(first, first + max(1, queues // 2))
        if queues == 1 and phase is _AG and kind is _AR:
            lower = range(0)
        yield Phase(index, phase, size_bytes, pool, lower)
        is_tree = algorithm is Algorithm.DOUBLE_BINARY_TREE
        # A tree reduces everything, whatever it is used for.
        size_bytes = output_bytes(_AR if is_tree else phase, members, size_bytes)


def _phase_kinds(
    system: System, kind: CollectiveKind, rings: int
) -> Sequence[tuple[int, CollectiveKind]]:
    ascending = range(rings)
    if kind is _AG:
        return [(ring, kind) for ring in reversed(ascending)]
    if kind is not _AR or system.collective_optimization == "baseline":
        return [(ring, kind) for ring in ascending]
    *inner, last = ascending
    down = [(ring, _RS) for ring in inner]
    up = [(ring, _AG) for ring in reversed(inner)]
    return [*down, (last, _AR), *up]


def _queue_pool(
    system: System, kind: CollectiveKind, dimension: int, phase: CollectiveKind, queues: int
) -> range:
    """Return the queues that the chunks of a phase take in turn."""
    first = dimension * queues
    is_cut = kind is _AR and system.collective_optimization != "baseline"
    if not is_cut or queues == 1:
        return range(first, first + queues)
    half = first + queues // 2
    return range(half, first + queues) if phase is _AG else range(first, half)
