"""Fit times by pieces of ``latency + size / bandwidth``.

A collective runs by one algorithm and protocol up to some size and by another beyond it, so that
its time is affine in the size piece by piece (C. Hockney's model, one per protocol). The pieces are
chosen by dynamic programming: least squares of relative errors, and a price for each piece.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil, floor, inf, log10, sqrt
from statistics import median

from hespas.base.frozen import frozen
from hespas.errors import MeasurementError

PRICE_OF_A_PIECE = 0.005
"""The squared error that another piece must remove: one point's 7 %."""

_MOST_FITS = 32

_FASTEST_BYTES_PER_S = 1e15
"""The rate of pieces that don't depend on the size at all."""


@frozen
class Point:
    """A measured time with its location."""

    size_bytes: int
    time_s: float
    location: str = ""


@frozen
class Piece:
    """A time of ``latency_s + size / bandwidth_bytes_per_s``.

    It holds up to ``up_to_bytes``, the last piece for any size.
    """

    up_to_bytes: int | None
    latency_s: float
    bandwidth_bytes_per_s: float

    def time_s(self, size_bytes: float) -> float:
        """Return the time of a size."""
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


@frozen
class _Affine:
    error: float
    latency_s: float
    s_per_byte: float


def fit(points: Iterable[Point], *, sizes_a_piece: int = 2) -> tuple[Piece, ...]:
    """Fit non-decreasing pieces, in order of size.

    A piece has two figures, so that it takes three sizes or more to err at all: ``sizes_a_piece``
    is the least number of sizes in each, if the points suffice. Raises `MeasurementError` for fewer
    than two sizes, and for times that are not positive.

    >>> line = [Point(size_bytes=2**n, time_s=10e-6 + 2**n / 1e11) for n in range(10, 28)]
    >>> [(piece.up_to_bytes, piece.bandwidth_bytes_per_s) for piece in fit(line)]
    [(None, 100000000000.0)]
    """
    line = _level(points)
    cuts = _cuts(line, min(sizes_a_piece, len(line)))
    pieces = [_piece(line[low:high]) for low, high in cuts]
    ends = [(line[high - 1].size_bytes, line[high].size_bytes) for _, high in cuts[:-1]]
    return _join_pieces(pieces, ends)


def time_s(pieces: Sequence[Piece], size_bytes: int) -> float:
    """Return the time that pieces give for a size."""
    limits = (
        piece for piece in pieces if piece.up_to_bytes is None or size_bytes <= piece.up_to_bytes
    )
    return next(limits).time_s(size_bytes)


def residuals(pieces: Sequence[Piece], points: Iterable[Point]) -> tuple[float, ...]:
    """Return the fit's relative errors by point."""
    return tuple(time_s(pieces, point.size_bytes) / point.time_s - 1 for point in points)


def left_out_errors(points: Sequence[Point], *, sizes_a_piece: int) -> tuple[float | None, ...]:
    """Return the points' relative errors under fits without their sizes.

    None if that leaves fewer than two sizes. Of many sizes, several are left out at a time.
    """
    sizes = sorted({point.size_bytes for point in points})
    if len(sizes) < 3:
        return (None,) * len(points)
    folds = min(len(sizes), _MOST_FITS)
    fitted: dict[int, tuple[Piece, ...]] = {}
    for fold in range(folds):
        left_out = set(sizes[fold::folds])
        remaining = [point for point in points if point.size_bytes not in left_out]
        fitted |= dict.fromkeys(left_out, fit(remaining, sizes_a_piece=sizes_a_piece))
    return tuple(
        time_s(fitted[point.size_bytes], point.size_bytes) / point.time_s - 1 for point in points
    )


def _level(points: Iterable[Point]) -> list[Point]:
    """Return the median time of each size, without dips."""
    by_size: dict[int, list[float]] = defaultdict(list)
    for point in points:
        if point.time_s <= 0 or point.size_bytes < 1:
            message = f"{point.size_bytes} bytes in {point.time_s} s"
            raise MeasurementError(message, location=point.location, hint="give positive figures")
        by_size[point.size_bytes].append(point.time_s)
    if len(by_size) < 2:
        raise MeasurementError("a fit needs measurements of two sizes or more")
    sizes = sorted(by_size)
    level = _without_dips([median(by_size[size]) for size in sizes])
    return [Point(size_bytes=x, time_s=t) for x, t in zip(sizes, level, strict=True)]


