# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import hespas
from hespas.frontend.load import load_source
from hespas.lower.reductions import SCANS
from hespas.program.attrs import WindowAttrs
from hespas.program.program import Op
from hespas.program.types import TensorType
from programs import main_function
from rewriting import rewritten


def scan(length: int, *, padding: tuple[int, int]) -> list[Op]:
    """Return the operations of a sum over a window as long as its axis, padded so."""
    kind, made = f"tensor<8x{length}xf32>", f"tensor<8x{1 + sum(padding)}xf32>"
    text = main_function(
        f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
        %r = "stablehlo.reduce_window"(%x, %zero) ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %c = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %c : tensor<f32>
        }}) {{window_dimensions = array<i64: 1, {length}>,
          padding = dense<[[0, 0], [{padding[0]}, {padding[1]}]]> : tensor<2x2xi64>}}
          : ({kind}, tensor<f32>) -> {made}
        return %r : {made}""",
        arguments=f"%x: {kind}",
        results=made,
    )
    return list(load_source(text.encode(), name="test.mlir").main.body.operations[:-1])


def windows(ops: list[Op]) -> list[tuple[int, ...]]:
    return [op.attrs.size for op in ops if isinstance(op.attrs, WindowAttrs)]


@pytest.mark.parametrize("padding", [(4095, 0), (0, 4095)], ids=["forward", "reversed"])
def test_a_long_sum_is_opened_into_pieces_of_sixteen(padding: tuple[int, int]) -> None:
    given = scan(4096, padding=padding)
    opened = rewritten(given, SCANS)
    assert windows(opened) == [(1, 1, 16), (1, 1, 16), (1, 16)]
    assert opened[-1].results == given[-1].results
    kinds = [op.kind for op in opened]
    assert [kinds.count(each) for each in ("slice", "pad", "add")] == [4, 2, 2]


def test_pieces_that_do_not_divide_a_sum_are_filled_up_and_cut() -> None:
    opened = rewritten(scan(1000, padding=(999, 0)), SCANS)
    assert windows(opened) == [(1, 1, 16), (1, 1, 16), (1, 4)]
    made = [op.results[0].type for op in opened if op.kind == "pad"]
    shapes = [kind.shape for kind in made if isinstance(kind, TensorType)]
    assert shapes == [(8, 1008), (8, 64), (8, 5), (8, 64)]


@pytest.mark.parametrize(
    ("length", "padding"), [(16, (15, 0)), (64, (63, 63)), (64, (62, 1))], ids=str
)
def test_a_short_sum_and_other_windows_stay(length: int, padding: tuple[int, int]) -> None:
    given = scan(length, padding=padding)
    assert rewritten(given, SCANS) == given


def cumulative(values: Any) -> Any:
    return jnp.cumsum(values, 1)


def tree(values: Any) -> Any:
    return lax.associative_scan(jnp.add, values, axis=1)


def recurrence(values: Any) -> Any:
    def combined(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return lax.associative_scan(combined, (values, values), axis=1)


def log_sums(values: Any) -> Any:
    return lax.cumlogsumexp(values, 1)


# XLA's kernels of `cumlogsumexp`, whose windows are each computed once.
def test_windows_that_combine_by_more_than_one_operation_are_written(tmp_path: Path) -> None:
    file = tmp_path / "scan.mlir"
    values = jax.ShapeDtypeStruct((256, 32768), jnp.float32)
    file.write_text(jax.jit(log_sums).trace(values).lower().as_text())
    predicted = hespas.predict(file, "H100_80GB", devices=1, fidelity="fused")
    assert predicted.estimates.total.total.bytes_moved == pytest.approx(145.4e6, rel=0.01)


# What jaxlib 0.10.2 compiles for H100: time, and bytes that kernels move.
@pytest.mark.parametrize(
    ("function", "compiled_s", "compiled_bytes"),
    [
        (cumulative, 437.3e-6, 893.6e6),
        (tree, 588.6e-6, 1562.3e6),
        (recurrence, 1267.3e-6, 3393.7e6),
    ],
)
def test_scans_take_about_as_long_as_compiled(
    function: Callable[..., Any], compiled_s: float, compiled_bytes: float, tmp_path: Path
) -> None:
    file = tmp_path / "scan.mlir"
    values = jax.ShapeDtypeStruct((64, 8192, 128), jnp.float32)
    file.write_text(jax.jit(function).trace(values).lower().as_text())
    predicted = hespas.predict(file, "H100_80GB", devices=1, fidelity="fused")
    moved = predicted.estimates.total.total.bytes_moved
    assert predicted.step_time_s == pytest.approx(compiled_s, rel=0.1)
    assert moved == pytest.approx(compiled_bytes, rel=0.1)
