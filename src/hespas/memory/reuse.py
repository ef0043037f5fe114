"""Temporaries in the memory of outputs, while that is not in use.

Source: XLA's buffer assignment, which places buffers by size, the largest first, each into the
smallest allocation made before that is large enough and free while the buffer is needed; what
fits in none shares one allocation of temporaries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hespas.memory.buffers import Buffer


@dataclass(slots=True, kw_only=True)
class Lease:
    """The memory of one output, and the moments, first and last, between which it is in use."""

    size_bytes: int
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def is_free(self, first: int, last: int) -> bool:
        """Tell whether nothing is in it from one moment to another, both counted."""
        for start, end in self.spans:  # noqa: SIM110 - a generator takes twice as long
            if start <= last and first <= end:
                return False
        return True


def without_reused(temporaries: Iterable[Buffer], outputs: Sequence[Lease]) -> list[Buffer]:
    """Return the temporaries that fit into the memory of no output; leases take the others."""
    leases = sorted(outputs, key=lambda lease: lease.size_bytes)
    sizes = [lease.size_bytes for lease in leases]
    left: list[Buffer] = []
    for buffer in sorted(temporaries, key=lambda each: -each.size_bytes):
        first, last = buffer.made_at, buffer.held_until
        large_enough = leases[bisect_left(sizes, buffer.size_bytes) :]
        lease = next((each for each in large_enough if each.is_free(first, last)), None)
        if lease is None:
            left.append(buffer)
        else:
            lease.spans.append((first, last))
    return left
