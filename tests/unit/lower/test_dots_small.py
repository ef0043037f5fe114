"""Vectors with small matrices of their own: libraries stream them, and no product is called."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.lower.fused import Writer, fused
from programs import main_function


def kinds(chosen: int, writer: Writer) -> list[str]:
    """Return the kernels of a sum of what ``chosen`` experts make of each of 4096 tokens."""
    gates, made = f"tensor<4096x{chosen}xbf16>", f"tensor<4096x{chosen}x2048xbf16>"
    body = f"""%sum = stablehlo.dot_general %g, %m, batching_dims = [0] x [0],
      contracting_dims = [1] x [1] : ({gates}, {made}) -> tensor<4096x2048xbf16>
    return %sum : tensor<4096x2048xbf16>"""
    text = main_function(
        body, arguments=f"%g: {gates}, %m: {made}", results="tensor<4096x2048xbf16>"
    )
    program = fused(load_source(text.encode(), name="test.mlir"), writer=writer)
    return [op.kind for op in program.main.body.operations if not op.traits.runs_nothing]


@pytest.mark.parametrize(("chosen", "expected"), [(8, ["fusion"]), (64, ["dot_general"])])
def test_libraries_add_up_few_rows_of_each_token_in_one_pass(
    chosen: int, expected: list[str]
) -> None:
    assert kinds(chosen, Writer.LIBRARY) == expected
