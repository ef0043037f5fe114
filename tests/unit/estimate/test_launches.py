from __future__ import annotations

from dataclasses import replace

import pytest

from hespas.api import estimate
from hespas.estimate.launches import LAUNCH, KernelRoofline, for_program, kernel_count
from hespas.estimate.roofline import Roofline
from hespas.hardware.device import Device
from hespas.split.scheduled import split_scheduled
from programs import settled, vector_main
from scheduled import kernel, loop, scheduled, sync

DEVICE = Device(
    name="one", peak_flops=1e12, memory_bandwidth_bytes_per_s=1e12, launch_overhead_s=2e-6
)
KERNEL_S = 2 * 256 * 4 / 1e12
"""What a fusion that negates a vector takes at the device's peaks."""


def test_every_kernel_costs_a_launch() -> None:
    program = scheduled(kernel("k0", "a"), sync("r", "k0"), kernel("k1", "r"))
    total = estimate(split_scheduled(program), DEVICE).total
    assert total.per_op["mhlo.fusion"].time_s == pytest.approx(2 * KERNEL_S)
    assert total.per_op[LAUNCH].count == 2
    assert total.per_op[LAUNCH].time_s == pytest.approx(4e-6)


def test_the_rounds_of_a_loop_launch_again() -> None:
    function, lines = loop("l", "a", kernel("w", "v"))
    program = scheduled(*lines, functions=function)
    (region,) = split_scheduled(program).compute_regions
    # The counter and the fusion, three times.
    assert kernel_count(region.operations, program) == 6


@pytest.mark.parametrize(
    ("overhead_s", "told"),
    [
        (2e-6, "each launch costs 2 us more"),
        (0.0, "nothing launches them one by one on this device"),
        (None, "launches cost nothing, for what they cost on this device is not known"),
    ],
)
def test_what_launches_cost_is_told(overhead_s: float | None, told: str) -> None:
    device = replace(DEVICE, launch_overhead_s=overhead_s)
    program = scheduled(kernel("k", "a"))
    found = estimate(split_scheduled(program), device)
    assert found.assumptions[0].endswith(told)
    assert (LAUNCH in found.total.per_op) == bool(overhead_s)


def test_what_a_launch_costs_decides_the_key_of_an_estimate() -> None:
    one = KernelRoofline(roofline=Roofline(device=DEVICE))
    other = KernelRoofline(roofline=Roofline(device=replace(DEVICE, launch_overhead_s=1e-6)))
    assert one.parameters != other.parameters


def test_operations_of_other_programs_are_not_launched() -> None:
    program = settled(vector_main("%r = stablehlo.negate %a : tensor<8xf32>"))
    roofline = Roofline(device=DEVICE)
    assert for_program(roofline, program) is roofline
