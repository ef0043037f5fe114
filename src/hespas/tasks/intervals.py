"""Intervals of time in integer ps, as (start, end)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

Interval = tuple[int, int]


def covered_ps(intervals: Iterable[Interval]) -> int:
    """Return the length of the union of intervals.

    >>> covered_ps([(0, 5), (3, 8), (10, 11)])
    9
    """
    return sum(end - start for start, end in union(intervals))


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as disjoint ones, in order.

    >>> union([(3, 8), (0, 5), (10, 11), (8, 9)])
    [(0, 9), (10, 11)]
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def exposed_parts(
    hiding: Sequence[Interval], intervals: Iterable[Interval]
) -> list[list[Interval]]:
    """Return the parts of each interval that none of ``hiding`` (disjoint, in order) covers.

    >>> exposed_parts([(2, 4), (6, 7)], [(0, 8)])
    [[(0, 2), (4, 6), (7, 8)]]
    """
    ends = list(accumulate((end for _, end in hiding), max))
    return [_uncovered(hiding, bisect_right(ends, span[0]), span) for span in intervals]


def _uncovered(hiding: Sequence[Interval], first: int, span: Interval) -> list[Interval]:
    parts: list[Interval] = []
    at, end = span
    for number in range(first, len(hiding)):
        start, stop = hiding[number]
        if start >= end:
            break
        if start > at:
            parts.append((at, start))
        at = max(at, stop)
    if at < end:
        parts.append((at, end))
    return parts
