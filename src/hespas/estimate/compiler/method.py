"""Make the estimator of ``method: compiler``."""

from __future__ import annotations

from hespas.errors import HardwareError
from hespas.estimate.compiler.estimator import CompilerEstimator
from hespas.estimate.methods import Wanted
from hespas.estimate.roofline import Roofline


def make(wanted: Wanted) -> CompilerEstimator:
    """Return the estimator of the method ``compiler``.

    Raises `ConfigError` without a device, `HardwareError` for one whose clock is not known.
    """
    device = wanted.needed_device("compiler")
    if device.clock_hz is None:
        raise HardwareError(
            f"the clock of {device.name} is not known",
            location=device.name,
            hint="use a TPU's node or put clock_hz into its node.json, or use method roofline",
        )
    roofline = Roofline(
        device=device, options=wanted.roofline_options, custom_calls=wanted.custom_calls
    )
    return CompilerEstimator(clock_hz=device.clock_hz, roofline=roofline)
