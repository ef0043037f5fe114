"""Temporaries in the memory of outputs, while that is not in use.

Source: XLA's buffer assignment, which places buffers by size, the largest first, each into the
smallest allocation made before that is large enough and free while the buffer is needed; what
fits in none shares one allocation of temporaries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hespas.memory.buffers import THROUGHOUT, Buffer


@dataclass(slots=True, kw_only=True)
class Lease:
    """The memory of one output, and the moments at which it is in use: a bit for each."""

    size_bytes: int
    used: int = 0

    def take(self, first: int, last: int) -> None:
        """Use it from one moment to another, both counted."""
        self.used |= _bits(first, last)


def without_reused(temporaries: Iterable[Buffer], outputs: Sequence[Lease]) -> list[Buffer]:
    """Return the temporaries that fit into the memory of no output; leases take the others."""
    leases = sorted(outputs, key=lambda lease: lease.size_bytes)
    sizes = [lease.size_bytes for lease in leases]
    left: list[Buffer] = []
    for buffer in sorted(temporaries, key=lambda each: -each.size_bytes):
        wanted = _bits(buffer.made_at, buffer.held_until)
        large_enough = leases[bisect_left(sizes, buffer.size_bytes) :]
        lease = next((each for each in large_enough if not each.used & wanted), None)
        if lease is None:
            left.append(buffer)
        else:
            lease.used |= wanted
    return left


def _bits(first: int, last: int) -> int:
    """Return the bits of moments from one to another; that of `THROUGHOUT` is the lowest."""
    return (1 << (last - THROUGHOUT + 1)) - (1 << (first - THROUGHOUT))
