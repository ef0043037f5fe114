"""Laws of estimates: they add, survive encoding, and fall when a device gets faster."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hespas.hardware.device import Device
from hespas.price.cache import decode_estimate, encode_estimate
from hespas.price.estimate import Bound, Estimate, OpEstimate, TypeTotals
from hespas.price.roofline import Roofline
from hespas.program.work import Work

TYPES = ("bf16", "f32", "i8", "tf32")

# Sums of whole numbers are exact, so that laws hold to the last bit.
_WHOLE = st.integers(min_value=0, max_value=2**40).map(float)
_TOTALS = st.builds(TypeTotals, flops=_WHOLE, time_at_peak_s=_WHOLE)
_OPS = st.builds(
    OpEstimate,
    count=_WHOLE,
    time_s=_WHOLE,
    bytes_moved=_WHOLE,
    memory_time_at_peak_s=_WHOLE,
    energy_j=st.none() | _WHOLE,
    per_type=st.dictionaries(st.sampled_from(TYPES), _TOTALS, max_size=3),
    bound=st.builds(Bound, compute_s=_WHOLE, memory_s=_WHOLE, launch_s=_WHOLE),
)
_TEXTS = st.lists(st.sampled_from("abcde"), max_size=3).map(tuple)
_ESTIMATES = st.builds(
    Estimate,
    per_op=st.dictionaries(st.sampled_from(["add", "dot", "fusion"]), _OPS, max_size=3),
    notes=_TEXTS,
    warnings=_TEXTS,
    noted_s=st.dictionaries(st.sampled_from("abcde"), _WHOLE, max_size=3),
)


@given(_ESTIMATES, _ESTIMATES, _ESTIMATES)
def test_adding_is_associative(one: Estimate, two: Estimate, three: Estimate) -> None:
    assert (one + two) + three == one + (two + three)


@given(_ESTIMATES, _ESTIMATES)
def test_adding_is_commutative(one: Estimate, two: Estimate) -> None:
    assert one + two == two + one


@given(_ESTIMATES)
def test_nothing_adds_nothing(estimate: Estimate) -> None:
    assert estimate + Estimate() == estimate == Estimate() + estimate


@given(_ESTIMATES, st.integers(min_value=1, max_value=5))
def test_times_is_repeated_adding(estimate: Estimate, times: int) -> None:
    assert estimate * times == sum([estimate] * times, Estimate())


@given(_ESTIMATES, _ESTIMATES)
def test_totals_add(one: Estimate, two: Estimate) -> None:
    assert (one + two).time_s == one.time_s + two.time_s
    assert (one + two).total.flops == one.total.flops + two.total.flops


_AMOUNTS = st.floats(min_value=0, max_value=1e290, allow_subnormal=False)


@given(_ESTIMATES, _AMOUNTS)
def test_encoding_keeps_every_bit(estimate: Estimate, odd: float) -> None:
    changed = replace(estimate, per_op={**estimate.per_op, "odd": OpEstimate(time_s=odd)})
    assert decode_estimate(encode_estimate(changed)) == changed


_RATES = st.floats(min_value=1e3, max_value=1e18)
_DEVICES = st.builds(
    Device,
    name=st.just("d"),
    peak_flops=_RATES,
    memory_bandwidth_bytes_per_s=_RATES,
    per_datatype_flops=st.dictionaries(st.sampled_from(TYPES), _RATES),
    tdp_w=st.just(400.0),
    hbm_power_ratio=st.none() | st.floats(0, 1),
)
_COUNTS = st.integers(min_value=1, max_value=2**50)
_WORKS = st.builds(
    Work,
    flops=st.dictionaries(st.sampled_from([*TYPES, "f64"]), _COUNTS).map(
        lambda counts: tuple(sorted(counts.items()))
    ),
    transcendentals=st.integers(0, 2**50),
    bytes_read=st.integers(0, 2**50),
    bytes_written=st.integers(0, 2**50),
)


@given(
    _DEVICES,
    _WORKS,
    st.floats(min_value=1, max_value=1e6),
    st.sampled_from([*TYPES, "peak", "memory"]),
)
def test_time_does_not_increase_with_a_peak(
    device: Device, work: Work, factor: float, which: str
) -> None:
    before = Roofline(device=device).at_peaks("x", work).time_s
    assert Roofline(device=_faster(device, which, factor)).at_peaks("x", work).time_s <= before


def _faster(device: Device, which: str, factor: float) -> Device:
    match which:
        case "peak":
            return replace(device, peak_flops=device.peak_flops * factor)
        case "memory":
            bandwidth = device.memory_bandwidth_bytes_per_s * factor
            return replace(device, memory_bandwidth_bytes_per_s=bandwidth)
        case _:
            rates = device.per_datatype_flops
            return replace(
                device,
                per_datatype_flops={
                    key: rate * (factor if key == which else 1) for key, rate in rates.items()
                },
            )


@given(_DEVICES, _WORKS)
def test_nothing_is_used_beyond_its_peak(device: Device, work: Work) -> None:
    price = Roofline(device=device).at_peaks("x", work)
    assert 0 <= price.flops_utilisation <= 1
    assert 0 <= price.memory_utilisation <= 1
    if price.time_s > 0:
        assert max(price.flops_utilisation, price.memory_utilisation) > 1 - 1e-9
    energy_j = price.energy_j
    assert energy_j is not None
    assert 0 <= energy_j <= 400.0 * price.time_s * (1 + 1e-9)


@given(_DEVICES, st.lists(_WORKS, max_size=5))
def test_sums_are_not_used_beyond_their_peak(device: Device, works: list[Work]) -> None:
    total = sum((Roofline(device=device).at_peaks("x", work) for work in works), OpEstimate())
    assert 0 <= total.flops_utilisation <= 1
    assert 0 <= total.memory_utilisation <= 1
