"""``method: kernel``: kernels as they are read, and the roofline for what libraries run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hespas.hardware.microarchitecture import load_microarchitecture
from hespas.price.bound import Bound
from hespas.price.driver import Price, Timing, estimate_region
from hespas.price.estimate import Estimate
from hespas.price.methods import EstimatorSpec
from hespas.price.ptx.kernels import AnalysisCache, KernelPricer
from hespas.price.rates import Rates
from hespas.price.roofline import Roofline
from hespas.program.kernels import CompiledKernels
from hespas.program.program import Program
from hespas.split.regions import Compute
from hespas.work.expand import Leaf

_LIBRARY = "kernel: libraries' kernels have no PTX here, and are priced by the roofline"
_UNCOMPILED = (
    "kernel: the program is not compiled: every operation is priced as a kernel of its own, "
    "without its launch"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEstimator:
    """Prices regions by reading their kernels."""

    kernels: KernelPricer
    roofline: Roofline

    @property
    def method(self) -> str:
        """Its name in configuration files."""
        return "kernel"

    @property
    def parameters(self) -> Mapping[str, object]:
        """Those of both."""
        return {"kernels": dict(self.kernels.parameters), **self.roofline.parameters}

    def at_rates(self, rates: Rates) -> KernelEstimator:
        """Return the estimator of a device that differs by these factors alone."""
        kernels, roofline = self.kernels.at_rates(rates), self.roofline.at_rates(rates)
        return replace(self, kernels=kernels, roofline=roofline)

    def assumptions(self, program: Program) -> tuple[str, ...]:
        """Return what it assumes of every region, compiled or not."""
        del program
        return (*self.kernels.assumptions, _LIBRARY)

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Add up the region's operations; `CostError` for work that is not known."""
        total = estimate_region(self, region, program, custom_calls=self.roofline.custom_calls)
        return total if program.is_scheduled else total + Estimate(notes=(_UNCOMPILED,))

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Return what one operation costs, the launch of a kernel within."""
        return self.roofline.price_timed(leaf, self._time(leaf, is_kernel=is_kernel))

    def _time(self, leaf: Leaf, *, is_kernel: bool) -> Timing:
        """Return the time of an operation: never less than its arithmetic takes at the peaks."""
        peak = self.roofline.at_peaks(leaf.op.name, leaf.work)
        if leaf.op.traits.is_of_library:
            launch_s = self.kernels.gpu.launch_s if is_kernel else 0.0
            bound = peak.bound + Bound(launch_s=launch_s)
            return Timing(time_s=peak.time_s + launch_s, bound=bound)
        reading = self.kernels.read(leaf)
        launch_s = reading.terms.launch_s if is_kernel else 0.0
        products_s = sum(
            totals.time_at_peak_s
            for name, totals in peak.per_type.items()
            if name in self.roofline.device.per_datatype_flops
        )
        kernel_s = self.kernels.time_s(reading) - (reading.terms.launch_s - launch_s)
        if kernel_s < products_s:
            bound = Bound(compute_s=products_s)
            return Timing(time_s=products_s, notes=reading.notes, bound=bound)
        bound = reading.terms.bound(kernel_s - launch_s) + Bound(launch_s=launch_s)
        return Timing(time_s=kernel_s, notes=reading.notes, bound=bound)


def make(spec: EstimatorSpec) -> KernelEstimator:
    """Return the estimator of the method ``kernel``.

    Raises `ConfigError` without a device, `HardwareError` for one whose inside is not described.
    """
    device = spec.needed_device("kernel")
    roofline = Roofline(
        device=device, options=spec.roofline_options, custom_calls=spec.custom_calls
    )
    read = KernelPricer(
        device=device,
        gpu=load_microarchitecture(device),
        kernels=spec.kernels or CompiledKernels(launches=(), ptx={}),
        cache=AnalysisCache(directory=spec.kernels_directory),
    )
    return KernelEstimator(kernels=read, roofline=roofline)
