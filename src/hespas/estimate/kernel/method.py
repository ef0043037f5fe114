"""Make the estimator of ``method: kernel``."""

from __future__ import annotations

from hespas.estimate.kernel.estimator import KernelEstimator
from hespas.estimate.kernel.kept import KeptAnalyses
from hespas.estimate.kernel.pricer import ReadKernels
from hespas.estimate.methods import Wanted
from hespas.estimate.roofline import Roofline
from hespas.hardware.microarchitecture import load_microarchitecture
from hespas.program.kernels import CompiledKernels


def make(wanted: Wanted) -> KernelEstimator:
    """Return the estimator of the method ``kernel``.

    Raises `ConfigError` without a device, `HardwareError` for one whose inside is not described.
    """
    device = wanted.needed_device("kernel")
    roofline = Roofline(
        device=device, options=wanted.roofline_options, custom_calls=wanted.custom_calls
    )
    read = ReadKernels(
        device=device,
        gpu=load_microarchitecture(device),
        kernels=wanted.kernels or CompiledKernels(launches=(), ptx={}),
        kept=KeptAnalyses(directory=wanted.kernels_directory),
    )
    return KernelEstimator(kernels=read, roofline=roofline)
