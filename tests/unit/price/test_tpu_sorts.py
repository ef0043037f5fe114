"""Sorts on TPUs, against the static profiles of libtpu 0.0.42 (cycles)."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.price.tpu import sort_timing
from hespas.program.operations.traits import traffic
from hespas.program.program import Op
from programs import main_function


def sort(shape: tuple[int, ...], kind: str, dimension: int) -> Op:
    tensor = f"tensor<{'x'.join(map(str, shape))}x{kind}>"
    places = f"tensor<{'x'.join(map(str, shape))}xi32>"
    text = main_function(
        f"""%i = stablehlo.iota dim = {dimension} : {places}
        %s:2 = "stablehlo.sort"(%x, %i) ({{
        ^bb0(%a: tensor<{kind}>, %b: tensor<{kind}>, %c: tensor<i32>, %d: tensor<i32>):
          %g = stablehlo.compare LT, %a, %b : (tensor<{kind}>, tensor<{kind}>) -> tensor<i1>
          stablehlo.return %g : tensor<i1>
        }}) {{dimension = {dimension} : i64}} : ({tensor}, {places}) -> ({tensor}, {places})
        return %s#0 : {tensor}""",
        arguments=f"%x: {tensor}",
        results=tensor,
    )
    operations = load_source(text.encode(), name="test.mlir").main.body.operations
    return next(op for op in operations if op.kind == "sort")


def top_k(rows: int, length: int, most: int) -> Op:
    results = f"f32[{rows},{most}], s32[{rows},{most}]"
    call = 'custom-call(%x), custom_call_target="TopK", called_computations={%largest}'
    text = f"""HloModule top, is_scheduled=true
    %largest (a: f32[], b: f32[]) -> pred[] {{
      %a = f32[] parameter(0)
      %b = f32[] parameter(1)
      ROOT %c = pred[] compare(%a, %b), direction=GT
    }}
    ENTRY %main (x: f32[{rows},{length}]) -> ({results}) {{
      %x = f32[{rows},{length}] parameter(0)
      ROOT %t = ({results}) {call}
    }}"""
    operations = load_source(text.encode(), name="test.hlo").main.body.operations
    return next(op for op in operations if op.kind == "custom_call")


@pytest.mark.parametrize(
    ("op", "v5e", "v6e"),
    [
        (sort((64, 256), "f32", 1), 5701, 5840),
        (sort((64, 1024), "f32", 1), 39169, 40542),
        (sort((8, 4096), "f32", 1), 27545, 19807),
        (sort((512, 1024), "f32", 1), 195317, 173593),
        (sort((64, 1024), "bf16", 1), 40836, 41473),
        (sort((64, 1024), "i32", 1), 29963, 30457),
        (sort((1024, 64), "f32", 0), 39169, 40542),
        (sort((1024, 1024), "f32", 0), 387693, 344727),
        (sort((16384,), "i32", 0), 12441, 13274),
        (sort((65536,), "i32", 0), 65782, 62456),
        (top_k(64, 4096, 8), 26696, 25799),
        (top_k(64, 4096, 40), 125678, 123482),
        (top_k(64, 128256, 8), 669384, None),
    ],
)
def test_sorts_take_about_what_libtpu_s_profile_says(op: Op, v5e: int, v6e: int | None) -> None:
    for node, cycles in (("TPUv5e", v5e), ("TPUv6e", v6e)):
        device = load_device(node)
        timing = sort_timing(op, traffic(op), device)
        assert timing is not None
        assert device.clock_hz is not None
        if cycles is not None:
            assert timing.time_s * device.clock_hz == pytest.approx(cycles, rel=0.5)


def test_what_orders_nothing_has_no_such_time() -> None:
    device = load_device("TPUv5e")
    text = main_function(
        "%r = stablehlo.tanh %x : tensor<8xf32>\nreturn %r : tensor<8xf32>",
        arguments="%x: tensor<8xf32>",
        results="tensor<8xf32>",
    )
    op = load_source(text.encode(), name="test.mlir").main.body.operations[0]
    assert sort_timing(op, traffic(op), device) is None
    largest = top_k(8, 1024, 2)
    assert sort_timing(largest, traffic(largest), load_device("H100_80GB")) is None


def test_a_fusion_that_ends_in_the_largest_takes_as_long_as_they() -> None:
    """libtpu puts ``TopK`` behind what makes its operand, in one kernel without cycles."""
    results = "f32[64,8], s32[64,8]"
    text = f"""HloModule top, is_scheduled=true
    %fused (a: f32[64,4096]) -> ({results}) {{
      %a = f32[64,4096] parameter(0)
      %n = f32[64,4096] negate(%a)
      ROOT %t = ({results}) custom-call(%n), custom_call_target="TopK"
    }}
    ENTRY %main (x: f32[64,4096]) -> ({results}) {{
      %x = f32[64,4096] parameter(0)
      ROOT %f = ({results}) fusion(%x), kind=kCustom, calls=%fused
    }}"""
    main = load_source(text.encode(), name="test.hlo").main
    fusion = next(op for op in main.body.operations if op.kind == "fusion")
    device, alone = load_device("TPUv5e"), top_k(64, 4096, 8)
    found = sort_timing(fusion, traffic(fusion), device)
    expected = sort_timing(alone, traffic(alone), device)
    assert found is not None
    assert expected is not None
    assert found.time_s == pytest.approx(expected.time_s)
