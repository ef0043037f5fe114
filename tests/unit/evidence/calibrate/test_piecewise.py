from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.errors import MeasurementError
from hespas.evidence.calibrate.piecewise import (
    Piece,
    Point,
    fit,
    left_out_errors,
    residuals,
    time_s,
)

SIZES = [2**power for power in range(8, 30)]


def line(latency_s: float, rate: float, sizes: list[int]) -> list[Point]:
    return [Point(size_bytes=size, time_s=latency_s + size / rate) for size in sizes]


def is_monotone(pieces: Sequence[Piece]) -> bool:
    """Return whether time nowhere falls from one piece to the next."""
    return all(
        before.up_to_bytes is not None
        and before.time_s(before.up_to_bytes) <= after.time_s(before.up_to_bytes + 1)
        for before, after in pairwise(pieces)
    )


def test_two_protocols_are_found_where_they_change() -> None:
    short, long = line(10e-6, 5e9, SIZES[:10]), line(50e-6, 100e9, SIZES[10:])
    pieces = fit([*short, *long])
    assert [piece.bandwidth_bytes_per_s for piece in pieces] == pytest.approx(
        [5e9, 100e9], rel=1e-3
    )
    assert [piece.latency_s for piece in pieces] == pytest.approx([10e-6, 50e-6], rel=1e-3)
    limit = pieces[0].up_to_bytes
    assert limit is not None
    assert SIZES[9] <= limit < SIZES[10]
    assert max(abs(error) for error in residuals(pieces, [*short, *long])) < 1e-3


def test_an_outlier_makes_no_piece_of_its_own() -> None:
    points = line(10e-6, 100e9, SIZES)
    points[4] = Point(size_bytes=points[4].size_bytes, time_s=25e-6)
    pieces = fit(points)
    assert len(pieces) == 1
    assert pieces[0].bandwidth_bytes_per_s == pytest.approx(100e9, rel=0.02)


def test_repeated_measurements_count_by_their_median() -> None:
    points = line(10e-6, 100e9, SIZES)
    disturbed = [Point(size_bytes=each.size_bytes, time_s=9 * each.time_s) for each in points]
    assert fit([*points, *points, *disturbed]) == fit(points)


@given(st.lists(st.floats(1e-6, 1e-1), min_size=2, max_size=22))
def test_any_measurements_give_a_time_that_never_falls(times: list[float]) -> None:
    points = [Point(size_bytes=x, time_s=t) for x, t in zip(SIZES, times, strict=False)]
    pieces = fit(points)
    assert is_monotone(pieces)
    shown = [time_s(pieces, 2 ** (exponent // 4) * (4 + exponent % 4)) for exponent in range(120)]
    assert all(before <= after * (1 + 1e-12) for before, after in pairwise(shown))


def test_one_size_is_too_few() -> None:
    with pytest.raises(MeasurementError, match="two sizes or more"):
        fit([Point(size_bytes=8, time_s=1e-6)] * 3)


def test_a_time_of_nothing_is_refused_with_its_place() -> None:
    with pytest.raises(MeasurementError, match=r"log:3: 16 bytes in 0\.0 s"):
        fit([Point(size_bytes=8, time_s=1e-6), Point(size_bytes=16, time_s=0.0, location="log:3")])


def test_pieces_have_as_many_sizes_as_asked_for() -> None:
    points = [Point(size_bytes=8**n, time_s=t) for n, t in enumerate([1, 2, 30, 400, 999], start=2)]
    assert len(fit(points)) == 2
    (piece,) = fit(points, sizes_a_piece=3)
    assert piece.up_to_bytes is None


def test_what_is_left_out_is_reported_by_the_others() -> None:
    points = line(10e-6, 100e9, SIZES)
    assert max(abs(e or 0) for e in left_out_errors(points, sizes_a_piece=3)) < 1e-3
    points[7] = Point(size_bytes=points[7].size_bytes, time_s=20 * points[7].time_s)
    errors = left_out_errors([*points, points[7]], sizes_a_piece=3)
    assert errors[7] == errors[-1] == pytest.approx(1 / 20 - 1, abs=0.01)


def test_of_many_sizes_several_are_left_out_at_a_time() -> None:
    points = line(10e-6, 100e9, [1000 * n for n in range(1, 80)])
    assert max(abs(e or 0) for e in left_out_errors(points, sizes_a_piece=3)) < 1e-3
