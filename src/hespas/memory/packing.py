"""How much memory temporaries take once each has its place: gaps between them included.

Source: XLA's heap for known schedules. Buffers are placed one after another, the largest first or
the longest-lived first, whichever takes less in the end; each goes into the smallest gap that
buffers alive at the same time leave, or behind them all. Of very many, the small ones are taken to
fit into gaps.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ALIGNMENT_BYTES = 128
"""Where a GPU's buffers may begin."""

MOST_PLACED = 3000
"""So many buffers are placed, the largest; the time that takes grows with the square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A buffer that needs a place from one moment to another, both counted."""

    size_bytes: int
    first: int
    last: int


def packed_bytes(spans: Iterable[Span]) -> int:
    """Return the size of the memory that holds all buffers.

    >>> early, late = Span(size_bytes=256, first=0, last=4), Span(size_bytes=256, first=5, last=9)
    >>> packed_bytes([early, late, Span(size_bytes=100, first=3, last=6)])
    384
    """
    aligned = [_aligned(span) for span in spans if span.size_bytes]
    by_size = sorted(aligned, key=lambda span: -span.size_bytes)[:MOST_PLACED]
    by_life = sorted(by_size, key=lambda span: span.first - span.last)
    return min(_heap_bytes(by_size), _heap_bytes(by_life))


def _aligned(span: Span) -> Span:
    size_bytes = -(-span.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return Span(size_bytes=size_bytes, first=span.first, last=span.last)


def _heap_bytes(spans: Sequence[Span]) -> int:
    placed: list[tuple[int, int, int, int]] = []
    top = 0
    for span in spans:
        first, last = span.first, span.last
        busy = [
            (start, end) for start, end, begin, finish in placed
            if begin <= last and first <= finish
        ]  # fmt: skip
        start = _smallest_gap(busy, span.size_bytes)
        end = start + span.size_bytes
        insort(placed, (start, end, first, last))
        top = max(top, end)
    return top


def _smallest_gap(busy: Sequence[tuple[int, int]], size_bytes: int) -> int:
    """Return where the smallest gap begins that is large enough, or the end of what is busy."""
    smallest: tuple[int, int] | None = None
    at = 0
    for start, end in busy:
        gap = start - at
        if gap >= size_bytes and (smallest is None or gap < smallest[0]):
            smallest = (gap, at)
        at = max(at, end)
    return at if smallest is None else smallest[1]
