from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.calibrate.piecewise import Point, fit, is_monotone, residuals, time_s
from hespas.errors import MeasurementError

SIZES = [2**power for power in range(8, 30)]


def line(latency_s: float, rate: float, sizes: list[int]) -> list[Point]:
    return [Point(size_bytes=size, time_s=latency_s + size / rate) for size in sizes]


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
    told = [time_s(pieces, 2 ** (exponent // 4) * (4 + exponent % 4)) for exponent in range(120)]
    assert all(before <= after * (1 + 1e-12) for before, after in pairwise(told))


def test_one_size_is_too_few() -> None:
    with pytest.raises(MeasurementError, match="two sizes or more"):
        fit([Point(size_bytes=8, time_s=1e-6)] * 3)


def test_a_time_of_nothing_is_refused_with_its_place() -> None:
    with pytest.raises(MeasurementError, match=r"log:3: 16 bytes in 0\.0 s"):
        fit([Point(size_bytes=8, time_s=1e-6), Point(size_bytes=16, time_s=0.0, place="log:3")])
