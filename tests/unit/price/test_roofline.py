"""The roofline by hand: max(FLOPs / peak, bytes / bandwidth), on the tutorial's A100."""

from __future__ import annotations

import pytest

from hespas.errors import HardwareError
from hespas.hardware.device import Device
from hespas.price.estimate import Estimate, OpEstimate
from hespas.price.methods import RooflineOptions
from hespas.price.roofline import TRANSCENDENTAL, Roofline
from hespas.program.work import Work
from hespas.split.options import SplitOptions
from hespas.split.regions import RegionGraph
from hespas.split.strategies import split_program
from programs import main_function, read

RATES = {
    "f64": 19.5e12,
    "f32": 19.5e12,
    "tf32": 156e12,
    "bf16": 312e12,
    "f16": 312e12,
    "i8": 624e12,
}
BANDWIDTH = 1555e9
A100 = Device(
    name="a100",
    peak_flops=9.7e12,
    memory_bandwidth_bytes_per_s=BANDWIDTH,
    per_datatype_flops=RATES,
)


def split(text: str) -> RegionGraph:
    return split_program(read(text), SplitOptions())


def priced(text: str, device: Device = A100, **options: bool) -> Estimate:
    graph = split(text)
    roofline = Roofline(device=device, options=RooflineOptions(**options))
    (region,) = graph.compute_regions
    return roofline.estimate(region, graph.program)


def one(text: str, device: Device = A100) -> OpEstimate:
    (op,) = priced(text, device).per_op.values()
    return op


def dot(operand: str, result: str, extra: str = "", size: int = 4096) -> str:
    """Return a square matrix product."""
    a, r = f"tensor<{size}x{size}x{operand}>", f"tensor<{size}x{size}x{result}>"
    return main_function(
        f"%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]{extra} "
        f": ({a}, {a}) -> {r}\nreturn %r : {r}",
        arguments=f"%a: {a}, %b: {a}",
        results=r,
    )


def test_a_fused_matmul() -> None:
    """A fusion is one kernel: two operands and a bias come in, the result goes out."""
    text = """
func.func @main(%a: tensor<4096x4096xbf16>, %b: tensor<4096x4096xbf16>, %c: tensor<4096x4096xbf16>)
    -> tensor<4096x4096xbf16> {
  %r = "mhlo.fusion"(%a, %b, %c) <{fusion_kind = #mhlo<fusion_kind kCustom>}> ({
  ^bb0(%x: tensor<4096x4096xbf16>, %y: tensor<4096x4096xbf16>, %z: tensor<4096x4096xbf16>):
    %d = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<4096x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16>
    %s = stablehlo.add %d, %z : tensor<4096x4096xbf16>
    mhlo.return %s : tensor<4096x4096xbf16>
  }) : (tensor<4096x4096xbf16>, tensor<4096x4096xbf16>, tensor<4096x4096xbf16>)
    -> tensor<4096x4096xbf16>
  return %r : tensor<4096x4096xbf16>
}
"""
    flops = 2 * 4096**3 + 4096**2
    moved = 4 * 4096**2 * 2
    found = one(text)
    assert found.flops == flops
    assert found.bytes_moved == moved
    assert found.time_s == flops / 312e12, "440.6 us of arithmetic hide 86.3 us of traffic"
    assert found.flops_utilisation == 1
    assert found.memory_utilisation == pytest.approx(moved / BANDWIDTH * 312e12 / flops)


def test_an_elementwise_operation() -> None:
    kind = "tensor<1024x1024xf32>"
    found = one(
        main_function(
            f"%r = stablehlo.add %a, %b : {kind}\nreturn %r : {kind}",
            arguments=f"%a: {kind}, %b: {kind}",
            results=kind,
        )
    )
    assert found.bytes_moved == 3 * 1024 * 1024 * 4
    assert found.time_s == found.bytes_moved / BANDWIDTH, "8.09 us of traffic, 0.05 us of adding"
    assert found.flops == 1024 * 1024
    assert found.memory_utilisation == 1
    assert found.flops_utilisation == pytest.approx(1024 * 1024 / 19.5e12 / found.time_s)


