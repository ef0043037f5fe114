from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.errors import HardwareError
from hespas.price.systolic import Dataflow, Product, SystolicArray, cycles, sram_bytes

WS = SystolicArray(rows=128, columns=128, clock_hz=940e6, dataflow=Dataflow.WEIGHT_STATIONARY)
OS = SystolicArray(rows=128, columns=128, clock_hz=940e6, dataflow=Dataflow.OUTPUT_STATIONARY)


# "Total Cycles" of SCALE-Sim 3.0.0 without stalls; the last two are 3x3 convolutions, of 56 x 56
# x 64 to 64 and of 14 x 14 x 256 to 256, as products of their patches.
@pytest.mark.parametrize(
    ("array", "m", "k", "n", "total"),
    [
        (WS, 128, 128, 128, 509),
        (WS, 512, 512, 512, 14303),
        (WS, 1024, 1024, 1024, 89983),
        (OS, 512, 512, 512, 12255),
        (WS, 56 * 56, 9 * 64, 64, 17589),
        (WS, 14 * 14, 9 * 256, 256, 20807),
    ],
)
def test_the_closed_forms_are_scale_sims(
    array: SystolicArray, m: int, k: int, n: int, total: int
) -> None:
    assert cycles(Product(m=m, n=n, k=k), array) == total


sizes = st.integers(min_value=1, max_value=3000)


@given(sizes, sizes, sizes, st.sampled_from([WS, OS]))
def test_no_product_is_faster_than_its_multiplications(
    m: int, n: int, k: int, array: SystolicArray
) -> None:
    product = Product(m=m, n=n, k=k)
    assert cycles(product, array) * array.multipliers >= product.multiplications


@given(sizes, sizes, sizes)
def test_two_arrays_halve_the_columns(m: int, n: int, k: int) -> None:
    whole, half = Product(m=m, n=2 * n, k=k), Product(m=m, n=n, k=k)
    assert cycles(whole, replace(WS, count=2)) == cycles(half, WS)


@given(sizes, sizes, sizes, st.sampled_from([WS, OS]))
def test_the_edges_carry_at_least_each_operand_once(
    m: int, n: int, k: int, array: SystolicArray
) -> None:
    product = Product(m=m, n=n, k=k)
    assert sram_bytes(product, array, 2) >= 2 * (m * k + k * n + m * n)


def test_an_array_without_rows_is_refused() -> None:
    with pytest.raises(HardwareError, match="array_rows is 0"):
        SystolicArray(rows=0, columns=1, clock_hz=1e9, dataflow=Dataflow.WEIGHT_STATIONARY)
