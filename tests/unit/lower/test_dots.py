from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.lower.dots import (
    ROUNDED_OPERANDS,
    with_held_weights_merged,
    with_merged_dots,
)
from hespas.lower.fused import Writer, fused
from hespas.program.program import Op
from hespas.work.gemm import gemms
from programs import main_function
from rewriting import rewritten


def merged(rows: int, *, chained: bool = False) -> list[Op]:
    tokens, weights, made = f"{rows}x512xf32", "512x8x64xf32", f"{rows}x8x64xf32"
    types = f"(tensor<{tokens}>, tensor<{weights}>) -> tensor<{made}>"
    second, other = ("%w", "%w2") if chained else ("%v", "%v")
    text = main_function(
        f"""%q = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : {types}
        %one = stablehlo.slice %q [0:1, 0:8, 0:64] : (tensor<{made}>) -> tensor<1x8x64xf32>
        %all = stablehlo.broadcast_in_dim %one, dims = [0, 1, 2]
          : (tensor<1x8x64xf32>) -> tensor<{weights}>
        %w2 = stablehlo.add %all, {second} : tensor<{weights}>
        %k = stablehlo.dot_general %x, {other}, contracting_dims = [1] x [0] : {types}
        return %q, %k : tensor<{made}>, tensor<{made}>""",
        arguments=f"%x: tensor<{tokens}>, %w: tensor<{weights}>, %v: tensor<{weights}>",
        results=f"tensor<{made}>, tensor<{made}>",
    )
    program = load_source(text.encode(), name="test.mlir")
    return [*with_merged_dots(program.main.body).operations[:-1]]


def test_small_products_of_one_operand_are_one() -> None:
    (product,) = [gemm for op in merged(1024) for gemm in gemms(op)]
    assert (product.m, product.n, product.k) == (1024, 1024, 512)


@pytest.mark.parametrize("rows", [65536])
def test_large_products_are_left_alone(rows: int) -> None:
    assert [op.kind for op in merged(rows)].count("dot_general") == 2


def test_a_product_is_not_merged_with_one_that_it_needs() -> None:
    assert [op.kind for op in merged(1024, chained=True)].count("dot_general") == 2


def test_results_are_cut_out_of_the_merged_product() -> None:
    kinds = [op.kind for op in merged(1024)]
    assert kinds.count("slice") == 2 + 1
    assert kinds.count("concatenate") == 1


def test_operands_are_rounded_where_the_algorithm_says_so() -> None:
    wide = "tensor<64x64xf32>"
    algorithm = (
        "<lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, "
        "lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, "
        "allow_imprecise_accumulation = false>"
    )
    text = main_function(
        f"""%r = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0],
          precision = [DEFAULT, DEFAULT], algorithm = {algorithm} : ({wide}, {wide}) -> {wide}
        return %r : {wide}""",
        arguments=f"%a: {wide}",
        results=wide,
    )
    given = load_source(text.encode(), name="test.mlir").main.body.operations[:-1]
    made = rewritten(given, ROUNDED_OPERANDS)
    assert [op.kind for op in made] == ["convert", "convert", "dot_general"]
    assert made[-1].results == given[-1].results


def held_weights_merged(*, is_made: bool) -> list[Op]:
    stack, weight, rows = "4x512x256xbf16", "512x256xbf16", "8x512xbf16"
    cut, made = "1x512x256xbf16", "8x256xbf16"
    types = f"(tensor<{rows}>, tensor<{weight}>) -> tensor<{made}>"
    text = main_function(
        f"""%cut = stablehlo.slice %stack [0:1, 0:512, 0:256] : (tensor<{stack}>) -> tensor<{cut}>
        %v = stablehlo.reshape %cut : (tensor<{cut}>) -> tensor<{weight}>
        %n = stablehlo.negate %v : tensor<{weight}>
        %q = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : {types}
        %k = stablehlo.dot_general %x, {"%n" if is_made else "%v"}, contracting_dims = [1] x [0]
          : {types}
        return %q, %k : tensor<{made}>, tensor<{made}>""",
        arguments=f"%x: tensor<{rows}>, %w: tensor<{weight}>, %stack: tensor<{stack}>",
        results=f"tensor<{made}>, tensor<{made}>",
    )
    program = load_source(text.encode(), name="test.mlir")
    return [*with_held_weights_merged(program.main.body).operations[:-1]]


def test_held_weights_are_one_matrix_that_nothing_puts_together() -> None:
    operations = held_weights_merged(is_made=False)
    (product,) = [gemm for op in operations for gemm in gemms(op)]
    assert (product.m, product.n, product.k) == (8, 512, 512)
    assert "concatenate" not in [op.kind for op in operations]
    assert [len(op.operands) for op in operations if op.kind == "bitcast"] == [2]


def test_weights_that_a_step_makes_are_multiplied_one_by_one() -> None:
    kinds = [op.kind for op in held_weights_merged(is_made=True)]
    assert kinds.count("dot_general") == 2
    assert "bitcast" not in kinds


def test_held_weights_of_other_ranks_are_one_matrix() -> None:
    rows, heads, numbers = "8x512xbf16", "4x64x512xbf16", "16x512xbf16"
    made, more = "8x4x64xbf16", "8x16xbf16"
    text = main_function(
        f"""%q = stablehlo.dot_general %x, %w, contracting_dims = [1] x [2]
          : (tensor<{rows}>, tensor<{heads}>) -> tensor<{made}>
        %k = stablehlo.dot_general %x, %v, contracting_dims = [1] x [1]
          : (tensor<{rows}>, tensor<{numbers}>) -> tensor<{more}>
        return %q, %k : tensor<{made}>, tensor<{more}>""",
        arguments=f"%x: tensor<{rows}>, %w: tensor<{heads}>, %v: tensor<{numbers}>",
        results=f"tensor<{made}>, tensor<{more}>",
    )
    main = load_source(text.encode(), name="test.mlir").main
    body = with_held_weights_merged(main.body)
    (product,) = [gemm for op in body.operations for gemm in gemms(op)]
    assert (product.m, product.n, product.k) == (8, 256 + 16, 512)
    assert [gemm.n for op in main.body.operations for gemm in gemms(op)] == [256, 16]


@pytest.mark.parametrize(("writer", "products"), [(Writer.GPU, 1), (Writer.TPU, 2)])
def test_libtpu_multiplies_small_weights_one_by_one(writer: Writer, products: int) -> None:
    """libtpu 0.0.42 puts no weights of DeepSeek-V3's latent projections together for v6e."""
    rows, weight, made = "8x512xbf16", "512x256xbf16", "8x256xbf16"
    types = f"(tensor<{rows}>, tensor<{weight}>) -> tensor<{made}>"
    text = main_function(
        f"""%q = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : {types}
        %k = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : {types}
        return %q, %k : tensor<{made}>, tensor<{made}>""",
        arguments=f"%x: tensor<{rows}>, %w: tensor<{weight}>, %v: tensor<{weight}>",
        results=f"tensor<{made}>, tensor<{made}>",
    )
    program = fused(load_source(text.encode(), name="test.mlir"), writer=writer)
    assert len([gemm for op in program.main.body.operations for gemm in gemms(op)]) == products
