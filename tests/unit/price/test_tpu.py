from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

import hespas
from hespas.errors import ConfigError, HardwareError
from hespas.frontend.load import load_source
from hespas.hardware.device import Device
from hespas.hardware.presets import load_device
from hespas.price.graph import GraphEstimate
from hespas.price.methods import EstimatorSpec, default_method, default_text, estimator

CYCLES = 'backend_config={"window_config":{"estimated_cycles":"%d"}}'
STEP = f"""
HloModule step, is_scheduled=true

%fused (p: f32[1024]) -> f32[1024] {{
  %p = f32[1024] parameter(0)
  ROOT %n = f32[1024] negate(%p)
}}

%body (state: (s32[], f32[1024])) -> (s32[], f32[1024]) {{
  %state = (s32[], f32[1024]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = f32[1024] get-tuple-element(%state), index=1
  %y = f32[1024] fusion(%x), kind=kLoop, calls=%fused, {CYCLES % 3000}
  ROOT %both = (s32[], f32[1024]) tuple(%next, %y)
}}

%condition (state: (s32[], f32[1024])) -> pred[] {{
  %state = (s32[], f32[1024]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %end = s32[] constant(5)
  ROOT %less = pred[] compare(%i, %end), direction=LT
}}

ENTRY %main (a: f32[1024]) -> f32[1024] {{
  %a = f32[1024] parameter(0)
  %b = f32[1024] add(%a, %a), {CYCLES % 1500}
  %c = f32[1024] add(%b, %a), {CYCLES % 6000}
  %d = f32[1024] copy(%c)
  %zero = s32[] constant(0)
  %begin = (s32[], f32[1024]) tuple(%zero, %d)
  %loop = (s32[], f32[1024]) while(%begin), condition=%condition, body=%body, \
backend_config={{"known_trip_count":{{"n":"5"}}}}
  %end = f32[1024] get-tuple-element(%loop), index=1
  ROOT %view = f32[1024] bitcast(%end)
}}
"""


@pytest.fixture
def device() -> Device:
    return replace(load_device("TPUv5e"), clock_hz=1.5e9)


def estimated(text: str, device: Device) -> GraphEstimate:
    graph = hespas.stages.split(load_source(text.encode(), name="step.hlo"))
    return hespas.stages.estimate(graph, device, method="compiler")


def test_cycles_over_the_clock_are_the_time(device: Device) -> None:
    found = estimated(STEP, device).total.per_op
    assert found["stablehlo.add"].time_s == pytest.approx((1500 + 6000) / 1.5e9, rel=1e-12)
    assert found["stablehlo.add"].count == 2
    half = estimated(STEP, replace(device, clock_hz=0.75e9)).total.per_op
    assert half["stablehlo.add"].time_s == pytest.approx(2 * 5e-6, rel=1e-12)


def test_a_loop_takes_its_cycles_as_often_as_it_runs(device: Device) -> None:
    fusions = estimated(STEP, device).total.per_op["mhlo.fusion"]
    assert (fusions.count, fusions.time_s) == (5, pytest.approx(5 * 3000 / 1.5e9, rel=1e-12))


def test_what_has_no_cycles_is_listed_with_the_roofline_s_time(device: Device) -> None:
    result = estimated(STEP, device)
    copy = result.total.per_op["mhlo.copy without cycles"]
    assert (copy.count, copy.time_s) == (1, pytest.approx(2 * 4096 / 819e9))
    assert result.total.per_op["stablehlo.add without cycles"].count == 5
    assert not any("bitcast without" in name for name in result.total.per_op)
    assert any("'without cycles'" in text for text in result.assumptions)
    assert "longer than published" in result.assumptions[0]


def test_a_program_without_cycles_is_refused(device: Device) -> None:
    bare = STEP.replace("estimated_cycles", "something_else")
    with pytest.raises(ConfigError, match=r"step\.hlo: no operation says.*only a TPU's compiler"):
        estimated(bare, device)


