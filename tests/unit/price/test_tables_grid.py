from __future__ import annotations

from math import exp, isnan, log, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.errors import MeasurementError
from hespas.price.tables import Axis, Grid, completed, monotone, read, without

SIZES = (1, 2, 4, 8)
AXES = (Axis(name="m", sizes=SIZES), Axis(name="n", sizes=SIZES))


def grid_of(times_s: list[float], axes: tuple[Axis, ...] = AXES) -> Grid:
    return Grid(axes=axes, log_times=tuple(nan if isnan(time) else log(time) for time in times_s))


def power_law() -> Grid:
    return grid_of([m * n**2 * 1e-6 for m in SIZES for n in SIZES])


def test_a_power_law_is_read_exactly_within_and_in_proportion_beyond() -> None:
    grid = power_law()
    assert read(grid, (3, 5)).time_s == pytest.approx(75e-6)
    beyond = read(grid, (8, 16))
    assert beyond.time_s == pytest.approx(8 * 64 * 2 * 1e-6)
    assert beyond.outside == ("n",)


def test_below_the_smallest_size_time_stays() -> None:
    grid = grid_of([1e-6, 2e-6], (Axis(name="n", sizes=(32, 64)),))
    reading = read(grid, (5,))
    assert reading.time_s == pytest.approx(1e-6)
    assert reading.outside == ("n",)
    assert read(grid, (32,)).outside == read(grid, (64,)).outside == ()


@pytest.mark.parametrize("cell", [5, 6, 15, 3, 0])
def test_a_missing_cell_of_a_power_law_is_filled_exactly(cell: int) -> None:
    whole = power_law()
    times = list(whole.log_times)
    times[cell] = nan
    filled = completed(Grid(axes=AXES, log_times=tuple(times)))
    assert filled.log_times[cell] == pytest.approx(whole.log_times[cell])


def test_axes_weigh_in_the_prediction_of_a_cell() -> None:
    axes = (Axis(name="m", sizes=(1, 2, 4), weight=3.0), Axis(name="n", sizes=(1, 2, 4)))
    # Along m the neighbours say 1, along n they say e.
    times = [0.0, 0.0, 0.0, 1.0, 9.9, 1.0, 0.0, 0.0, 0.0]
    assert without(Grid(axes=axes, log_times=tuple(times)), 4) == pytest.approx(0.25)


def test_gaps_that_nothing_fills_are_refused() -> None:
    with pytest.raises(MeasurementError, match="4 cells have no neighbours"):
        completed(grid_of([nan] * 4, (Axis(name="m", sizes=SIZES),)))


def test_a_grid_and_its_axes_agree() -> None:
    with pytest.raises(MeasurementError, match="16 cells holds 3 times"):
        grid_of([1.0, 2.0, 3.0])
    with pytest.raises(MeasurementError, match="don't ascend"):
        Axis(name="m", sizes=(4, 2))


def test_a_dip_is_levelled_to_the_mean() -> None:
    line = monotone(Grid(axes=(Axis(name="m", sizes=SIZES),), log_times=(1.0, 3.0, 2.0, 4.0)))
    assert line.log_times == (1.0, 2.5, 2.5, 4.0)


@given(st.lists(st.floats(-20, 0), min_size=64, max_size=64), st.data())
def test_what_is_read_never_falls_as_a_size_grows(times: list[float], data: st.DataObject) -> None:
    axes = (*AXES, Axis(name="k", sizes=SIZES))
    grid = monotone(Grid(axes=axes, log_times=tuple(times)))
    sizes = [data.draw(st.integers(1, 20)) for _ in axes]
    at = data.draw(st.integers(0, 2))
    grown = [size + (at == axis) for axis, size in enumerate(sizes)]
    assert read(grid, sizes).time_s <= read(grid, grown).time_s * (1 + 1e-9)


def test_what_is_monotone_stays() -> None:
    grid = power_law()
    assert monotone(grid).log_times == pytest.approx(grid.log_times)
    assert exp(grid.log_times[-1]) == pytest.approx(8 * 64e-6)
