"""Products of uneven sizes, as jaxlib 0.10.2 compiles them for H100."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.lower.dots import PADDED_DOTS
from hespas.program.attrs import SliceAttrs
from hespas.program.program import Op
from hespas.program.types import TensorType
from programs import main_function
from rewriting import rewritten


def padded(body: str, *arguments: str, result: str) -> list[Op]:
    named = ", ".join(f"%{'xywb'[at]}: {kind}" for at, kind in enumerate(arguments))
    text = main_function(body, arguments=named, results=result)
    block = load_source(text.encode(), name="test.mlir").main.body
    results = block.operations[-1].operands
    return rewritten(block.operations[:-1], PADDED_DOTS, results=results)


def product(rows: int, summed: int, columns: int, kind: str, made: str = "") -> list[Op]:
    left, right = f"tensor<{rows}x{summed}x{kind}>", f"tensor<{summed}x{columns}x{kind}>"
    result = f"tensor<{rows}x{columns}x{made or kind}>"
    dot = f"stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({left}, {right})"
    return padded(f"%r = {dot} -> {result}\n    return %r : {result}", left, right, result=result)


def shapes(op: Op) -> list[tuple[int, ...]]:
    kinds = [value.type for value in (*op.operands, *op.results)]
    return [kind.shape for kind in kinds if isinstance(kind, TensorType)]


@pytest.mark.parametrize(
    ("sizes", "kind", "wide"),
    [
        ((2, 4096, 512), "bf16", (8, 4096, 512)),
        ((512, 100, 512), "f16", (512, 104, 512)),
        ((512, 512, 50257), "bf16", (512, 512, 50264)),
        ((8, 4096, 12), "bf16", (8, 4096, 16)),
        ((4096, 1023, 4096), "i8", (4096, 1024, 4096)),
        ((2, 4096, 12), "i8", (4, 4096, 12)),
        ((2, 100, 50257), "f8E4M3FN", (16, 112, 50272)),
    ],
)
def test_sizes_are_those_that_tensor_cores_take(
    sizes: tuple[int, int, int], kind: str, wide: tuple[int, int, int]
) -> None:
    made = {"i8": "i32", "f8E4M3FN": "f32"}.get(kind, kind)
    operations = product(*sizes, kind, made)
    (dot,) = [op for op in operations if op.kind == "dot_general"]
    rows, summed, columns = wide
    assert shapes(dot) == [(rows, summed), (summed, columns), (rows, columns)]
    cut = [op.attrs for op in operations if op.kind == "slice"]
    is_cut = (rows, columns) != (sizes[0], sizes[2])
    assert len(cut) == is_cut
    for bounds in cut:
        assert isinstance(bounds, SliceAttrs)
        assert bounds.limit == (sizes[0], sizes[2])
    assert shapes(operations[-1])[-1] == (sizes[0], sizes[2])


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        ((512, 512, 512), "bf16"),
        ((1, 4095, 511), "bf16"),
        ((4095, 511, 1), "bf16"),
        ((3, 255, 255), "f32"),
    ],
)
def test_even_ones_vectors_and_f32_stay(sizes: tuple[int, int, int], kind: str) -> None:
    assert [op.kind for op in product(*sizes, kind)] == ["dot_general"]


def test_dimensions_that_make_rows_together_are_padded_as_one() -> None:
    left, right, result = "tensor<3x5x64xbf16>", "tensor<64x128xbf16>", "tensor<3x5x128xbf16>"
    dot = f"stablehlo.dot_general %x, %y, contracting_dims = [2] x [0] : ({left}, {right})"
    made = padded(f"%r = {dot} -> {result}\n return %r : {result}", left, right, result=result)
    assert [op.kind for op in made] == ["reshape", "pad", "dot_general", "slice", "reshape"]
    assert shapes(made[2]) == [(16, 64), (64, 128), (16, 128)]
    assert shapes(made[-1]) == [(15, 128), (3, 5, 128)]


def test_dimensions_that_lie_apart_are_not() -> None:
    left, right, result = "tensor<3x64x5xbf16>", "tensor<64x128xbf16>", "tensor<3x5x128xbf16>"
    dot = f"stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({left}, {right})"
    made = padded(f"%r = {dot} -> {result}\n return %r : {result}", left, right, result=result)
    assert [op.kind for op in made] == ["dot_general"]
