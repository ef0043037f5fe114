"""Fit factors by predicting with them.

Not all of a prediction grows with a factor: launches and communication stay as they are, and
nothing gets faster than the peaks. So a factor is fitted by predicting with it, and the reported
errors are of predictions with all written factors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from statistics import median

from hespas.base.frozen import frozen
from hespas.errors import MeasurementError
from hespas.evidence.calibrate.samples import Case, FactorFit, Sample
from hespas.hardware.device import Device

SMALLEST_FACTOR = 1e-3
"""With this factor, only the unscaled part of a prediction is left."""

_LARGEST_LOG = -log(SMALLEST_FACTOR)
_TOLERANCE = 1e-5
_MOST_PREDICTIONS = 60
_LEAST_GROWTH = 1.5
"""Predictions that twice the factor lengthens less than this hardly depend on it."""

Predict = Callable[[Device], Sequence[float]]


@frozen
class Group:
    """The measurements that one factor is fitted to.

    ``name`` is a key of a node's ``calibration``; ``predict`` returns the time of each case on a
    device, in seconds, as the device is calibrated.
    """

    name: str
    cases: tuple[Case, ...]
    predict: Predict
    notes: tuple[str, ...] = ()


def fit_factors(groups: Sequence[Group], device: Device) -> tuple[FactorFit, ...]:
    """Return a factor for each group, fitted in order.

    The median of measured over predicted time becomes 1, which no outlier pulls. Raises
    `MeasurementError` if no factor does that.
    """
    calibrated = device
    fitted: list[tuple[Group, float, tuple[str, ...]]] = []
    for group in groups:
        decisive = _decisive_cases(group, calibrated)
        factor = float(f"{_factor(group, decisive, calibrated):.4g}")
        calibrated = with_factors(calibrated, {group.name: factor})
        fitted.append((group, factor, _idle_note(group, decisive)))
    return tuple(
        FactorFit(
            name=group.name,
            factor=factor,
            samples=_samples(group, device, calibrated),
            notes=(*group.notes, *notes),
        )
        for group, factor, notes in fitted
    )


def combined(factors: Mapping[str, float], fitted: Mapping[str, float]) -> dict[str, float]:
    """Multiply fitted factors, of four digits, onto a node's factors.

    >>> combined({"gemm": 2.0, "kernels": 0.5}, {"gemm.bf16": 1.5, "kernels": 3.0})
    {'gemm': 2.0, 'kernels': 1.5, 'gemm.bf16': 3.0}
    """
    products = {
        name: float(f"{value * _current_factor(factors, name):.4g}")
        for name, value in fitted.items()
    }
    return {**factors, **products}


def _current_factor(factors: Mapping[str, float], name: str) -> float:
    general = factors.get("gemm", 1.0) if name.startswith("gemm.") else 1.0
    return factors.get(name, general)


def with_factors(device: Device, fitted: Mapping[str, float]) -> Device:
    """Return the device with fitted factors, as files have them."""
    return _change_factors(device, lambda factors: combined(factors, fitted))


def scaled(device: Device, name: str, factor: float) -> Device:
    """Return the device with an unrounded factor."""
    return _change_factors(
        device, lambda factors: {**factors, name: factor * _current_factor(factors, name)}
    )


def _change_factors(
    device: Device, factors_of: Callable[[Mapping[str, float]], Mapping[str, float]]
) -> Device:
    measured = device.measured
    if measured is None:
        return device
    return replace(device, measured=replace(measured, factors=factors_of(measured.factors)))


def _decisive_cases(group: Group, device: Device) -> list[int]:
    """Return the cases that depend on the factor, or all."""
    numbers = list(range(len(group.cases)))
    if len(numbers) < 2:
        return numbers
    once = group.predict(device)
    twice = group.predict(scaled(device, group.name, 2.0))
    return [
        number for number in numbers if twice[number] >= _LEAST_GROWTH * once[number]
    ] or numbers


def _idle_note(group: Group, decisive: Sequence[int]) -> tuple[str, ...]:
    idle = len(group.cases) - len(decisive)
    if not idle:
        return ()
    return (f"{idle} of {len(group.cases)} say little of the factor: most of each is launching it",)


def _factor(group: Group, decisive: Sequence[int], device: Device) -> float:
    measured = [group.cases[number].measured_s for number in decisive]

    def missing(log_factor: float) -> float:
        """Return the log of the median measured over predicted time."""
        times = group.predict(scaled(device, group.name, exp(log_factor)))
        predicted = (times[number] for number in decisive)
        return log(median(m / p for m, p in zip(measured, predicted, strict=True)))

    root = _root(missing)
    if root is None:
        case = group.cases[decisive[0]]
        raise MeasurementError(
            f"no factor {group.name!r} makes predictions what was measured: launches, "
            "communication and the peaks stay as they are",
            location=case.location,
            hint="correct the unit, or the program, node and system that were measured",
        )
    return exp(root)


def _root(function: Callable[[float], float]) -> float | None:
    """Return the root of a falling function, if any.

    The method is false position (Illinois). Steps from 0 grow until there is a point on each side.
    The line between the two gives the next; a side that stays twice counts half, so that neither
    stays for ever.
    """
    sides: dict[bool, tuple[float, float]] = {}
    x, step, was_above = 0.0, 0.0, False
    for _ in range(_MOST_PREDICTIONS):
        value = function(x)
        if abs(value) < _TOLERANCE:
            return x
        is_above = value > 0
        if len(sides) == 2 and is_above == was_above:
            opposite, height = sides[not is_above]
            sides[not is_above] = (opposite, height / 2)
        sides[is_above], was_above = (x, value), is_above
        if len(sides) < 2:
            if abs(x) >= _LARGEST_LOG:
                return None
            step = max(2 * abs(value), 2 * step)
            further = x + (step if is_above else -step)
            x = min(max(further, -_LARGEST_LOG), _LARGEST_LOG)
            continue
        (x_above, above), (x_below, below) = sides[True], sides[False]
        x = (x_above * below - x_below * above) / (below - above)
    return x


def _samples(group: Group, base: Device, calibrated: Device) -> tuple[Sample, ...]:
    before, after = group.predict(base), group.predict(calibrated)
    return tuple(
        Sample(case=case, predicted_s=predicted_s, fitted_s=fitted_s)
        for case, predicted_s, fitted_s in zip(group.cases, before, after, strict=True)
    )
