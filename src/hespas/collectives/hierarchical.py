"""Hierarchical collectives: along one dimension of the network after the other.

Source: Cho et al., "BlueConnect" (2019), and ASTRA-sim's ``localBWAware``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hespas.collectives.schedule import Collective

HIERARCHICAL = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
)
"""The collectives that can run along one dimension after the other."""


class DimensionPhase(NamedTuple):
    """A collective along one dimension, of ``size_bytes`` in each member's input."""

    dimension: int
    collective: Collective
    size_bytes: int


def phases(
    collective: Collective, sizes: Mapping[int, int], size_bytes: int
) -> Iterator[DimensionPhase]:
    """Yield the phases of a collective, given the members along each dimension, innermost first.

    An all-reduce scatters along all dimensions but the last, reduces along that, and gathers back.
    An all-gather begins with the outermost dimension, the others with the innermost.

    >>> for phase in phases(Collective.ALL_REDUCE, {0: 8, 1: 4}, 1000):
    ...     print(phase.dimension, phase.collective.name, phase.size_bytes)
    0 REDUCE_SCATTER 1000
    1 ALL_REDUCE 125
    0 ALL_GATHER 125
    """
    for dimension, phase in _order(collective, list(sizes)):
        yield DimensionPhase(dimension, phase, size_bytes)
        if phase is Collective.ALL_GATHER:
            size_bytes *= sizes[dimension]
        elif phase is Collective.REDUCE_SCATTER:
            size_bytes //= sizes[dimension]


def _order(collective: Collective, dimensions: list[int]) -> Iterator[tuple[int, Collective]]:
    if collective is not Collective.ALL_REDUCE:
        is_gather = collective is Collective.ALL_GATHER
        yield from ((one, collective) for one in dimensions[:: -1 if is_gather else 1])
        return
    *inner, last = dimensions
    yield from ((one, Collective.REDUCE_SCATTER) for one in inner)
    yield last, Collective.ALL_REDUCE
    yield from ((one, Collective.ALL_GATHER) for one in reversed(inner))
