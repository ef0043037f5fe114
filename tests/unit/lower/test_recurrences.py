"""A loop that carries states along a sequence is one kernel of a library."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.lower.fused import Writer, fused
from hespas.lower.recurrences import RECURRENCE
from hespas.price.measured import measured
from hespas.price.methods import EstimatorSpec
from hespas.price.ptx.kernels import kernel_pricer
from hespas.program.attrs import KernelAttrs
from hespas.program.program import Op, Program, all_ops
from hespas.work.expand import Leaf, expand, total
from programs import main_function

TURNS, BLOCKS, SIDE = 16, 8, 64


def recurrence(*, side: int = SIDE, batched: bool = True) -> Program:
    """Return states S of (blocks, side, side): each turn makes Q S of a row of a stack."""
    state = f"tensor<{BLOCKS}x{side}x{side}xf32>"
    stack = f"tensor<{TURNS}x{BLOCKS}x{side}x{side}xf32>"
    row = f"tensor<1x{BLOCKS}x{side}x{side}xf32>"
    made = "batching_dims = [0] x [0], contracting_dims = [2] x [1]"
    whole = f"tensor<{BLOCKS * side}x{side}xf32>"
    product = f"%made = stablehlo.dot_general %query, %s, {made} : ({state}, {state}) -> {state}"
    if not batched:
        product = f"""%flat = stablehlo.reshape %query : ({state}) -> {whole}
      %all = stablehlo.dot_general %flat, %w, contracting_dims = [1] x [0]
        : ({whole}, tensor<{side}x{side}xf32>) -> {whole}
      %made = stablehlo.reshape %all : ({whole}) -> {state}"""
    starts = "tensor<i32>, " * 4
    body = f"""%zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %turns = stablehlo.constant dense<{TURNS}> : tensor<i32>
    %out:4 = stablehlo.while(%i = %zero, %rows = %queries, %s = %first, %kept = %stack)
      : tensor<i32>, {stack}, {state}, {stack}
    cond {{
      %more = stablehlo.compare LT, %i, %turns : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %cut = stablehlo.dynamic_slice %rows, %i, %zero, %zero, %zero,
        sizes = [1, {BLOCKS}, {side}, {side}] : ({stack}, {starts[:-2]}) -> {row}
      %query = stablehlo.reshape %cut : ({row}) -> {state}
      {product}
      %changed = stablehlo.add %s, %made : {state}
      %one_row = stablehlo.reshape %made : ({state}) -> {row}
      %put = stablehlo.dynamic_update_slice %kept, %one_row, %i, %zero, %zero, %zero
        : ({stack}, {row}, {starts[:-2]}) -> {stack}
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %rows, %changed, %put : tensor<i32>, {stack}, {state}, {stack}
    }}
    return %out#2, %out#3 : {state}, {stack}"""
    arguments = f"%queries: {stack}, %first: {state}, %stack: {stack}"
    if not batched:
        arguments += f", %w: tensor<{side}x{side}xf32>"
    text = main_function(body, arguments=arguments, results=f"{state}, {stack}")
    return load_source(text.encode(), name="test.mlir")


def kernels(program: Program) -> list[Op]:
    return [op for op in program.main.body.operations if not op.traits.runs_nothing]


def test_it_reads_and_writes_each_array_once_and_computes_what_the_loop_does() -> None:
    program = recurrence()
    (kernel,) = kernels(fused(program, writer=Writer.LIBRARY))
    assert kernel.kind == RECURRENCE
    assert isinstance(kernel.attrs, KernelAttrs)
    assert (kernel.attrs.rounds, kernel.attrs.blocks) == (TURNS, BLOCKS)
    (loop,) = [op for op in all_ops(program) if op.kind == "while"]
    work = total(expand(kernel))
    assert work.flops == total(expand(loop)).flops
    state = BLOCKS * SIDE * SIDE * 4
    assert work.bytes_read == pytest.approx(state * (TURNS + 1), abs=64)
    assert work.bytes_written == state * (TURNS + 1)


@pytest.mark.parametrize(
    "program", [recurrence(side=512), recurrence(batched=False)], ids=["large", "with weights"]
)
def test_loops_with_large_states_or_products_with_weights_stay(program: Program) -> None:
    made = fused(program, writer=Writer.LIBRARY)
    assert any(op.kind == "while" for op in made.main.body.operations)


def test_compilers_keep_the_loop() -> None:
    assert any(op.kind == "while" for op in fused(recurrence()).main.body.operations)


def test_its_blocks_take_a_multiprocessor_each_and_wait_for_memory_each_turn() -> None:
    device = load_device("H100_80GB")
    priced = measured(EstimatorSpec(device=device), kernels=kernel_pricer(device, None))
    (kernel,) = kernels(fused(recurrence(), writer=Writer.LIBRARY))
    (leaf,) = expand(kernel)
    assert isinstance(leaf, Leaf)
    time_s = priced.time(leaf, is_kernel=True).time_s
    products = next(count for name, count in leaf.work.flops if name == "tf32")
    alone_s = products / (device.rate("tf32") * BLOCKS / 132)
    assert TURNS * 0.27e-6 + alone_s < time_s < 2 * (TURNS * 0.27e-6 + alone_s) + 5e-6
