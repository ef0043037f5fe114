"""``method: compiler``: cycles as a TPU's compiler wrote them, over the clock of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from hespas.errors import ConfigError, CostError, HardwareError, option
from hespas.hardware.tensor_core import TensorCore
from hespas.price.driver import Price, estimate_region
from hespas.price.estimate import UNDIVIDED, Estimate, larger_of
from hespas.price.methods import EstimatorSpec
from hespas.price.roofline import Roofline
from hespas.price.tpu_vectors import vector_timing
from hespas.program.program import Op, Program, all_ops
from hespas.split.regions import Compute
from hespas.work.convolution import convolutions
from hespas.work.expand import Leaf
from hespas.work.gemm import gemms

WITHOUT_CYCLES = "without cycles"
"""Stands behind the names of operations that the compiler wrote no cycles for."""

_EXPECTED = (
    "compiler: operations take the cycles that the TPU's compiler wrote beside them to rank its "
    "own choices; with all cycles as written, steps on TPUs v3, v5e and v5p came out 13 to 30 % "
    "longer than published"
)
_CALIBRATED = (
    "compiler: matrix products take the roofline's time and {part:.0%} of what the compiler's "
    "cycles exceed it by, calibrated to published steps on this part: product_cycles of its "
    "node.json"
)
_MOVING = (
    "compiler: kernels without matrix products take the longer of memory and of their "
    "instructions, and {part:.0%} of what the compiler's cycles exceed that by: moving_cycles of "
    "its node.json"
)
_OTHERS = (
    "compiler: operations that have no cycles take the roofline's time, and are named "
    f"'{WITHOUT_CYCLES}' among the operations"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerEstimator:
    """Prices operations by ``estimated_cycles``, and those without by the roofline.

    Of matrix products, the cycles and the roofline are two bounds: between them they take what
    `hespas.hardware.tensor_core.TensorCore.product_cycles` says.
    """

    clock_hz: float
    roofline: Roofline

    @property
    def method(self) -> str:
        """Its name in configuration files."""
        return "compiler"

    @property
    def parameters(self) -> Mapping[str, object]:
        """The clock, and what decides the roofline. Cycles belong to the operations."""
        return {"clock_hz": self.clock_hz, **self.roofline.parameters}

    def assumptions(self, program: Program) -> tuple[str, ...]:
        """Return what it assumes of every region."""
        del program
        return (_EXPECTED, f"{_OTHERS}; the clock is {self.clock_hz / 1e9:g} GHz")

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Add up the region's operations.

        Raises `ConfigError` for a program without any cycles, `CostError` for work that is not
        known.
        """
        _check(region, program)
        return estimate_region(self, region, program, custom_calls=self.roofline.custom_calls)

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Return what one operation costs: nothing launches it, the TPU runs its program alone."""
        del is_kernel
        op = leaf.op
        if op.traits.runs_nothing:
            return Price(cost=self.roofline.timed(op.name, leaf.work, 0.0, UNDIVIDED))
        if op.estimated_cycles is None:
            return self._without_cycles(leaf)
        time_s, notes = op.estimated_cycles / self.clock_hz, ()
        peak = self.roofline.at_peaks(op.name, leaf.work)
        core = self.roofline.device.tensor_core
        if core is not None:
            time_s, notes = self._calibrated(leaf, core, time_s, peak.time_s)
        bound = larger_of(
            time_s, compute_s=peak.compute_time_at_peak_s, memory_s=peak.memory_time_at_peak_s
        )
        return Price(cost=self.roofline.timed(op.name, leaf.work, time_s, bound), notes=notes)

    def _calibrated(
        self, leaf: Leaf, core: TensorCore, cycles_s: float, peak_s: float
    ) -> tuple[float, tuple[str, ...]]:
        """Return the time between two bounds, and what was assumed for it."""
        if _is_product(leaf.op):
            least_s, part, note = peak_s, core.product_cycles, _CALIBRATED
        else:
            timing = vector_timing(leaf, self.roofline.device)
            least_s = peak_s if timing is None else timing.time_s
            part, note = core.moving_cycles, _MOVING
        if part == 1 or cycles_s <= least_s:
            return cycles_s, ()
        return least_s + part * (cycles_s - least_s), (note.format(part=part),)

    def _without_cycles(self, leaf: Leaf) -> Price:
        scheduled = self.roofline.price_scheduled(leaf)
        if scheduled is not None:
            return scheduled
        name = leaf.op.name
        cost = self.roofline.at_peaks(name, leaf.work)
        return Price(cost=cost, label=f"{name} {WITHOUT_CYCLES}")


def _is_product(op: Op) -> bool:
    """Return whether an operation, or what it fuses, multiplies matrices."""
    try:
        return bool(gemms(op) or convolutions(op))
    except CostError:
        return False


def _check(region: Compute, program: Program) -> None:
    """Raise `ConfigError` where no operation of the program has cycles."""
    if any(op.estimated_cycles is not None for op in chain(region.operations, all_ops(program))):
        return
    raise ConfigError(
        "no operation says how many cycles it takes, as only a TPU's compiler writes",
        location=program.source,
        hint=f"add {option('fidelity')} compiled with a TPU's node, or use method roofline",
    )


def make(spec: EstimatorSpec) -> CompilerEstimator:
    """Return the estimator of the method ``compiler``.

    Raises `ConfigError` without a device, `HardwareError` for one whose clock is not known.
    """
    device = spec.needed_device("compiler")
    if device.clock_hz is None:
        raise HardwareError(
            f"the clock of {device.name} is not known",
            location=device.name,
            hint="use a TPU's node or put clock_hz into its node.json, or use method roofline",
        )
    roofline = Roofline(
        device=device, options=spec.roofline_options, custom_calls=spec.custom_calls
    )
    return CompilerEstimator(clock_hz=device.clock_hz, roofline=roofline)
