"""Laws of windows: what a reduction costs does not depend on how a compiler wrote it."""

from __future__ import annotations

from math import log2

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import hespas
from hespas.work.expand import expand, total
from hlo_programs import ADD, entry_ops, module, read_hlo

ROWS = st.integers(1, 2**12)
LENGTH = st.integers(2, 2**16)
DEVICE = "TPUv5p"


def _priced_s(rows: int, length: int, *body: str) -> float:
    """Return the roofline's time of a kernel that maps [rows, length] to the same shape."""
    shape = f"f32[{rows},{length}]"
    fused = "\n".join(
        [f"fused {{\n  p = {shape} parameter(0)", "  zero = f32[] constant(0)", *body, "}"]
    )
    entry = f"a = {shape} parameter(0)\nROOT k = {shape} fusion(a), kind=kLoop, calls=fused"
    program = read_hlo(module(entry, computations=ADD + fused))
    return hespas.stages.estimate(
        hespas.stages.split(program), DEVICE, method="roofline"
    ).total.time_s


@given(ROWS, LENGTH, st.integers(0, 3), st.integers(0, 3))
def test_a_reduction_costs_the_same_as_windows_of_full_width(
    rows: int, length: int, before: int, behind: int
) -> None:
    shape, low, high = f"f32[{rows},{length}]", length - 1 + before, length - 1 + behind
    reduced_s = _priced_s(
        rows,
        length,
        f"r = f32[{rows}] reduce(p, zero), dimensions={{1}}, to_apply=add",
        f"ROOT b = {shape} broadcast(r), dimensions={{0}}",
    )
    size = low + high + 1
    windows_s = _priced_s(
        rows,
        length,
        f"ROOT w = {shape} reduce-window(p, zero), window={{size=1x{size} "
        f"pad=0_0x{low}_{high}}}, to_apply=add",
    )

    assert windows_s == pytest.approx(reduced_s, rel=1e-12)


@given(LENGTH, st.booleans(), st.booleans())
def test_a_cumulative_sum_costs_no_more_than_its_length_times_its_logarithm(
    length: int, from_start: bool, leaves_out_its_own: bool
) -> None:
    padding = length if leaves_out_its_own else length - 1
    results = length + leaves_out_its_own
    pad = f"{padding}_0" if from_start else f"0_{padding}"
    ops = entry_ops(
        f"a = f32[{length}] parameter(0)\nzero = f32[] constant(0)\n"
        f"ROOT w = f32[{results}] reduce-window(a, zero), "
        f"window={{size={length} pad={pad}}}, to_apply=add",
        computations=ADD,
    )

    work = total(expand(ops))

    assert work.total_flops <= 2 * length * max(1, log2(length))


@given(st.integers(2, 500), st.integers(2, 500), st.integers(1, 4), st.integers(0, 600))
def test_windows_never_cost_more_than_each_by_itself(
    length: int, size: int, stride: int, padding: int
) -> None:
    results = (length + padding - size) // stride + 1
    assume(length + padding >= size)
    ops = entry_ops(
        f"a = f32[{length}] parameter(0)\nzero = f32[] constant(0)\n"
        f"ROOT w = f32[{results}] reduce-window(a, zero), "
        f"window={{size={size} stride={stride} pad={padding}_0}}, to_apply=add",
        computations=ADD,
    )

    assert total(expand(ops)).total_flops <= results * (size - 1)
