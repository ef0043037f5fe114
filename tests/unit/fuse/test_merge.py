"""How many sums one kernel has: as many as shared memory holds."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.fuse.fused import fused
from programs import main_function

ROWS, COLUMNS = 4096, 512
MATRIX = f"tensor<{ROWS}x{COLUMNS}xf32>"


def _sums(count: int, *, along: int) -> str:
    """Return a program that sums so many functions of the same matrix along a dimension."""
    kept = COLUMNS if along == 0 else ROWS
    kind = f"tensor<{kept}xf32>"
    lines = [
        "%z = stablehlo.constant dense<0.0> : tensor<f32>",
        f"%f0 = stablehlo.negate %a : {MATRIX}",
    ]
    for at in range(count):
        lines.append(f"%f{at + 1} = stablehlo.multiply %f{at}, %a : {MATRIX}")
        lines.append(
            f"%r{at} = stablehlo.reduce(%f{at + 1} init: %z) applies stablehlo.add across "
            f"dimensions = [{along}] : ({MATRIX}, tensor<f32>) -> {kind}"
        )
    results = ", ".join(f"%r{at}" for at in range(count))
    kinds = ", ".join([kind] * count)
    return main_function(
        "\n".join([*lines, f"return {results} : {kinds}"]),
        arguments=f"%a: {MATRIX}",
        results=kinds,
    )


@pytest.mark.parametrize(("along", "most"), [(0, 2), (1, 4)])
def test_a_kernel_has_as_many_sums_as_shared_memory_holds(along: int, most: int) -> None:
    """Two of columns in f32: of each, 4 x 32 x 33 numbers stay in 48 KiB. Rows need far less."""
    made = fused(load_source(_sums(4, along=along).encode(), name="test.mlir"))
    sums = [
        sum(each.kind == "reduce" for each in op.regions[0].operations)
        for op in made.main.body.operations
        if op.kind == "fusion"
    ]
    assert max(sums) == most
    assert sum(sums) >= 4