def test_a_convolution() -> None:
    """An NHWC image, 3x3 kernel, 64 to 128 channels, no padding: 30x30 outputs."""
    text = main_function(
        "%r = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
        "window = {stride = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : "
        "(tensor<8x32x32x64xbf16>, tensor<3x3x64x128xbf16>) -> tensor<8x30x30x128xbf16>\n"
        "return %r : tensor<8x30x30x128xbf16>",
        arguments="%a: tensor<8x32x32x64xbf16>, %b: tensor<3x3x64x128xbf16>",
        results="tensor<8x30x30x128xbf16>",
    )
    found = one(text)
    flops = 2 * 8 * 30 * 30 * 128 * 3 * 3 * 64
    moved = 2 * (8 * 32 * 32 * 64 + 3 * 3 * 64 * 128 + 8 * 30 * 30 * 128)
    assert found.flops == flops
    assert found.bytes_moved == moved
    assert found.time_s == max(flops / 312e12, moved / BANDWIDTH)


HIGHEST = ", precision = [HIGHEST, HIGHEST]"


@pytest.mark.parametrize(
    ("operand", "result", "extra", "rate"),
    [
        ("bf16", "f32", "", 312e12),
        ("bf16", "bf16", "", 312e12),
        ("f16", "f32", "", 312e12),
        ("i8", "i32", "", 624e12),
        ("f32", "f32", "", 156e12),
        ("f32", "f32", ", precision = [DEFAULT, DEFAULT]", 156e12),
        ("f32", "f32", HIGHEST, 19.5e12),
        ("f64", "f64", "", 19.5e12),
        ("f8E4M3FN", "f32", "", 312e12),
        ("f4E2M1FN", "f32", "", 312e12),
    ],
)
def test_the_type_that_is_multiplied_decides(
    operand: str, result: str, extra: str, rate: float
) -> None:
    found = one(dot(operand, result, extra))
    assert found.compute_time_at_peak_s == pytest.approx(2 * 4096**3 / rate)
    assert found.time_s == pytest.approx(2 * 4096**3 / rate)


def test_tf32_falls_back_on_f32() -> None:
    old = Device(
        name="v100",
        peak_flops=7.8e12,
        memory_bandwidth_bytes_per_s=900e9,
        per_datatype_flops={"f32": 15.7e12},
    )
    assert one(dot("f32", "f32"), old).time_s == pytest.approx(2 * 4096**3 / 15.7e12)
    bare = Device(name="bare", peak_flops=1e12, memory_bandwidth_bytes_per_s=900e9)
    assert one(dot("f32", "f32"), bare).time_s == pytest.approx(2 * 4096**3 / 1e12)


def test_a_complex_product_is_four_of_reals() -> None:
    found = one(dot("complex<f32>", "complex<f32>"))
    assert found.flops == 8 * 4096**3
    assert found.time_s == pytest.approx(8 * 4096**3 / 19.5e12)


def test_what_is_transcendental_runs_at_the_rate_of_other_types() -> None:
    kind = "tensor<1024xf32>"
    found = one(
        main_function(
            f"%r = stablehlo.exponential %a : {kind}\nreturn %r : {kind}",
            arguments=f"%a: {kind}",
            results=kind,
        )
    )
    assert found.per_type[TRANSCENDENTAL].flops == 1024
    assert found.per_type[TRANSCENDENTAL].time_at_peak_s == 1024 / 9.7e12


def test_several_types_in_one_operation_follow_each_other() -> None:
    work = Work(flops=(("bf16", 312 * 10**12), ("f32", 195 * 10**11)), bytes_read=1)
    assert Roofline(device=A100).at_peaks("mhlo.fusion", work).time_s == 2.0