def _without_dips(times: Iterable[float]) -> list[float]:
    """Return the nearest times that never fall, by pooled medians."""
    pools: list[list[float]] = []
    for time in times:
        pool = [time]
        while pools and median(pools[-1]) > median(pool):
            pool = pools.pop() + pool
        pools.append(pool)
    return [median(pool) for pool in pools for _ in pool]


def _cuts(line: Sequence[Point], least: int) -> list[tuple[int, int]]:
    """Return the cheapest ranges of ``least`` or more points."""
    best: list[tuple[float, int]] = [(0.0, 0), *[(inf, 0)] * len(line)]
    for high in range(least, len(line) + 1):
        options = (
            (best[low][0] + _affine(line[low:high]).error + PRICE_OF_A_PIECE, low)
            for low in range(high - least + 1)
        )
        best[high] = min(options)
    ranges: list[tuple[int, int]] = []
    high = len(line)
    while high:
        low = best[high][1]
        ranges.append((low, high))
        high = low
    return ranges[::-1]


def _affine(line: Sequence[Point]) -> _Affine:
    """Fit non-negative ``a + b size`` to least relative errors."""
    ones = [1 / point.time_s for point in line]
    sizes = [point.size_bytes / point.time_s for point in line]
    oo, os, ss = (
        sum(x * y for x, y in zip(xs, ys, strict=True))
        for xs, ys in ((ones, ones), (ones, sizes), (sizes, sizes))
    )
    o, s = sum(ones), sum(sizes)
    determinant = oo * ss - os * os
    candidates = [(o / oo, 0.0), (0.0, s / ss)]
    if determinant > 1e-12 * oo * ss:
        candidates.append(((o * ss - s * os) / determinant, (s * oo - o * os) / determinant))
    fits = (
        _Affine(
            error=sum((a * x + b * y - 1) ** 2 for x, y in zip(ones, sizes, strict=True)),
            latency_s=a,
            s_per_byte=b,
        )
        for a, b in candidates
        if a >= 0 and b >= 0
    )
    return min(fits, key=lambda candidate: candidate.error)


def _piece(line: Sequence[Point]) -> Piece:
    line_fit = _affine(line)
    rate = 1 / max(line_fit.s_per_byte, 1 / _FASTEST_BYTES_PER_S)
    return Piece(
        up_to_bytes=None,
        latency_s=_round_figure(line_fit.latency_s),
        bandwidth_bytes_per_s=_round_figure(rate),
    )


def _join_pieces(pieces: Sequence[Piece], gaps: Sequence[tuple[int, int]]) -> tuple[Piece, ...]:
    """End pieces where the next begins; lift falling ones."""
    joined = [pieces[0]]
    for after, (low, high) in zip(pieces[1:], gaps, strict=True):
        before = joined[-1]
        edge = _crossing(before, after, low, high)
        joined[-1] = replace(before, up_to_bytes=floor(edge))
        gap_s = before.time_s(edge) - after.time_s(edge)
        lifted = _round_figure(after.latency_s + gap_s, up=True) if gap_s > 0 else after.latency_s
        joined.append(replace(after, latency_s=lifted))
    return tuple(joined)


def _crossing(before: Piece, after: Piece, low: int, high: int) -> float:
    slope = 1 / before.bandwidth_bytes_per_s - 1 / after.bandwidth_bytes_per_s
    if slope:
        size = (after.latency_s - before.latency_s) / slope
        if low <= size <= high:
            return size
    return sqrt(low * high)


def _round_figure(value: float, *, up: bool = False) -> float:
    """Round a figure to four digits, as presets show it."""
    if value <= 0:
        return 0.0
    digits = 3 - floor(log10(value))
    scaled = value * 10**digits
    return float(f"{(ceil(scaled) if up else round(scaled)) / 10**digits:.4g}")
