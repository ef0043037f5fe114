"""A step of four layers in a loop that saves a value of each on the host, as JAX lowers it."""

from __future__ import annotations

import pytest

from hespas.errors import UnsupportedError
from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from hespas.memory.usage import memory_use
from hespas.prediction.composition import predict
from hespas.prediction.options import AS_GIVEN, EstimateOptions, PredictOptions
from hespas.program.program import Op, Program, nested_ops
from hespas.program.types import HOST_MEMORY, TensorType
from hespas.work.fusion import host_traffic

ROW, STACK = "tensor<1024xf32>", "tensor<4x1024xf32>"
ROW_BYTES, ROUNDS = 1024 * 4, 4


def placed(name: str, operand: str, kind: str) -> str:
    return (
        f"{name} = stablehlo.custom_call @annotate_device_placement({operand}) "
        "{has_side_effect = true, mhlo.frontend_attributes = {_xla_buffer_placement = "
        f'"{kind}"}}}} : ({ROW}) -> {ROW}'
    )


# The two stacks begin as one value, and both loops call functions of both.
OFFLOADED = f"""
func.func public @main(%x: {ROW}) -> ({ROW}, {STACK}) {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {STACK}
  %start = stablehlo.constant dense<0> : tensor<i32>
  %0:4 = stablehlo.while(%i = %start, %a = %x, %there = %empty, %here = %empty)
      : tensor<i32>, {ROW}, {STACK}, {STACK}
  cond {{
    %end = stablehlo.constant dense<{ROUNDS}> : tensor<i32>
    %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %b = stablehlo.cosine %a : {ROW}
    {placed("%saved", "%b", "pinned_host")}
    %s = func.call @set(%there, %saved, %i) : ({STACK}, {ROW}, tensor<i32>) -> {STACK}
    %h = func.call @set(%here, %b, %i) : ({STACK}, {ROW}, tensor<i32>) -> {STACK}
    %one = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %b, %s, %h : tensor<i32>, {ROW}, {STACK}, {STACK}
  }}
  %1:3 = stablehlo.while(%i = %start, %a = %0#1, %there = %0#2) : tensor<i32>, {ROW}, {STACK}
  cond {{
    %end = stablehlo.constant dense<{ROUNDS}> : tensor<i32>
    %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %zero_1 = stablehlo.constant dense<0> : tensor<i32>
    %s = stablehlo.dynamic_slice %there, %i, %zero_1, sizes = [1, 1024]
        : ({STACK}, tensor<i32>, tensor<i32>) -> tensor<1x1024xf32>
    %r = stablehlo.reshape %s : (tensor<1x1024xf32>) -> {ROW}
    {placed("%back", "%r", "device")}
    %b = stablehlo.multiply %a, %back : {ROW}
    %one = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %b, %there : tensor<i32>, {ROW}, {STACK}
  }}
  return %1#1, %0#3 : {ROW}, {STACK}
}}
func.func private @set(%s: {STACK}, %u: {ROW}, %i: tensor<i32>) -> {STACK} {{
  %r = stablehlo.reshape %u : ({ROW}) -> tensor<1x1024xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %d = stablehlo.dynamic_update_slice %s, %r, %i, %zero
      : ({STACK}, tensor<1x1024xf32>, tensor<i32>, tensor<i32>) -> {STACK}
  return %d : {STACK}
}}
"""


def loaded(text: str) -> Program:
    return load_source(text.encode(), name="step.mlir")


def operations(program: Program, kind: str) -> list[Op]:
    return [op for op in nested_ops(program.main.body) if op.kind == kind]


def spaces(op: Op) -> list[int]:
    kinds = [value.type for value in (*op.operands, *op.results)]
    return [kind.memory_space for kind in kinds if isinstance(kind, TensorType) and kind.rank]


