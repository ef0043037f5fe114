"""Fit times over sizes by pieces of ``latency + size / bandwidth``.

A collective runs by one algorithm and protocol up to some size and by another beyond it, so that
its time is affine in the size piece by piece (C. Hockney's model, one per protocol). The pieces
are chosen by dynamic programming: least squares of relative errors, and a price for each piece.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf, log10, sqrt
from statistics import median

from hespas.errors import MeasurementError

PRICE_OF_A_PIECE = 0.005
"""A piece more must take away as much squared error as one point that is 7 % off."""

_MOST_FITS = 32

_FASTEST_BYTES_PER_S = 1e15
"""Stands for no dependence on the size at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured time, and where it stands."""

    size_bytes: int
    time_s: float
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """``latency_s + size / bandwidth_bytes_per_s`` up to ``up_to_bytes``, the last for any size."""

    up_to_bytes: int | None
    latency_s: float
    bandwidth_bytes_per_s: float

    def time_s(self, size_bytes: float) -> float:
        """Return the time of a size."""
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Affine:
    error: float
    latency_s: float
    s_per_byte: float


def fit(points: Iterable[Point], *, sizes_a_piece: int = 2) -> tuple[Piece, ...]:
    """Return the pieces, in order of size; the time that they give never falls as the size grows.

    A piece has two figures, so that it takes three sizes or more to err at all: ``sizes_a_piece``
    is how many each has at least, where there are so many.

    Raises `MeasurementError` for fewer than two sizes, and for times that are not positive.

    >>> line = [Point(size_bytes=2**n, time_s=10e-6 + 2**n / 1e11) for n in range(10, 28)]
    >>> [(piece.up_to_bytes, piece.bandwidth_bytes_per_s) for piece in fit(line)]
    [(None, 100000000000.0)]
    """
    line = _levelled(points)
    cuts = _cuts(line, min(sizes_a_piece, len(line)))
    pieces = [_piece(line[low:high]) for low, high in cuts]
    ends = [(line[high - 1], line[high]) for _, high in cuts[:-1]]
    return _joined(pieces, [(left.size_bytes, right.size_bytes) for left, right in ends])


def time_s(pieces: Sequence[Piece], size_bytes: int) -> float:
    """Return the time that pieces give."""
    limits = (each for each in pieces if each.up_to_bytes is None or size_bytes <= each.up_to_bytes)
    return next(limits).time_s(size_bytes)


def residuals(pieces: Sequence[Piece], points: Iterable[Point]) -> tuple[float, ...]:
    """Return the relative errors of the fit, predicted / measured - 1, point by point."""
    return tuple(time_s(pieces, each.size_bytes) / each.time_s - 1 for each in points)


def left_out_errors(points: Sequence[Point], *, sizes_a_piece: int) -> tuple[float | None, ...]:
    """Return the relative error of each point under a fit that its size has no part in.

    None where that leaves fewer than two sizes. Of many sizes, several are left out at a time.
    """
    sizes = sorted({each.size_bytes for each in points})
    if len(sizes) < 3:
        return (None,) * len(points)
    folds = min(len(sizes), _MOST_FITS)
    fitted: dict[int, tuple[Piece, ...]] = {}
    for fold in range(folds):
        out = set(sizes[fold::folds])
        rest = [each for each in points if each.size_bytes not in out]
        fitted |= dict.fromkeys(out, fit(rest, sizes_a_piece=sizes_a_piece))
    return tuple(
        time_s(fitted[each.size_bytes], each.size_bytes) / each.time_s - 1 for each in points
    )


def _levelled(points: Iterable[Point]) -> list[Point]:
    """Return one time per size, the median, with dips levelled out."""
    by_size: dict[int, list[float]] = defaultdict(list)
    for each in points:
        if each.time_s <= 0 or each.size_bytes < 1:
            message = f"{each.size_bytes} bytes in {each.time_s} s"
            raise MeasurementError(message, location=each.location, hint="give positive figures")
        by_size[each.size_bytes].append(each.time_s)
    if len(by_size) < 2:
        raise MeasurementError("a fit needs measurements of two sizes or more")
    sizes = sorted(by_size)
    level = _without_dips([median(by_size[size]) for size in sizes])
    return [Point(size_bytes=x, time_s=t) for x, t in zip(sizes, level, strict=True)]


def _without_dips(times: Iterable[float]) -> list[float]:
    """Return the nearest times that nowhere fall: pooled as medians, which outliers don't pull."""
    pools: list[list[float]] = []
    for time in times:
        pool = [time]
        while pools and median(pools[-1]) > median(pool):
            pool = pools.pop() + pool
        pools.append(pool)
    return [median(pool) for pool in pools for _ in pool]


def _cuts(line: Sequence[Point], least: int) -> list[tuple[int, int]]:
    """Return the ranges of points, ``least`` or more in each, that make the cheapest pieces."""
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
    """Fit ``a + b size`` with a and b not negative by least squares of relative errors."""
    ones = [1 / each.time_s for each in line]
    sizes = [each.size_bytes / each.time_s for each in line]
    oo, os, ss = (
        sum(x * y for x, y in zip(left, right, strict=True))
        for left, right in ((ones, ones), (ones, sizes), (sizes, sizes))
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
    return min(fits, key=lambda each: each.error)


def _piece(line: Sequence[Point]) -> Piece:
    line_fit = _affine(line)
    rate = 1 / max(line_fit.s_per_byte, 1 / _FASTEST_BYTES_PER_S)
    return Piece(
        up_to_bytes=None,
        latency_s=_rounded(line_fit.latency_s),
        bandwidth_bytes_per_s=_rounded(rate),
    )


def _joined(pieces: Sequence[Piece], gaps: Sequence[tuple[int, int]]) -> tuple[Piece, ...]:
    """Let each piece end where the next meets it, or jumps up from it; lift one that would fall."""
    joined = [pieces[0]]
    for after, (low, high) in zip(pieces[1:], gaps, strict=True):
        before = joined[-1]
        edge = _crossing(before, after, low, high)
        joined[-1] = replace(before, up_to_bytes=floor(edge))
        gap_s = before.time_s(edge) - after.time_s(edge)
        lifted = _rounded(after.latency_s + gap_s, up=True) if gap_s > 0 else after.latency_s
        joined.append(replace(after, latency_s=lifted))
    return tuple(joined)


def _crossing(before: Piece, after: Piece, low: int, high: int) -> float:
    slope = 1 / before.bandwidth_bytes_per_s - 1 / after.bandwidth_bytes_per_s
    if slope:
        size = (after.latency_s - before.latency_s) / slope
        if low <= size <= high:
            return size
    return sqrt(low * high)


def _rounded(value: float, *, up: bool = False) -> float:
    """Keep four digits: what is read in a preset."""
    if value <= 0:
        return 0.0
    digits = 3 - floor(log10(value))
    scaled = value * 10**digits
    return float(f"{(ceil(scaled) if up else round(scaled)) / 10**digits:.4g}")
