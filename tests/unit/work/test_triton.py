"""Kernels of Triton are counted as one counts them by hand."""

from __future__ import annotations

import pytest

from hespas.errors import CostError
from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.price.methods import METHODS, EstimatorSpec
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Op, Program, all_ops
from hespas.split.options import SplitOptions
from hespas.split.strategies import split_program
from hespas.work.custom_call import TRITON
from hespas.work.expand import Leaf, expand
from triton_kernels import product, softmax

M, N, K = 256, 128, 512


def _program(text: str) -> Program:
    return load_source(text.encode(), name="kernel.mlir")


def _call(text: str) -> Op:
    (op,) = [
        op
        for op in all_ops(_program(text))
        if isinstance(op.attrs, CustomCallAttrs) and op.attrs.target == TRITON
    ]
    return op


def _leaf(text: str) -> Leaf:
    (leaf,) = expand(_call(text))
    assert isinstance(leaf, Leaf)
    return leaf


@pytest.mark.parametrize(("tile", "step"), [(64, 32), (32, 64)])
def test_a_product_by_blocks_is_2_m_n_k(tile: int, step: int) -> None:
    work = _leaf(product(M, N, K, tile=tile, step=step)).work
    # Beside it each step adds the block's product to the sums.
    assert dict(work.flops) == {"bf16": 2 * M * N * K, "f32": M * N * K // step}
    assert work.bytes_read == 2 * (M * K + K * N)
    assert work.bytes_written == 2 * M * N
    assert work.transcendentals == 0


def test_a_softmax_reads_and_writes_its_rows_once() -> None:
    rows, columns = 64, 256
    leaf = _leaf(softmax(rows, columns))
    elements = rows * columns
    # The maximum and the sum over a row, a difference and a quotient for each element.
    assert dict(leaf.work.flops) == {"f32": 2 * rows * (columns - 1) + 2 * elements}
    assert leaf.work.transcendentals == elements
    assert (leaf.work.bytes_read, leaf.work.bytes_written) == (4 * elements, 4 * elements)
    assert leaf.assumption == ""


def test_an_operation_without_a_model_is_named() -> None:
    text = product(M, N, K)
    broken = text.replace('ir = "ML', 'ir = "XX', 1)
    with pytest.raises(CostError, match=r"xla\.gpu\.triton' is not known: its kernel cannot be"):
        expand(_call(broken))
    without = text.replace("grid_x = ", "width = ").replace("grid_y = ", "height = ")
    with pytest.raises(CostError, match="holds no grid or no module"):
        expand(_call(without.replace("grid_z = ", "depth = ")))


def test_products_run_no_faster_than_large_ones_do() -> None:
    program = _program(product(2048, 2048, 2048))
    device = load_device("H100_80GB")
    method = METHODS["measured"].estimator(EstimatorSpec(device=device))
    (region,) = split_program(program, SplitOptions()).compute_regions
    estimate = method.estimate(region, program)
    flops = 2 * 2048**3
    assert 0.5 * 989.5e12 < flops / estimate.time_s < 0.9 * 989.5e12
    assert any("products in kernels of Triton" in note for note in estimate.notes)
