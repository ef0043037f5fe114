"""Products whose operands are widened from few bits: libraries' kernels read those bits."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.lower.fused import Writer, fused
from hespas.price.kernel import kernel_of
from hespas.program.program import Op, Program
from hespas.work.expand import expand, total
from programs import main_function

ROWS, WEIGHTS = "tensor<64x4096xbf16>", "tensor<512x4096xf4E2M1FN>"
SCALES = "tensor<512x128xf8E8M0FNU>"
MADE = "tensor<64x512xbf16>"
SPLIT, WIDE = "tensor<512x128x32xbf16>", "tensor<512x4096xbf16>"
BODY = f"""%wide = stablehlo.convert %w : ({WEIGHTS}) -> {WIDE}
    %split = stablehlo.reshape %wide : ({WIDE}) -> {SPLIT}
    %scale = stablehlo.convert %s : ({SCALES}) -> tensor<512x128xbf16>
    %spread = stablehlo.broadcast_in_dim %scale, dims = [0, 1] : (tensor<512x128xbf16>) -> {SPLIT}
    %scaled = stablehlo.multiply %split, %spread : {SPLIT}
    %flat = stablehlo.reshape %scaled : ({SPLIT}) -> {WIDE}
    %made = stablehlo.dot_general %x, %flat, contracting_dims = [1] x [1]
      : ({ROWS}, {WIDE}) -> {MADE}
    return %made : {MADE}"""


def read(body: str = BODY) -> Program:
    arguments = f"%x: {ROWS}, %w: {WEIGHTS}, %s: {SCALES}"
    return load_source(
        main_function(body, arguments=arguments, results=MADE).encode(), name="test.mlir"
    )


def kernels(program: Program) -> list[Op]:
    return [op for op in program.main.body.operations if not op.traits.runs_nothing]


def test_a_library_reads_weights_in_their_bits_and_their_scales() -> None:
    (kernel,) = kernels(fused(read(), writer=Writer.LIBRARY, device=load_device("H100_80GB")))
    assert kernel.kind == "scaled_dot"
    work = total(expand(kernel))
    assert work.flops == (("bf16", 2 * 64 * 512 * 4096),)
    assert work.bytes_read == 2 * 64 * 4096 + 512 * 4096 // 2 + 512 * 128
    (product,) = kernel_of(kernel).products
    assert (product.lhs.element.bits, product.rhs.element.bits, product.scale_bits) == (16, 4, 0.25)


def test_xla_widens_them_in_a_kernel_of_its_own() -> None:
    widening, product = kernels(fused(read()))
    assert (widening.kind, product.kind) == ("fusion", "dot_general")


@pytest.mark.parametrize("other", ["multiply %split, %split", "add %split, %spread"])
def test_other_operands_are_written_first(other: str) -> None:
    body = BODY.replace("multiply %split, %spread", other)
    program = fused(read(body), writer=Writer.LIBRARY, device=load_device("H100_80GB"))
    assert [op.kind for op in kernels(program)] == ["fusion", "dot_general"]


def test_a_product_of_a_constant_is_no_operand_of_few_bits() -> None:
    body = f"""%two = stablehlo.constant dense<2.0> : {WIDE}
    %wide = stablehlo.convert %w : ({WEIGHTS}) -> {WIDE}
    %scaled = stablehlo.multiply %wide, %two : {WIDE}
    %made = stablehlo.dot_general %x, %scaled, contracting_dims = [1] x [1]
      : ({ROWS}, {WIDE}) -> {MADE}
    return %made : {MADE}"""
    assert all(op.kind != "scaled_dot" for op in kernels(fused(read(body), writer=Writer.LIBRARY)))


CACHE, HEADS = "tensor<8x64x1024xf8E4M3FN>", "tensor<8x64x1024xbf16>"
OVER_CACHE = f"""%wide = stablehlo.convert %c : ({CACHE}) -> {HEADS}
    %scores = stablehlo.dot_general %q, %wide, batching_dims = [0] x [0],
      contracting_dims = [2] x [1]
      : (tensor<8x4x64xbf16>, {HEADS}) -> tensor<8x4x1024xbf16>
    return %scores : tensor<8x4x1024xbf16>"""


def over_cache(cache: str = CACHE) -> Program:
    text = main_function(
        OVER_CACHE.replace(CACHE, cache),
        arguments=f"%q: tensor<8x4x64xbf16>, %c: {cache}",
        results="tensor<8x4x1024xbf16>",
    )
    return load_source(text.encode(), name="test.mlir")


@pytest.mark.parametrize("name", ["H100_80GB", "MI355X"])
def test_a_library_reads_a_cache_of_8_bits_as_it_is(name: str) -> None:
    (kernel,) = kernels(fused(over_cache(), writer=Writer.LIBRARY, device=load_device(name)))
    work = total(expand(kernel))
    assert (kernel.kind, work.flops) == ("dot_general", (("bf16", 2 * 8 * 4 * 64 * 1024),))
    assert work.bytes_read == 2 * 8 * 4 * 64 + 8 * 64 * 1024


def test_a_library_does_not_round_operands_of_32_bits_while_it_loads_them() -> None:
    cache = CACHE.replace("f8E4M3FN", "f32")
    made = fused(over_cache(cache), writer=Writer.LIBRARY, device=load_device("MI355X"))
    assert [op.kind for op in kernels(made)] == ["fusion", "dot_general"]
