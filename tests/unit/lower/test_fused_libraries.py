from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.lower.fused import LIBRARY_ASSUMPTION, MODULE_ASSUMPTION, Writer, fused
from hespas.price.kernel import LIBRARY, kernel_of
from hespas.program.attrs import FusionAttrs
from hespas.program.program import Op, Program, Value, values_read
from hespas.work.expand import expand, total
from programs import main_function

HOPPER, BLACKWELL = (
    partial(fused, writer=Writer.LIBRARY, device=load_device(name))
    for name in ("H100_80GB", "B200_180GB")
)
ROWS, COLUMNS = "tensor<512x4096xbf16>", "tensor<4096x512xbf16>"
SMALL, MEANS, SUMS = "tensor<512x4096xf8E4M3FN>", "tensor<512xbf16>", "tensor<4096xbf16>"


def read(body: str, *, arguments: str, results: str) -> Program:
    text = main_function(body, arguments=arguments, results=results)
    return load_source(text.encode(), name="test.mlir")


def kernels(program: Program) -> list[Op]:
    return [op for op in program.main.body.operations if not op.traits.runs_nothing]


NORM = f"""%zero = stablehlo.constant dense<0.0> : tensor<bf16>
    %squares = stablehlo.multiply %x, %x : {ROWS}
    %mean = stablehlo.reduce(%squares init: %zero) applies stablehlo.add across dimensions = [1]
      : ({ROWS}, tensor<bf16>) -> {MEANS}
    %root = stablehlo.rsqrt %mean : {MEANS}
    %wide = stablehlo.broadcast_in_dim %root, dims = [0] : ({MEANS}) -> {ROWS}
    %normed = stablehlo.multiply %x, %wide : {ROWS}
    %product = stablehlo.multiply %normed, %g : {ROWS}
    %sums = stablehlo.reduce(%product init: %zero) applies stablehlo.add across dimensions = [0]
      : ({ROWS}, tensor<bf16>) -> {SUMS}
    %small = stablehlo.convert %normed : ({ROWS}) -> {SMALL}
    return %small, %sums : {SMALL}, {SUMS}"""


def norm() -> Program:
    return read(NORM, arguments=f"%x: {ROWS}, %g: {ROWS}", results=f"{SMALL}, {SUMS}")


def test_a_norm_its_sums_and_its_rounding_are_one_pass_over_memory() -> None:
    program = HOPPER(norm())
    (kernel,) = kernels(program)
    assert isinstance(kernel.attrs, FusionAttrs)
    assert kernel_of(kernel).category == LIBRARY
    rows, sums = 512 * 4096, 4096
    assert total(expand(kernel)).bytes_moved == 2 * 2 * rows + rows + 2 * sums
    assert len(kernels(fused(norm()))) > 1
    assert (program.fidelity, fused(norm()).fidelity) == ("library", "fused")
    assert LIBRARY_ASSUMPTION in program.assumptions


def gradient_of_weights() -> Program:
    body = f"""%a = stablehlo.convert %x : ({ROWS}) -> {SMALL}
    %b = stablehlo.convert %g : ({ROWS}) -> {SMALL}
    %forward = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
      : ({SMALL}, tensor<4096x4096xf8E4M3FN>) -> {ROWS}
    %weights = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0]
      : ({SMALL}, {SMALL}) -> tensor<4096x4096xbf16>
    return %forward, %weights : {ROWS}, tensor<4096x4096xbf16>"""
    return read(
        body,
        arguments=f"%x: {ROWS}, %g: {ROWS}, %w: tensor<4096x4096xf8E4M3FN>",
        results=f"{ROWS}, tensor<4096x4096xbf16>",
    )


@pytest.mark.parametrize(("of_part", "written"), [(HOPPER, 3), (BLACKWELL, 2)])
def test_operands_of_8_bits_are_written_turned_as_they_are_rounded(
    of_part: Callable[[Program], Program], written: int
) -> None:
    program = of_part(gradient_of_weights())
    rounding = [op for op in kernels(program) if op.kind == "fusion"]
    # One in both orders, one turned alone; the weights are there as they are needed.
    assert sum(len(op.results) for op in rounding) == written
    assert len(rounding) == 2


def test_nothing_is_merged_across_a_product_or_with_an_update_in_place() -> None:
    square = "tensor<512x512xbf16>"
    body = f"""%a = stablehlo.tanh %x : {square}
    %b = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
      : ({square}, {square}) -> {square}
    %c = stablehlo.add %a, %b : {square}
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %d = stablehlo.dynamic_update_slice %stack, %c, %zero, %zero
      : (tensor<1024x512xbf16>, {square}, tensor<i32>, tensor<i32>) -> tensor<1024x512xbf16>
    return %d : tensor<1024x512xbf16>"""
    program = read(
        body,
        arguments=f"%x: {square}, %stack: tensor<1024x512xbf16>",
        results="tensor<1024x512xbf16>",
    )
    names = [op.kind for op in kernels(HOPPER(program))]
    assert names.count("dot_general") + names.count("fusion") >= 3


def test_a_training_step_moves_fewer_bytes_in_an_order_that_is_possible(
    llama: Program,
) -> None:
    program = BLACKWELL(llama)
    known: set[Value] = set(program.main.body.arguments)
    for op in program.main.body.operations:
        assert known.issuperset(values_read(op))
        known.update(op.results)
    moved = [
        total(expand(each.main.body.operations[:-1], each.functions))
        for each in (program, fused(llama))
    ]
    assert moved[0].bytes_moved < moved[1].bytes_moved
    assert moved[0].total_flops == pytest.approx(moved[1].total_flops, rel=0.01)


def in_two_modules() -> Program:
    body = f"""%sum = stablehlo.add %x, %y : {ROWS} loc("jit(f)/layers/add")
    %twice = stablehlo.add %sum, %sum : {ROWS} loc("jit(f)/layers/add")
    %normed = stablehlo.multiply %twice, %g : {ROWS} loc("jit(f)/layers/norm/mul")
    %small = stablehlo.convert %normed : ({ROWS}) -> {SMALL} loc("jit(f)/layers/norm/convert")
    return %small, %twice : {SMALL}, {ROWS}"""
    return read(body, arguments=f"%x: {ROWS}, %y: {ROWS}, %g: {ROWS}", results=f"{SMALL}, {ROWS}")


@pytest.mark.parametrize(("by_module", "arrays"), [(False, 4), (True, 5)])
def test_a_module_reads_again_what_the_one_before_it_wrote(by_module: bool, arrays: int) -> None:
    program = BLACKWELL(in_two_modules(), by_module=by_module)
    assert len(kernels(program)) == 1 + by_module
    rows = 512 * 4096
    moved = sum(total(expand(kernel)).bytes_moved for kernel in kernels(program))
    assert moved == 2 * rows * arrays + rows
    assert (MODULE_ASSUMPTION in program.assumptions) is by_module


def test_a_gradient_computes_again_what_it_needs_in_its_own_kernel() -> None:
    backward = "jit(f)/transpose(jvp(layers))"
    body = f"""%again = stablehlo.multiply %x, %g : {ROWS}
      loc("{backward}/checkpoint/rematted_computation/norm/mul")
    %made = stablehlo.multiply %again, %y : {ROWS} loc("{backward}/checkpoint/norm/mul")
    return %made : {ROWS}"""
    given = read(body, arguments=f"%x: {ROWS}, %y: {ROWS}, %g: {ROWS}", results=ROWS)
    (kernel,) = kernels(BLACKWELL(given, by_module=True))
    assert total(expand(kernel)).bytes_moved == 2 * 512 * 4096 * 4
