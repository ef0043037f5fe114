"""``method: tensor_core``: a TPU's kernels where no TPU compiler saw the program.

Kernels of Pallas take what libtpu's schedules of their steps say (`hespas.price.mosaic`). Those
that a compiler writes take the longest of memory, their products and their instructions
(`hespas.price.tpu_vectors`), and everything else the roofline.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

from hespas.errors import HardwareError
from hespas.price.driver import Price, estimate_region
from hespas.price.estimate import Estimate
from hespas.price.methods import EstimatorSpec
from hespas.price.roofline import Rates, Roofline, is_kernel_of_author, same_work
from hespas.price.tpu_vectors import vector_load, vector_timing
from hespas.program.program import Program
from hespas.split.regions import Compute
from hespas.work.expand import Leaf

_ASSUMPTION = (
    "tensor_core: every kernel but sorts and those of Pallas runs alone at the rates of the "
    "device's memory and units, reading what its body needs from device memory and writing its "
    "results there; nothing launches them one by one"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCoreEstimator:
    """Prices kernels as libtpu schedules them, and what it does not show by the roofline."""

    roofline: Roofline

    @property
    def method(self) -> str:
        """Its name in configuration files."""
        return "tensor_core"

    @property
    def parameters(self) -> Mapping[str, object]:
        """Those of the roofline, among which are the device's units."""
        return self.roofline.parameters

    def at_rates(self, rates: Rates) -> TensorCoreEstimator:
        """Return the estimator of a device that differs by these factors alone."""
        return replace(self, roofline=self.roofline.at_rates(rates))

    def assumptions(self, program: Program) -> tuple[str, ...]:
        """Return what it assumes of every region."""
        del program
        return (_ASSUMPTION,)

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Add up the region's operations; `CostError` for work that is not known."""
        calls = self.roofline.custom_calls
        return estimate_region(self, region, program, custom_calls=calls, key=self._same_price)

    def _same_price(self, leaf: Leaf) -> Hashable:
        """Return what decides an operation's price: its work, and what its units do."""
        core = self.roofline.device.tensor_core
        load = None if core is None else vector_load(leaf.op, leaf.work, core)
        return same_work(leaf), load

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Return what one execution costs."""
        device = self.roofline.device
        core = device.tensor_core
        shows_schedules = core is not None and core.schedules_kernels
        if shows_schedules or not is_kernel_of_author(leaf):
            scheduled = self.roofline.price_scheduled(leaf)
            if scheduled is not None:
                return scheduled
        timing = vector_timing(leaf, device) if is_kernel else None
        if timing is not None:
            return self.roofline.price_timed(leaf, timing)
        return self.roofline.price(leaf, is_kernel=is_kernel)


def make(spec: EstimatorSpec) -> TensorCoreEstimator:
    """Return the estimator of the method ``tensor_core``.

    Raises `ConfigError` without a device, `HardwareError` for one whose units are not described.
    """
    device = spec.needed_device("tensor_core")
    if device.tensor_core is None or device.clock_hz is None:
        raise HardwareError(
            f"the units of {device.name}, or their clock, are not described",
            location=device.name,
            hint="use a TPU's node, or method roofline",
        )
    return TensorCoreEstimator(
        roofline=Roofline(
            device=device, options=spec.roofline_options, custom_calls=spec.custom_calls
        )
    )
