"""Kernels of TPUs that no TPU compiler saw: those of Pallas as scheduled, others at peak rates."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

import hespas
from hespas.errors import HardwareError
from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.price.methods import EstimatorSpec, default_method, estimator
from hespas.price.roofline import Rates
from hespas.price.tpu import TensorCoreEstimator, priced_kernel
from hespas.program.work import StatedWork, Work
from mosaic_kernels import kernels, lowered, matmul, shape

STEP = """
HloModule step, is_scheduled=true

ENTRY %main (a: bf16[4096,4096], b: bf16[4096,4096]) -> bf16[4096,4096] {
  %a = bf16[4096,4096] parameter(0)
  %b = bf16[4096,4096] parameter(1)
  %c = bf16[4096,4096] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %d = bf16[4096,4096] add(%c, %b)
}
"""
ARITHMETIC_S = 2 * 4096**3 / 918e12
TRAFFIC_S = 3 * 2 * 4096**2 / 1640e9


def test_what_is_no_kernel_of_pallas_takes_the_roofline_s_time() -> None:
    graph = hespas.stages.split(load_source(STEP.encode(), name="step.hlo"))
    total = hespas.stages.estimate(graph, "TPUv6e").total
    assert total.time_s == hespas.stages.estimate(graph, "TPUv6e", method="roofline").total.time_s
    assert total.time_s == pytest.approx(ARITHMETIC_S + TRAFFIC_S, rel=1e-9)


def test_kernels_of_pallas_take_what_libtpu_s_schedules_say() -> None:
    program = lowered(
        matmul(1024, 1024, 1024, blocks=(512, 512, 512)), shape(1024, 1024), shape(1024, 1024)
    )
    device = load_device("TPUv5p")
    (op,) = kernels(program)
    priced = priced_kernel(op, device)
    assert priced is not None
    graph = hespas.stages.split(program)
    total = hespas.stages.estimate(graph, device, method="tensor_core").total
    assert total.time_s == pytest.approx(priced.scheduled.time_s, rel=1e-9)
    assert priced.scheduled.time_s > priced.at_peak.time_s


def test_it_is_the_default_of_kernels_without_cycles_where_schedules_are_known() -> None:
    step = load_source(STEP.encode(), name="step.hlo")
    device = load_device("TPUv6e")
    assert default_method(step, device).name == "tensor_core"
    assert default_method(step, replace(device, tensor_core=None)).name == "roofline"
    assert default_method(step, replace(device, clock_hz=None)).name == "roofline"
    assert default_method(step, load_device("TPUv7x")).name == "tensor_core"


def test_kernels_of_pallas_are_at_peak_where_no_schedule_is_shown() -> None:
    program = lowered(
        matmul(1024, 1024, 1024, blocks=(512, 512, 512)), shape(1024, 1024), shape(1024, 1024)
    )
    device = load_device("TPUv7x")
    (op,) = kernels(program)
    priced = priced_kernel(op, device)
    assert priced is not None
    total = hespas.stages.estimate(hespas.stages.split(program), device, method="tensor_core").total
    assert total.time_s == pytest.approx(priced.at_peak.time_s, rel=1e-9)


def test_products_take_the_part_of_the_peak_that_cycles_give_them() -> None:
    graph = hespas.stages.split(load_source(STEP.encode(), name="step.hlo"))
    device = load_device("TPUv7x")
    core = device.tensor_core
    assert core is not None
    times_s = {
        part: hespas.stages.estimate(
            graph, replace(device, tensor_core=msgspec.structs.replace(core, product_cycles=part))
        )
        .total.per_op["stablehlo.dot_general"]
        .time_s
        for part in (0.0, 0.5, 1.0)
    }
    peak_s = 2 * 4096**3 / device.rate("bf16")
    assert times_s[0.0] == pytest.approx(peak_s, rel=1e-9)
    assert times_s[1.0] == pytest.approx(peak_s / core.product_share, rel=1e-9)
    assert times_s[0.5] == pytest.approx((times_s[0.0] + times_s[1.0]) / 2, rel=1e-9)


def test_a_part_without_units_is_refused() -> None:
    with pytest.raises(HardwareError, match="the units of H100_80GB, or their clock, are not"):
        estimator("tensor_core", EstimatorSpec(device=load_device("H100_80GB")))


def test_faster_rates_shorten_both_parts() -> None:
    graph = hespas.stages.split(load_source(STEP.encode(), name="step.hlo"))
    made = estimator("tensor_core", EstimatorSpec(device=load_device("TPUv6e")))
    assert isinstance(made, TensorCoreEstimator)
    faster = made.at_rates(Rates(arithmetic=2.0, memory=4.0))
    times_s = [faster.estimate(region, graph.program).time_s for region in graph.compute_regions]
    assert sum(times_s) == pytest.approx(ARITHMETIC_S / 2 + TRAFFIC_S / 4, rel=1e-9)


def test_what_is_stated_of_a_call_decides_over_what_libtpu_s_profiles_say() -> None:
    call = 'custom-call(%x), custom_call_target="TopK", called_computations={%larger}'
    step = load_source(
        f"""
HloModule step, is_scheduled=true

%larger (a: f32[], b: f32[]) -> pred[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = pred[] compare(%a, %b), direction=GT
}}

ENTRY %main (x: f32[64,4096]) -> (f32[64,8], s32[64,8]) {{
  %x = f32[64,4096] parameter(0)
  ROOT %t = (f32[64,8], s32[64,8]) {call}
}}
""".encode(),
        name="step.hlo",
    )
    graph, device = hespas.stages.split(step), load_device("TPUv5e")
    stated = {"TopK": StatedWork(work=Work(bytes_read=819 * 10**6))}
    for method in ("tensor_core", "roofline"):
        total = hespas.stages.estimate(graph, device, method=method, custom_calls=stated).total
        assert total.time_s == pytest.approx(1e-3, rel=1e-3)
    assert hespas.stages.estimate(graph, device, method="tensor_core").total.time_s < 1e-4
