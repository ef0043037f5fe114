from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hespas.errors import ConfigError
from hespas.frontend.load import load_program
from hespas.price.estimate import Estimate
from hespas.price.methods import EstimatorSpec, estimator
from hespas.price.systolic import SystolicHardware
from hespas.split.regions import Compute
from hespas.split.strategies import split_options, split_program

HARDWARE = SystolicHardware(
    array_rows=128,
    array_columns=128,
    clock_hz=1e9,
    memory_bandwidth=1e15,
    vector_flops=1e12,
)

BATCHED = """
func.func @main(%a: tensor<4x512x128xbf16>, %b: tensor<4x128x256xbf16>) -> tensor<4x512x256xbf16> {
  %0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1]
    : (tensor<4x512x128xbf16>, tensor<4x128x256xbf16>) -> tensor<4x512x256xbf16>
  %1 = stablehlo.add %0, %0 : tensor<4x512x256xbf16>
  return %1 : tensor<4x512x256xbf16>
}
"""

GROUPED = """
func.func @main(%a: tensor<2x14x14x256xf32>, %b: tensor<3x3x64x512xf32>)
    -> tensor<2x12x12x512xf32> {
  %0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {} {batch_group_count = 1 : i64, feature_group_count = 4 : i64}
    : (tensor<2x14x14x256xf32>, tensor<3x3x64x512xf32>) -> tensor<2x12x12x512xf32>
  return %0 : tensor<2x12x12x512xf32>
}
"""


def estimated(path: Path, text: str, hardware: SystolicHardware = HARDWARE) -> Estimate:
    path.write_text(text)
    graph = split_program(load_program(path), split_options())
    (region,) = graph.regions
    assert isinstance(region, Compute)
    return estimator("systolic", EstimatorSpec(hardware=hardware)).estimate(region, graph.program)


def test_a_batch_is_so_many_products_and_the_rest_is_the_rooflines(tmp_path: Path) -> None:
    found = estimated(tmp_path / "p.mlir", BATCHED)
    fold = 2 * 128 + 128 + 512 - 2
    product = found.per_op["stablehlo.dot_general"]
    assert product.time_s == pytest.approx(4 * (2 * fold - 1) / 1e9)
    flops = 2 * 4 * 512 * 128 * 256
    assert product.flops == flops
    assert product.flops_utilisation == pytest.approx(
        flops / (2 * 128 * 128 * 1e9) / product.time_s
    )
    assert found.per_op["stablehlo.add"].time_s == pytest.approx(4 * 512 * 256 / 1e12)


def test_groups_of_a_convolution_are_products_of_patches(tmp_path: Path) -> None:
    found = estimated(tmp_path / "p.mlir", GROUPED)
    folds = -(-9 * 64 // 128)
    fold = 2 * 128 + 128 + 2 * 12 * 12 - 2
    assert found.time_s == pytest.approx(4 * (folds * fold - 1) / 1e9)


def test_a_slow_memory_or_edge_decides(tmp_path: Path) -> None:
    bytes_moved = 2 * 4 * (512 * 128 + 128 * 256 + 512 * 256)
    slow = SystolicHardware(
        array_rows=128, array_columns=128, clock_hz=1e9, memory_bandwidth=1e9, vector_flops=1e12
    )
    found = estimated(tmp_path / "p.mlir", BATCHED, slow)
    assert found.per_op["stablehlo.dot_general"].time_s == pytest.approx(bytes_moved / 1e9)
    starved = SystolicHardware(
        array_rows=128,
        array_columns=128,
        clock_hz=1e9,
        memory_bandwidth=1e15,
        vector_flops=1e12,
        sram_bandwidth=1e9,
    )
    edges = 4 * 2 * (128 * 128 + 512 * 256) * 2
    found = estimated(tmp_path / "p.mlir", BATCHED, starved)
    assert found.per_op["stablehlo.dot_general"].time_s == pytest.approx(edges / 1e9)


def test_a_program_that_would_not_run_is_refused() -> None:
    spec = EstimatorSpec(hardware=replace(HARDWARE, binary="python3"))
    with pytest.raises(ConfigError, match=r"binary has no effect on method 'systolic'.*drop it"):
        estimator("systolic", spec)


def test_an_array_must_be_described() -> None:
    with pytest.raises(ConfigError, match="needs a description of the array"):
        estimator("systolic", EstimatorSpec())
