"""Laws of loops, branches and launches, of programs that a compiler scheduled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hespas.frontend.load import load_source
from hespas.frontend.overrides import LoadOptions
from hespas.hardware.device import Device
from hespas.hardware.presets import load_device
from hespas.price.estimate import Estimate
from hespas.stages import estimate, split

Sizes = list[int]
"""A straight piece of a program: the elements that each of its kernels writes."""

METHODS = ("roofline", "measured", "kernel")
_SIZES = st.lists(st.sampled_from([1, 4096, 1 << 20, 1 << 27]), min_size=1, max_size=8)
_ALTERNATIVES = st.lists(_SIZES, min_size=2, max_size=3)


def kernels(sizes: Sizes) -> str:
    return "\n".join(
        f"  %k{at} = f32[{size}] broadcast(%zero), dimensions={{}}" for at, size in enumerate(sizes)
    )


def branch_text(alternatives: list[Sizes]) -> str:
    functions = "\n".join(
        f"""%branch{at} (v: f32[8]) -> f32[8] {{
  %v = f32[8] parameter(0)
  %zero = f32[] constant(0)
{kernels(sizes)}
  ROOT %n = f32[8] negate(%v)
}}"""
        for at, sizes in enumerate(alternatives)
    )
    names = ", ".join(f"%branch{at}" for at in range(len(alternatives)))
    operands = ", ".join(["%a"] * len(alternatives))
    return f"""HloModule step, is_scheduled=true, num_partitions=1
{functions}
ENTRY %main (i: s32[], a: f32[8]) -> f32[8] {{
  %i = s32[] parameter(0)
  %a = f32[8] parameter(1)
  ROOT %c = f32[8] conditional(%i, {operands}), branch_computations={{{names}}}
}}
"""


def straight_text(sizes: Sizes) -> str:
    return f"""HloModule step, is_scheduled=true, num_partitions=1
ENTRY %main (a: f32[8]) -> f32[8] {{
  %a = f32[8] parameter(0)
  %zero = f32[] constant(0)
{kernels(sizes)}
  ROOT %n = f32[8] negate(%a)
}}
"""


def loop_text(sizes: Sizes, count: int) -> str:
    trips = f'backend_config={{"known_trip_count":{{"n":"{count}"}}}}'
    return f"""HloModule step, is_scheduled=true, num_partitions=1
%body (v: f32[8]) -> f32[8] {{
  %v = f32[8] parameter(0)
  %zero = f32[] constant(0)
{kernels(sizes)}
  ROOT %n = f32[8] negate(%v)
}}
%condition (v: f32[8]) -> pred[] {{
  %v = f32[8] parameter(0)
  ROOT %true = pred[] constant(true)
}}
ENTRY %main (a: f32[8]) -> f32[8] {{
  %a = f32[8] parameter(0)
  ROOT %w = f32[8] while(%a), condition=%condition, body=%body, {trips}
}}
"""


def priced(text: str, method: str, device: Device, *weights: float) -> Estimate:
    options = LoadOptions(branch_weights={"": weights} if weights else {})
    program = load_source(text.encode(), name="step.hlo", options=options)
    return estimate(split(program), device, method=method).total


def executed(estimate: Estimate) -> dict[str, tuple[float, int]]:
    """Return how often each kind of operation that takes time runs, and for how long."""
    per_op = estimate.per_op.items()
    return {kind: (op.count, op.duration_ps) for kind, op in per_op if op.duration_ps}


def device_with(launch_s: float) -> Device:
    return replace(load_device("H100_80GB"), launch_overhead_s=launch_s)


@settings(max_examples=8)
@pytest.mark.parametrize("method", METHODS)
@given(alternatives=_ALTERNATIVES, launch_us=st.sampled_from([0, 1, 3]))
def test_a_branch_costs_one_of_its_alternatives(
    method: str, alternatives: list[Sizes], launch_us: int
) -> None:
    """Launches included: the one that takes longest with them."""
    device = device_with(launch_us * 1e-6)
    whole = priced(branch_text(alternatives), method, device)
    alone = [priced(straight_text(sizes), method, device) for sizes in alternatives]
    longest_ps = max(each.duration_ps for each in alone)
    assert whole.duration_ps == pytest.approx(longest_ps)
    assert any(executed(whole) == executed(each) for each in alone)


@settings(max_examples=8)
@pytest.mark.parametrize("method", METHODS)
@given(alternatives=st.tuples(_SIZES, _SIZES), weight=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_a_weighted_branch_costs_the_mean_of_its_alternatives(
    method: str, alternatives: tuple[Sizes, Sizes], weight: float
) -> None:
    device = device_with(2e-6)
    whole = priced(branch_text(list(alternatives)), method, device, weight, 1 - weight)
    first, second = (priced(straight_text(sizes), method, device) for sizes in alternatives)
    expected_s = weight * first.time_s + (1 - weight) * second.time_s
    assert whole.time_s == pytest.approx(expected_s, rel=1e-9)


@settings(max_examples=8)
@given(sizes=_SIZES, alternatives=_ALTERNATIVES, count=st.integers(1, 5))
def test_launches_are_part_of_an_operations_price(
    sizes: Sizes, alternatives: list[Sizes], count: int
) -> None:
    """Each kernel that runs pays one, wherever it stands."""
    free, paid = device_with(0.0), device_with(1.0)
    straight, loop = straight_text(sizes), loop_text(sizes, count)
    for text, launches in ((straight, len(sizes) + 1), (loop, count * (len(sizes) + 1))):
        more_s = priced(text, "roofline", paid).time_s - priced(text, "roofline", free).time_s
        assert more_s == pytest.approx(launches)
    # Where a launch is all that counts, the branch with the most kernels is the one that counts.
    most = max(len(sizes) for sizes in alternatives) + 1
    branch = priced(branch_text(alternatives), "roofline", paid)
    assert branch.time_s == pytest.approx(most, rel=1e-2)


def test_a_branch_is_not_one_alternatives_time_with_anothers_launches() -> None:
    """One kernel of 40 us and seven tiny ones: 40 us and two launches, not eight."""
    device = load_device("H100_80GB")
    assert device.launch_overhead_s == 3e-6
    found = priced(branch_text([[1 << 25], [1] * 7]), "roofline", device)
    assert found.time_s == pytest.approx(4 * 2**25 / 3350e9 + 2 * 3e-6, rel=1e-3)
