from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.errors import MeasurementError
from hespas.evidence.calibrate.factors import Group, fit_factors
from hespas.evidence.calibrate.samples import Case, FactorFit
from hespas.hardware.device import Device, MeasuredTables


def device(**factors: float) -> Device:
    named = {name.replace("_", "."): factor for name, factor in factors.items()}
    return Device(
        name="one",
        peak_flops=1e12,
        memory_bandwidth_bytes_per_s=1e11,
        measured=MeasuredTables(part="H100_SXM", factors=named),
    )


def factor_of(device: Device, name: str) -> float:
    assert device.measured is not None
    factors = device.measured.factors
    return factors.get(name, factors.get("gemm", 1.0) if name.startswith("gemm.") else 1.0)


def group(
    measured: Sequence[float], of: Callable[[float], Sequence[float]], name: str = "all"
) -> Group:
    cases = tuple(
        Case(label=f"step {at}", location=f"s.csv:{at + 2}", measured_s=time_s)
        for at, time_s in enumerate(measured)
    )
    return Group(name=name, cases=cases, predict=lambda device: of(factor_of(device, name)))


def fitted(measured: Sequence[float], of: Callable[[float], Sequence[float]]) -> FactorFit:
    (fit,) = fit_factors([group(measured, of)], device())
    return fit


@given(
    st.floats(0.01, 0.9),
    st.floats(0.05, 40),
)
def test_what_no_factor_scales_stays(unscaled: float, factor: float) -> None:
    fit = fitted([unscaled + factor], lambda x: [unscaled + x])
    assert fit.factor == pytest.approx(factor, rel=2e-3)
    assert abs(fit.samples[0].error_after) < 1e-3


@given(st.floats(0.2, 5), st.floats(0.2, 5))
def test_errors_are_those_of_the_factors_that_are_written(first: float, then: float) -> None:
    def product_s(device: Device) -> float:
        return factor_of(device, "gemm.bf16") * factor_of(device, "all")

    def predicted(device: Device) -> list[float]:
        return [product_s(device)]

    def step(device: Device) -> list[float]:
        return [product_s(device) + 0.1 + factor_of(device, "all")]

    case = Case(label="", location="", measured_s=first)
    groups = [
        Group(name="gemm.bf16", cases=(case,), predict=predicted),
        Group(
            name="all",
            cases=(Case(label="", location="", measured_s=0.1 + (first + 1) * then),),
            predict=step,
        ),
    ]
    gemm, everything = fit_factors(groups, device())
    assert everything.factor == pytest.approx(then, rel=1e-3)
    assert everything.samples[0].error_after == pytest.approx(0, abs=1e-3)
    assert gemm.samples[0].error_after == pytest.approx(then - 1, abs=5e-3)


def test_a_fit_multiplies_the_factor_that_holds_so_far() -> None:
    one = group([3.0], lambda x: [x], name="gemm.bf16")
    (fit,) = fit_factors([one], device(gemm=2.0))
    assert fit.factor == 1.5
    assert fit.samples[0].predicted_s == 2.0
    assert fit.samples[0].fitted_s == 3.0


def test_a_peak_that_no_factor_passes_is_in_the_errors_reported() -> None:
    fit = fitted([1.0, 1.0, 0.5], lambda x: [max(0.4, 2 * x), max(0.9, 2 * x), max(0.4, x)])
    assert fit.factor == 0.5
    assert [each.fitted_s for each in fit.samples] == [1.0, 1.0, 0.5]
    fit = fitted([1.0, 0.95, 0.95], lambda x: [max(0.5, 2 * x), max(0.9, x), max(0.9, x)])
    assert fit.factor == 0.95


def test_kernels_that_are_mostly_their_launch_do_not_decide() -> None:
    fit = fitted([1.5, 3.0, 3.0, 9.0], lambda x: [1 + x / 10, 2 + x / 10, 2 + x / 10, 1 + 4 * x])
    assert fit.factor == 2.0
    assert fit.notes == ("3 of 4 say little of the factor: most of each is launching it",)


def test_what_no_factor_makes_is_refused() -> None:
    with pytest.raises(MeasurementError, match=r"s\.csv:2: no factor 'all' makes .* as they are"):
        fitted([0.9], lambda x: [1.0 + x])


def test_a_fit_that_helps_nothing_is_reported() -> None:
    fit = fitted([28.1, 53.0], lambda x: [37.75 * x, 37.75 * x])
    assert fit.median_error_before == pytest.approx((37.75 / 28.1 - 37.75 / 53) / 2)
    (warning,) = fit.warnings
    assert warning == (
        "the factor makes predictions no better: the median error is 31.6 % before and 33.9 % after"
    )


def test_a_factor_far_from_one_is_reported() -> None:
    (warning,) = fitted([18.2], lambda x: [x]).warnings
    assert warning.startswith("x 18.2 is far from 1: are the unit, and the part or program that")
    assert fitted([2.0], lambda x: [x]).warnings == ()
