from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from hespas.hardware.device import Device
from hespas.price.driver import estimate_region
from hespas.price.estimate import LAUNCH, Estimate, OpEstimate, Price
from hespas.price.roofline import Roofline
from hespas.program.program import Program
from hespas.split.flatten import split_scheduled
from hespas.split.options import SplitOptions
from hespas.split.strategies import split_program
from hespas.stages import estimate
from hespas.work.expand import Leaf
from programs import settled, vector_main
from scheduled import kernel, loop, scheduled, sync

DEVICE = Device(
    name="one", peak_flops=1e12, memory_bandwidth_bytes_per_s=1e12, launch_overhead_s=2e-6
)
KERNEL_S = 2 * 256 * 4 / 1e12
"""What a fusion that negates a vector takes at the device's peaks."""


def test_every_kernel_costs_a_launch() -> None:
    program = scheduled(kernel("k0", "a"), sync("r", "k0"), kernel("k1", "r"))
    total = estimate(split_scheduled(program), DEVICE, method="roofline").total
    assert total.per_op["mhlo.fusion"].time_s == pytest.approx(2 * KERNEL_S)
    assert total.per_op[LAUNCH].count == 2
    assert total.per_op[LAUNCH].time_s == pytest.approx(4e-6)


def test_the_rounds_of_a_loop_launch_again() -> None:
    function, lines = loop("l", "a", kernel("w", "v"))
    program = scheduled(*lines, functions=function)
    total = estimate(split_scheduled(program), DEVICE, method="roofline").total
    # The counter and the fusion, three times; the condition is not computed.
    assert total.per_op[LAUNCH].count == 6
    assert total.per_op["stablehlo.compare"].count == 3


@pytest.mark.parametrize(
    ("overhead_s", "shown"),
    [
        (2e-6, "each launch costs 2 us more"),
        (0.0, "nothing launches them one by one on this device"),
        (None, "launches cost nothing, for what they cost on this device is not known"),
    ],
)
def test_what_launches_cost_is_reported(overhead_s: float | None, shown: str) -> None:
    device = replace(DEVICE, launch_overhead_s=overhead_s)
    program = scheduled(kernel("k", "a"))
    found = estimate(split_scheduled(program), device, method="roofline")
    assert found.assumptions[0].endswith(shown)
    assert (LAUNCH in found.total.per_op) == bool(overhead_s)


def test_what_a_launch_costs_decides_the_key_of_an_estimate() -> None:
    one = Roofline(device=DEVICE)
    other = Roofline(device=replace(DEVICE, launch_overhead_s=1e-6))
    assert one.parameters != other.parameters


def test_operations_of_other_programs_are_not_launched() -> None:
    program = settled(vector_main("%r = stablehlo.negate %a : tensor<8xf32>"))
    found = estimate(split_program(program, SplitOptions()), DEVICE)
    assert LAUNCH not in found.total.per_op
    assert found.assumptions[0].endswith("launches cost nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """A method of few lines: what moves data takes a second, a kernel's launch another."""

    asked: list[str] = field(default_factory=list[str])

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        self.asked.append(leaf.op.name)
        return Price(
            cost=OpEstimate(count=1.0, time_s=1.0 if leaf.work.bytes_moved else 0.0),
            launch_s=1.0 if is_kernel else 0.0,
            notes=("a second each",),
        )


def flat(program: Program) -> tuple[Estimate, list[str]]:
    method = Flat()
    regions = split_scheduled(program).compute_regions
    parts = (
        estimate_region(method, region, program, custom_calls={}, key=lambda leaf: leaf.op.name)
        for region in regions
    )
    return sum(parts, Estimate()), method.asked


def test_a_method_prices_operations_and_the_driver_adds() -> None:
    function, lines = loop("l", "a", kernel("u", "v"), kernel("w", "u"))
    total, asked = flat(scheduled(*lines, functions=function))
    # Three rounds of a comparison; of an addition and two kernels, and their launches.
    assert total.time_s == 3 * (1 + 3 + 3)
    assert total.per_op[LAUNCH].count == 9
    assert asked.count("mhlo.fusion") == 1, "equal operations are priced once"
    assert total.notes == ("a second each",)


class Uneven:
    """Every kernel takes a second, and its launch as long as it writes bytes."""

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        launch_s = float(leaf.work.bytes_written) if is_kernel else 0.0
        return Price(cost=OpEstimate(count=1.0, time_s=1.0), launch_s=launch_s)


def test_launches_may_cost_differently() -> None:
    function, lines = loop("l", "a", kernel("w", "v"))
    (region,) = split_scheduled(scheduled(*lines, functions=function)).compute_regions
    program = scheduled(*lines, functions=function)
    total = estimate_region(Uneven(), region, program, custom_calls={})
    # The counter writes 4 bytes, the fusion 256 numbers of 4.
    assert total.per_op[LAUNCH].time_s == 3 * (4 + 1024)
