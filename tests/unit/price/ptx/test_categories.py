from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.price.kernel import kernel_of
from hespas.price.ptx.categories import warps_of_rows
from programs import main_function


# Warps that jaxlib 0.10.2 starts for H100.
@pytest.mark.parametrize(
    ("rows", "length", "warps"),
    [(1048576, 128, 1048576), (524288, 250, 524288), (512, 4096, 512 * 8), (4096, 8, 1024)],
)
def test_a_warp_takes_sixteen_elements_a_thread_of_a_row(
    rows: int, length: int, warps: int
) -> None:
    text = main_function(
        f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
        %r = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1]
            : (tensor<{rows}x{length}xf32>, tensor<f32>) -> tensor<{rows}xf32>
        return %r : tensor<{rows}xf32>""",
        arguments=f"%x: tensor<{rows}x{length}xf32>",
        results=f"tensor<{rows}xf32>",
    )
    reduction = load_source(text.encode(), name="test.mlir").main.body.operations[1]
    assert warps_of_rows(kernel_of(reduction)) == warps
