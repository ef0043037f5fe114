"""Products of one new token with a cache are not turned because of its dimension of size 1."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.lower.dots import WITHOUT_UNITS
from hespas.program.program import Op, shape_of
from hespas.work.gemm import gemms
from programs import main_function
from rewriting import rewritten

CACHE, QUERIES = "tensor<64x8x2048x128xbf16>", "tensor<64x8x4x{tokens}x2048xbf16>"


def product(tokens: int) -> Op:
    queries, made = QUERIES.format(tokens=tokens), f"tensor<64x8x128x4x{tokens}xbf16>"
    text = main_function(
        f"""%r = stablehlo.dot_general %v, %p, batching_dims = [0, 1] x [0, 1],
          contracting_dims = [2] x [4] : ({CACHE}, {queries}) -> {made}
        return %r : {made}""",
        arguments=f"%v: {CACHE}, %p: {queries}",
        results=made,
    )
    (op, _) = load_source(text.encode(), name="test.mlir").main.body.operations
    return op


def test_a_free_dimension_of_one_is_dropped() -> None:
    op = product(1)
    operations = rewritten((op,), WITHOUT_UNITS)
    assert "transpose" not in {each.kind for each in operations}
    (small,) = [each for each in operations if each.kind == "dot_general"]
    assert [shape_of(value) for value in small.operands] == [
        (64, 8, 2048, 128),
        (64, 8, 4, 2048),
    ]
    assert [(gemm.m, gemm.n, gemm.k) for gemm in gemms(small)] == [
        (gemm.m, gemm.n, gemm.k) for gemm in gemms(op)
    ]
    assert operations[-1].results == op.results


@pytest.mark.parametrize("tokens", [2, 16])
def test_several_new_tokens_stay(tokens: int) -> None:
    op = product(tokens)
    assert [*rewritten((op,), WITHOUT_UNITS)] == [op]
