from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hespas.frontend.load import load_source
from hespas.lower.dots import OPENED_VECTORS
from hespas.program.attrs import DimensionsAttrs
from hespas.program.program import Op, Value, shape_of
from programs import main_function
from rewriting import rewritten

Dimensions = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def dot(
    left: tuple[int, ...],
    right: tuple[int, ...],
    made: tuple[int, ...],
    dimensions: Dimensions,
    element: str = "f32",
) -> Op:
    types = [f"tensor<{'x'.join(map(str, (*each, element)))}>" for each in (left, right, made)]
    batching = f"batching_dims = {[*dimensions[0]]} x {[*dimensions[1]]}, " if dimensions[0] else ""
    contracting = f"contracting_dims = {[*dimensions[2]]} x {[*dimensions[3]]}"
    text = main_function(
        f"""%r = stablehlo.dot_general %a, %b, {batching}{contracting}
            : ({types[0]}, {types[1]}) -> {types[2]}
        return %r : {types[2]}""",
        arguments=f"%a: {types[0]}, %b: {types[1]}",
        results=types[2],
    )
    return load_source(text.encode(), name="test.mlir").main.body.operations[0]


def computed(ops: list[Op], values: dict[Value, Any]) -> Any:
    """Return what operations make of values."""
    for op in ops:
        given = [values[each] for each in op.operands]
        dimensions = op.attrs.dimensions if isinstance(op.attrs, DimensionsAttrs) else ()
        shape = shape_of(op.results[0])
        match op.kind:
            case "constant":
                made = np.zeros(shape)
            case "multiply":
                made = given[0] * given[1]
            case "reshape":
                made = given[0].reshape(shape)
            case "transpose":
                made = given[0].transpose(dimensions)
            case "reduce":
                made = given[0].sum(dimensions)
            case kind:
                assert kind == "broadcast_in_dim"
                sizes = [1] * len(shape)
                for at, size in zip(dimensions, given[0].shape, strict=True):
                    sizes[at] = size
                made = np.broadcast_to(given[0].reshape(sizes), shape)
        assert made.shape == shape
        values[op.results[0]] = made
    return values[ops[-1].results[0]]


@pytest.mark.parametrize(
    ("left", "right", "made", "dimensions", "einsum"),
    [
        ((1, 5), (5, 7), (1, 7), ((), (), (1,), (0,)), "ak,kn->an"),
        ((7, 5), (5,), (7,), ((), (), (1,), (0,)), "nk,k->n"),
        ((6,), (6,), (), ((), (), (0,), (0,)), "k,k->"),
        ((3, 4), (3, 5), (3, 4, 5), ((0,), (0,), (), ()), "bi,bj->bij"),
        ((4, 3), (5, 3, 2), (3, 4, 5, 2), ((1,), (1,), (), ()), "ib,jbl->bijl"),
        ((3, 2), (2, 3, 6), (3, 2, 6), ((0, 1), (1, 0), (), ()), "ab,bac->abc"),
        ((2, 3, 4), (3, 5, 4, 2), (2, 3, 5), ((0, 1), (3, 0), (2,), (2,)), "xyk,ynkx->xyn"),
        ((2, 4, 3, 5), (5, 2, 3), (2, 4), ((0,), (1,), (2, 3), (2, 0)), "bnkl,lbk->bn"),
        ((1, 1), (1, 6), (1, 6), ((), (), (1,), (0,)), "ak,kn->an"),
    ],
)
def test_a_product_with_a_vector_is_multiplied_and_summed(
    left: tuple[int, ...],
    right: tuple[int, ...],
    made: tuple[int, ...],
    dimensions: Dimensions,
    einsum: str,
) -> None:
    op = dot(left, right, made, dimensions)
    opened = rewritten([op], OPENED_VECTORS)
    rng = np.random.default_rng(0)
    values = {each: rng.normal(size=shape_of(each)) for each in op.operands}
    wanted = np.einsum(einsum, *values.values())
    assert opened[-1].results == op.results
    assert np.allclose(computed(opened, {**values}), wanted)


# What jaxlib 0.10.2 compiles for H100.
@pytest.mark.parametrize(
    ("rows", "summed", "columns", "is_opened"),
    [
        (1, 4096, 2048, True),
        (1, 4096, 2560, False),
        (1, 96, 32000, True),
        (1, 4096, 4096, False),
        (2, 64, 64, False),
        (32, 64, 32, False),
    ],
)
def test_large_ones_and_matrices_are_the_librarys(
    rows: int, summed: int, columns: int, *, is_opened: bool
) -> None:
    op = dot((rows, summed), (summed, columns), (rows, columns), ((), (), (1,), (0,)), "bf16")
    assert (rewritten([op], OPENED_VECTORS) != [op]) == is_opened