def test_a_device_without_a_clock_is_refused() -> None:
    with pytest.raises(HardwareError, match=r"the clock of H100_80GB is not known; use a TPU's"):
        estimator("compiler", EstimatorSpec(device=load_device("H100_80GB")))
    with pytest.raises(ConfigError, match="method 'compiler' needs a device"):
        estimator("compiler", EstimatorSpec())


def test_cycles_are_the_default_where_a_tpu_s_compiler_wrote_them(device: Device) -> None:
    step = load_source(STEP.encode(), name="step.hlo")
    graph = hespas.stages.split(step)
    assert default_method(step, device).name == "compiler"
    by_default = hespas.stages.estimate(graph, device)
    assert by_default.total == hespas.stages.estimate(graph, device, method="compiler").total


def test_without_cycles_or_a_clock_it_is_not_the_default(device: Device) -> None:
    step = load_source(STEP.encode(), name="step.hlo")
    bare = load_source(STEP.replace("estimated_cycles", "other").encode(), name="step.hlo")
    assert default_method(bare, device).name == "tensor_core"
    assert default_method(step, replace(device, clock_hz=None)).name == "roofline"
    assert default_method(step, load_device("H100_80GB")).name == "measured"
    assert default_method(step, None).name == "roofline"
    assert "compiler for programs that a TPU's compiler wrote cycles into" in default_text()


PRODUCT = f"""
HloModule step, is_scheduled=true

ENTRY %main (a: bf16[4096,4096], b: bf16[4096,4096]) -> bf16[4096,4096] {{
  %a = bf16[4096,4096] parameter(0)
  %b = bf16[4096,4096] parameter(1)
  %c = bf16[4096,4096] dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, \
{CYCLES % 1500000}
  ROOT %d = bf16[4096,4096] add(%c, %b), {CYCLES % 900000}
}}
"""
PRODUCT_S = 2 * 4096**3 / 197e12


def with_product_cycles(device: Device, part: float) -> Device:
    core = device.tensor_core
    assert core is not None
    return replace(device, tensor_core=msgspec.structs.replace(core, product_cycles=part))


@pytest.mark.parametrize("part", [0.0, 0.25, 1.0])
def test_products_take_a_part_of_what_cycles_exceed_the_roofline_by(
    device: Device, part: float
) -> None:
    total = estimated(PRODUCT, with_product_cycles(device, part)).total
    expected_s = PRODUCT_S + part * (1e-3 - PRODUCT_S)
    assert total.per_op["stablehlo.dot_general"].time_s == pytest.approx(expected_s, rel=1e-9)
    assert total.per_op["stablehlo.add"].time_s == pytest.approx(6e-4, rel=1e-9)
    noted = {note: time_s for note, time_s in total.noted_s.items() if "calibrated to" in note}
    if part == 1:
        assert not noted
    else:
        ((note, time_s),) = noted.items()
        assert f"and {part:.0%} of what" in note
        assert time_s == pytest.approx(expected_s, rel=1e-9)


def test_products_whose_cycles_are_below_the_roofline_keep_them(device: Device) -> None:
    faster = PRODUCT.replace("1500000", "15000")
    total = estimated(faster, with_product_cycles(device, 0.0)).total
    assert total.per_op["stablehlo.dot_general"].time_s == pytest.approx(1e-5, rel=1e-9)
    assert not any("calibrated to" in note for note in total.noted_s)


def test_other_kernels_take_a_part_of_what_cycles_exceed_memory_by(device: Device) -> None:
    core = device.tensor_core
    assert core is not None
    memory_s = 3 * 2 * 4096**2 / device.memory_bandwidth_bytes_per_s
    for part in (0.0, 0.25, 1.0):
        priced = replace(device, tensor_core=msgspec.structs.replace(core, moving_cycles=part))
        total = estimated(PRODUCT, priced).total
        expected_s = memory_s + part * (900000 / 1.5e9 - memory_s)
        assert total.per_op["stablehlo.add"].time_s == pytest.approx(expected_s, rel=1e-9)
        noted = [note for note in total.notes if "moving_cycles" in note]
        assert bool(noted) == (part < 1)
