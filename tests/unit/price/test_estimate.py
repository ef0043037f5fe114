from __future__ import annotations

import pytest

import hespas
from hespas.hardware.device import Device
from hespas.price.estimate import Bound, Estimate
from hespas.program.program import Program
from hespas.split.flatten import split_scheduled
from hespas.stages import estimate
from programs import settled, vector_main
from scheduled import kernel, loop, scheduled

DEVICE = Device(
    name="one", peak_flops=1e12, memory_bandwidth_bytes_per_s=1e12, launch_overhead_s=2e-6
)
PRODUCT = """
func.func @main(%a: tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16> {
  %r = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
    : (tensor<4096x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16>
  return %r : tensor<4096x4096xbf16>
}
"""
ADDITION = vector_main("%r = stablehlo.add %a, %a : tensor<8xf32>")


def total(program: Program, device: Device | str, method: str) -> Estimate:
    return hespas.stages.estimate(hespas.stages.split(program), device, method=method).total


@pytest.mark.parametrize("method", ["roofline", "measured", "kernel"])
def test_a_large_product_is_bound_by_arithmetic(method: str) -> None:
    op = total(settled(PRODUCT), "H100_80GB", method).total
    assert op.bound.compute_s > 0.9 * op.time_s
    assert op.bound.memory_s == 0


@pytest.mark.parametrize("method", ["roofline", "measured"])
def test_an_addition_is_bound_by_memory(method: str) -> None:
    op = total(settled(ADDITION), "H100_80GB", method).total
    assert op.bound == Bound(memory_s=op.time_s)


def test_launches_are_what_they_cost_every_round_of_a_loop() -> None:
    function, lines = loop("l", "a", kernel("w", "v"))
    program = scheduled(*lines, functions=function)
    op = estimate(split_scheduled(program), DEVICE).total.total
    assert op.bound.launch_s == pytest.approx(6 * 2e-6)
    assert op.bound.memory_s == pytest.approx(op.time_s - 6 * 2e-6)


@pytest.mark.parametrize("method", ["measured", "kernel"])
def test_a_small_kernel_is_bound_by_its_launch(method: str) -> None:
    graph = split_scheduled(scheduled(kernel("k", "a")))
    op = estimate(graph, "H100_80GB", method=method).total.total
    assert op.bound.launch_s > 0.9 * op.time_s
