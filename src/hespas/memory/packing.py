"""How much memory temporaries take once each has its place: gaps between them included.

Source: XLA's heap for known schedules. Buffers are placed one after another, the largest first or
the longest-lived first, whichever takes less in the end; each goes into the smallest gap that
buffers alive at the same time leave, or behind them all. Of very many, the small ones are taken to
fit into gaps.
"""

from __future__ import annotations

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
    least = _heap_bytes(by_size)
    return min(least, _heap_bytes(by_life, enough_bytes=least))


def _aligned(span: Span) -> Span:
    size_bytes = -(-span.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return Span(size_bytes=size_bytes, first=span.first, last=span.last)


def _heap_bytes(spans: Sequence[Span], *, enough_bytes: int | None = None) -> int:
    """Return what the spans take placed in this order, or something above ``enough_bytes``."""
    busy: list[list[tuple[int, int]]] = [[] for _ in spans]
    top = 0
    for number, (span, later) in enumerate(zip(spans, _overlapping_later(spans), strict=True)):
        start = _smallest_gap(sorted(busy[number]), span.size_bytes)
        location = start, start + span.size_bytes
        for other in later:
            busy[other].append(location)
        top = max(top, location[1])
        if enough_bytes is not None and top > enough_bytes:
            break
    return top


def _overlapping_later(spans: Sequence[Span]) -> list[list[int]]:
    """Return for each span the numbers of those behind it that are alive at the same time."""
    later: list[list[int]] = [[] for _ in spans]
    lasts = [span.last for span in spans]
    alive: list[int] = []
    for number in sorted(range(len(spans)), key=lambda number: spans[number].first):
        first = spans[number].first
        alive = [each for each in alive if lasts[each] >= first]
        for each in alive:
            if each < number:
                later[each].append(number)
            else:
                later[number].append(each)
        alive.append(number)
    return later


def _smallest_gap(busy: Sequence[tuple[int, int]], size_bytes: int) -> int:
    """Return where the smallest gap begins that is large enough, or the end of what is busy."""
    smallest: tuple[int, int] | None = None
    at = 0
    for start, end in busy:
        gap = start - at
        if gap >= size_bytes and (smallest is None or gap < smallest[0]):
            smallest = (gap, at)
        if end > at:  # noqa: PLR1730 - max() takes three times as long
            at = end
    return at if smallest is None else smallest[1]