def test_a_buffer_that_a_loop_fills_on_the_host_is_there_and_another_is_not() -> None:
    program = loaded(OFFLOADED)
    there, here = operations(program, "dynamic_update_slice")
    assert spaces(there) == [HOST_MEMORY] * 3
    assert spaces(here) == [0] * 3
    cut, *_ = operations(program, "dynamic_slice")
    assert spaces(cut) == [HOST_MEMORY] * 2
    assert spaces(operations(program, "multiply")[0]) == [0] * 3
    # The buffer on the host is allocated there: the zeros are not moved.
    (allocated,) = [op for op in operations(program, "custom_call") if not op.operands]
    assert spaces(allocated) == [HOST_MEMORY]
    assert program.functions.keys() == {"main"}


def test_only_placements_move_and_what_they_move() -> None:
    program = loaded(OFFLOADED)
    moved = [host_traffic(op) for op in nested_ops(program.main.body) if host_traffic(op)]
    assert [(traffic.to_host_bytes, traffic.from_host_bytes) for traffic in moved] == [
        (ROW_BYTES, 0),
        (0, ROW_BYTES),
    ]


@pytest.mark.parametrize("fidelity", ["exported", "fused"])
def test_a_step_moves_every_round(fidelity: str) -> None:
    options = PredictOptions(
        compile=AS_GIVEN, estimate=EstimateOptions(node="H100_80GB", method="roofline")
    )
    program = loaded(OFFLOADED)
    if fidelity == "fused":
        program = fused(program, options.compile.options)
    prediction = predict(options, program=program)
    assert prediction.host_transfer_bytes == 2 * ROUNDS * ROW_BYTES
    transfers_s = prediction.host_transfer_s
    assert transfers_s == pytest.approx(2 * ROUNDS * ROW_BYTES / 64e9, rel=1e-3)
    parts_s = prediction.compute_s + prediction.exposed_host_transfer_s
    assert parts_s == pytest.approx(prediction.step_time_s, rel=1e-6, abs=1e-11)


def test_memory_on_the_host_is_not_the_devices() -> None:
    text = OFFLOADED.replace('"pinned_host"', '"device"')
    offloaded, device = memory_use(loaded(OFFLOADED)), memory_use(loaded(text))
    assert offloaded.host is not None
    assert offloaded.peak_bytes <= device.peak_bytes - ROUNDS * ROW_BYTES
    assert offloaded.host_bytes >= ROUNDS * ROW_BYTES
    assert device.host is None


def test_an_argument_of_the_hosts_memory_is_there() -> None:
    text = f"""
func.func public @main(%x: {ROW} {{mhlo.memory_kind = "pinned_host"}}) -> {ROW} {{
  {placed("%y", "%x", "device")}
  return %y : {ROW}
}}"""
    use = memory_use(loaded(text))
    assert (use.argument_bytes, use.host_bytes) == (0, ROW_BYTES)


def test_a_result_of_the_hosts_memory_is_moved_there_once() -> None:
    for last in ("%y = stablehlo.cosine %x : " + ROW, placed("%y", "%x", "pinned_host")):
        text = f"""
func.func public @main(%x: {ROW}) -> ({ROW} {{mhlo.memory_kind = "pinned_host"}}) {{
  {last}
  return %y : {ROW}
}}"""
        program = loaded(text)
        moved = [host_traffic(op).to_host_bytes for op in program.main.body.operations]
        assert sum(moved) == ROW_BYTES
        assert memory_use(program).host_bytes == ROW_BYTES


def test_unknown_memory_kinds_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="memory kind 'elsewhere' is not known"):
        loaded(OFFLOADED.replace('"pinned_host"', '"elsewhere"'))


def test_a_program_without_placements_on_the_host_stays_as_it_is() -> None:
    program = loaded(OFFLOADED.replace('"pinned_host"', '"device"'))
    assert program.functions.keys() == {"main", "set"}
    assert not any(HOST_MEMORY in spaces(op) for op in nested_ops(program.main.body))
