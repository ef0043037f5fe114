"""Estimators of one program on devices that differ in their calibration."""

from __future__ import annotations

from dataclasses import replace

from hespas.estimate.methods import EstimatorSpec
from hespas.estimate.ptx.kernels import KernelPricer
from hespas.estimate.tables.method import Measured, make
from hespas.hardware.device import Device


def calibrated(base: Measured, device: Device) -> Measured:
    """Return a program's estimator for a device calibrated otherwise; kernels are read once."""
    made, read = make(EstimatorSpec(device=device)), base.kernels
    if not isinstance(read, KernelPricer):
        return made
    return replace(made, kernels=replace(read, device=device))
