from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.hardware.microarchitecture import load_microarchitecture
from hespas.price.kernel import LOOP, kernel_of
from hespas.price.ptx.categories import terms_by_category, warps_of_rows
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


@pytest.mark.parametrize(
    ("kind", "element", "instructions"),
    [("power", "f32", 40), ("multiply", "bf16", 1), ("maximum", "f32", 0), ("power", "i32", 0)],
)
def test_arithmetic_takes_the_lanes_that_multiply(
    kind: str, element: str, instructions: int
) -> None:
    tensor = f"tensor<1024x1024x{element}>"
    text = main_function(
        f"%y = stablehlo.{kind} %x, %x : {tensor} return %y : {tensor}",
        arguments=f"%x: {tensor}",
        results=tensor,
    )
    op = load_source(text.encode(), name="test.mlir").main.body.operations[0]
    gpu = load_microarchitecture("A100_SXM_80GB")
    terms = terms_by_category(
        kernel_of(op), gpu, category=LOOP, bytes_moved=1.0, memory_bandwidth_bytes_per_s=1e12
    )
    lanes = gpu.multiprocessors * gpu.fused_lanes * gpu.pipe_efficiency
    assert terms.pipe_s == pytest.approx(instructions * 2**20 / (lanes * gpu.clock_hz))
