"""Make the estimator of ``method: measured``."""

from __future__ import annotations

from hespas.estimate.kernel.kept import KeptAnalyses
from hespas.estimate.kernel.pricer import kernel_pricer
from hespas.estimate.measured.attention import attention_model
from hespas.estimate.measured.estimator import Measured
from hespas.estimate.measured.gemm import gemm_model
from hespas.estimate.measured.pricer import KernelPricer
from hespas.estimate.measured.streaming import streaming_of
from hespas.estimate.methods import Wanted
from hespas.estimate.roofline import Roofline


def make(wanted: Wanted) -> Measured:
    """Return the estimator of the method ``measured``.

    Raises `ConfigError` without a device, `HardwareError` for a device that no tables serve.
    """
    device = wanted.needed_device("measured")
    kept = KeptAnalyses(directory=wanted.kernels_directory)
    return measured(wanted, kernels=kernel_pricer(device, wanted.kernels, kept=kept))


def measured(wanted: Wanted, *, kernels: KernelPricer | None) -> Measured:
    """Return the estimator with ``kernels`` for what is no product."""
    device = wanted.needed_device("measured")
    gemm = gemm_model(device)
    roofline = Roofline(
        device=device, options=wanted.roofline_options, custom_calls=wanted.custom_calls
    )
    return Measured(
        gemm=gemm,
        attention=attention_model(device),
        streaming=streaming_of(gemm.part.about, roofline),
        kernels=kernels,
    )