def test_unknown_types_are_priced_reported_or_refused() -> None:
    text = dot("f8E4M3FN", "f32")
    assert priced(text).warnings == ()
    warned = priced(text, warn_on_unknown_type=True)
    assert warned.warnings == ("per_datatype_flops doesn't name f8E4M3FN: priced at bf16",)
    other = priced(dot("i16", "i32"), warn_on_unknown_type=True)
    assert other.warnings == ("per_datatype_flops doesn't name i16: priced at peak_flops",)
    assert warned.per_op == priced(text).per_op
    with pytest.raises(HardwareError, match=r"a100: .*dot_general computes on f8E4M3FN.*; add it"):
        priced(text, error_on_unknown_type=True)
    known = priced(dot("f32", "f32"), warn_on_unknown_type=True, error_on_unknown_type=True)
    assert known.warnings == ()


def test_tf32_is_known_where_f32_is() -> None:
    old = Device(
        name="v100",
        peak_flops=7.8e12,
        memory_bandwidth_bytes_per_s=900e9,
        per_datatype_flops={"f32": 15.7e12},
    )
    options = {"warn_on_unknown_type": True, "error_on_unknown_type": True}
    assert priced(dot("f32", "f32"), old, **options).warnings == ()


@pytest.mark.parametrize(
    ("ratio", "energy_j"),
    [
        (None, 400 * 3.0),
        (0.25, 400 * (0.25 * 2.0 + 0.75 * 3.0)),
        (0.0, 400 * 3.0),
        (1.0, 400 * 2.0),
    ],
)
def test_energy_is_shared_between_memory_and_arithmetic(
    ratio: float | None, energy_j: float
) -> None:
    device = Device(
        name="d",
        peak_flops=1.0,
        memory_bandwidth_bytes_per_s=1.0,
        tdp_w=400.0,
        hbm_power_ratio=ratio,
    )
    price = Roofline(device=device).at_peaks("x", Work(flops=(("f32", 3),), bytes_read=2))
    assert price.time_s == 3.0
    assert price.energy_j == pytest.approx(energy_j)


def test_products_of_a_type_without_a_rate_are_named() -> None:
    old = Device(
        name="v100",
        peak_flops=7.8e12,
        memory_bandwidth_bytes_per_s=900e9,
        per_datatype_flops={"f32": 15.7e12},
    )
    note = "v100 names no rate of i8: priced at that of other types, 7.8 TFLOP/s"
    assert note in priced(dot("i8", "i32"), old).notes
    converted = "v100 names no rate of bf16: multiplied as f32, at its rate"
    assert converted in priced(dot("bf16", "bf16"), old).notes
    assert priced(dot("f32", "f32"), old).notes == ()


def test_floats_of_8_bits_are_multiplied_as_bf16_where_they_have_no_rate() -> None:
    v5e = Device(
        name="v5e",
        peak_flops=6.1e12,
        memory_bandwidth_bytes_per_s=819e9,
        per_datatype_flops={"bf16": 197e12},
    )
    converted = priced(dot("f8E4M3FN", "f32"), v5e)
    assert converted.time_s == priced(dot("bf16", "f32"), v5e).time_s
    assert converted.notes == ("v5e names no rate of f8E4M3FN: multiplied as bf16, at its rate",)


def test_power_that_is_not_known_gives_no_energy() -> None:
    assert one(dot("bf16", "f32")).energy_j is None


def test_a_loop_is_its_body_times_its_count() -> None:
    text = """
func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r, %n = stablehlo.while(%x = %a, %i = %zero) : tensor<8xf32>, tensor<i32>
  cond {
    %k = stablehlo.constant dense<100> : tensor<i32>
    %p = stablehlo.compare LT, %i, %k : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.multiply %x, %x : tensor<8xf32>
    %o = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %m, %o : tensor<8xf32>, tensor<i32>
  }
  return %r : tensor<8xf32>
}
"""
    found = priced(text).per_op
    assert found["stablehlo.multiply"].count == 100
    assert found["stablehlo.multiply"].time_s == pytest.approx(100 * 64 / BANDWIDTH)
    assert found["stablehlo.add"].count == 100
