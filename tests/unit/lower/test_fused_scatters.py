"""Sums with what is scattered, as jaxlib 0.10.2 compiles them for H100."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from programs import main_function

TABLE, ROWS = "tensor<20000x256xf32>", "tensor<300000x256xf32>"


def _scattered(name: str, onto: str, updates: str = "%u") -> str:
    return f"""%{name} = "stablehlo.scatter"({onto}, %b, {updates}) ({{
        ^bb0(%l: tensor<f32>, %r: tensor<f32>):
          %t = stablehlo.add %l, %r : tensor<f32>
          stablehlo.return %t : tensor<f32>
        }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
          inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
        : ({TABLE}, tensor<300000x1xi32>, {ROWS}) -> {TABLE}"""


def _kernels(lines: str, *results: str) -> list[str]:
    """Return what the kernels of a program that scatters rows are, in order."""
    kinds = ", ".join([TABLE] * len(results))
    text = main_function(
        f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
        %zeros = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> {TABLE}
        {lines}
        return {", ".join(results)} : {kinds}""",
        arguments=f"%x: {TABLE}, %u: {ROWS}, %b: tensor<300000x1xi32>",
        results=kinds,
    )
    made = fused(load_source(text.encode(), name="test.mlir"))
    return [(op.instruction or op.kind).split(".")[0] for op in made.main.body.operations[:-1]]


SUM = f"%y = stablehlo.add %x, %s : {TABLE}"
TANH = f"%t = stablehlo.tanh %s : {TABLE}"
ZEROS, SCATTER = "loop_broadcast_in_dim_fusion", "input_scatter_fusion"


def test_a_sum_with_what_is_scattered_is_scattered_onto() -> None:
    """The argument, which is kept, is copied, and the rows are added to the copy."""
    assert _kernels(f"{_scattered('s', '%zeros')}\n{SUM}", "%y") == ["copy", SCATTER]


def test_a_sum_that_is_computed_is_scattered_onto() -> None:
    """It is written once, and written over."""
    lines = f"""%h = stablehlo.tanh %x : {TABLE}
    {_scattered("s", "%zeros")}
    %y = stablehlo.add %s, %h : {TABLE}"""
    assert _kernels(lines, "%y") == ["loop_tanh_fusion", SCATTER]


def test_what_others_read_stays_scattered_alone() -> None:
    """The sum is a kernel of its own then."""
    found = _kernels(f"{_scattered('s', '%zeros')}\n{SUM}\n{TANH}", "%y", "%t")
    assert found[:2] == [ZEROS, SCATTER]
    assert len(found) > 2


def test_two_scatters_are_added() -> None:
    """Neither is scattered onto the other."""
    lines = f"""{_scattered("s", "%zeros")}
    %v = stablehlo.negate %u : {ROWS}
    {_scattered("o", "%zeros", "%v")}
    %y = stablehlo.add %s, %o : {TABLE}"""
    assert _kernels(lines, "%y").count(SCATTER) == 2


@pytest.mark.parametrize(("onto", "kernels"), [("%x", 2), ("%zeros", 1)])
def test_rows_gathered_of_what_is_written_over_are_written_before(onto: str, kernels: int) -> None:
    """Of a table that is not written over they are read by the kernel that scatters."""
    lines = f"""%h = stablehlo.tanh %x : {TABLE}
    %g = "stablehlo.gather"(%h, %b) {{dimension_numbers = #stablehlo.gather<offset_dims = [1],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 256>}} : ({TABLE}, tensor<300000x1xi32>) -> {ROWS}
    {_scattered("s", onto.replace("%x", "%h"), "%g")}"""
    found = _kernels(lines, "%s")
    assert sum(each in (SCATTER, "loop_gather_fusion") for each in found) == kernels
