from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.base.units import (
    format_bytes_binary,
    format_quantity,
    format_time,
    parse_quantity,
    to_gb_per_s,
    to_ns,
)
from hespas.errors import ConfigError


@given(st.integers(0, 10**15 - 1), st.integers(-9, 3))
def test_figures_of_15_digits_survive_a_change_of_units(digits: int, exponent: int) -> None:
    figure = float(f"{digits}e{exponent}")

    assert to_ns(figure / 1e9) == figure
    assert to_gb_per_s(figure * 1e9) == figure


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("312e12", "FLOP/s", 312e12),
        ("312 TFLOP/s", "FLOP/s", 312e12),
        ("312TFLOPS", "FLOP/s", 312e12),
        ("108.941 TFLOPS/s", "FLOP/s", 108.941e12),
        (" 1.5PFLOP/s ", "FLOP/s", 1.5e15),
        ("1555GB/s", "B/s", 1555e9),
        ("1 GiB/s", "B/s", 2**30),
        (".5 kB", "B", 500),
        ("5.", "B", 5),
        ("+1e3", "B", 1000),
        ("3 us", "s", 3e-6),
        ("3 µs", "s", 3e-6),
        ("-2 ms", "s", -2e-3),
    ],
)
def test_quantities_are_read(text: str, unit: str, value: float) -> None:
    assert parse_quantity(text, unit) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", "B"), ("GB", "B"), ("1.2.3", "B"), (".", "B"), ("1e", "B"), ("nan", "B"),
        ("inf", "B"), ("1 gb", "B"), ("1 GB/s", "B"), ("1 KiFLOP/s", "FLOP/s"), ("1 ks", "s"),
        ("1 2", "B"), ("1,000", "B"), ("0x10", "B"), ("\u0661", "B"), ("1e999", "B"),
        ("1e308 EB", "B"),
    ],
)  # fmt: skip
def test_what_is_no_quantity_is_refused(text: str, unit: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_quantity(text, unit, location="--flag")
    assert str(caught.value).startswith("--flag: ")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0 B"), (1.0, "1 B"), (999.4, "999.4 B"), (999.96, "1 kB"), (1000.0, "1 kB"),
        (999_999.0, "1 MB"), (1.555e12, "1.555 TB"), (-2e6, "-2 MB"), (0.25, "0.25 B"),
        (2e21, "2000 EB"),
    ],
)  # fmt: skip
def test_quantities_are_printed(value: float, shown: str) -> None:
    assert format_quantity(value, "B") == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"), (61.0, "61 s"), (0.99999, "1 s"), (0.05799, "57.99 ms"),
        (999.96e-6, "1 ms"), (1e-6, "1 us"), (2.5e-10, "250 ps"), (1e-15, "0.001 ps"),
    ],
)  # fmt: skip
def test_times_are_printed(seconds: float, shown: str) -> None:
    assert format_time(seconds) == shown


def test_binary_sizes_are_printed() -> None:
    assert format_bytes_binary(2**30) == "1 GiB"
    assert format_bytes_binary(1000) == "1000 B"
    assert format_bytes_binary(0) == "0 B"


@given(st.floats(min_value=1e-9, max_value=1e20))
def test_what_is_printed_reads_back(value: float) -> None:
    assert parse_quantity(format_quantity(value, "B/s"), "B/s") == pytest.approx(value, rel=5e-4)


@given(st.floats(min_value=1e-12, max_value=1e6))
def test_times_read_back(value: float) -> None:
    assert parse_quantity(format_time(value), "s") == pytest.approx(value, rel=5e-4)


def test_a_number_without_a_unit_is_named_so() -> None:
    with pytest.raises(ConfigError, match="'nan' is not a number") as refused:
        parse_quantity("nan", "")
    assert refused.value.hint == "write it as in 1.5, 20k or 3M"
    assert parse_quantity("20k", "") == 20_000
