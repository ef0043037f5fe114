"""The roofline of a program that a compiler scheduled: what launching its kernels costs too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hespas.estimate.estimate import Estimate, OpEstimate
from hespas.estimate.protocol import Estimator
from hespas.estimate.roofline import Roofline
from hespas.program.attrs import CallAttrs, CaseAttrs, WhileAttrs
from hespas.program.program import Block, Op, Program
from hespas.split.regions import Compute
from hespas.split.scheduled import FREE
from hespas.units import format_time

LAUNCH = "kernel launch"
"""The kind under which launches stand among the operations of an estimate."""

_KERNELS_ASSUMPTION = (
    "roofline: every kernel of the compiled program runs alone at the device's peak rates, reading "
    "what its body needs from device memory and writing its results there"
)


def for_program(estimator: Estimator, program: Program) -> Estimator:
    """Return the estimator that suits a program: a roofline of a scheduled one counts launches."""
    if program.is_scheduled and isinstance(estimator, Roofline):
        return KernelRoofline(roofline=estimator)
    return estimator


def without_launches_s(estimate: Estimate) -> float:
    """Return the time of an estimate's operations, launches free."""
    return sum(op.time_s for kind, op in estimate.per_op.items() if kind != LAUNCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRoofline:
    """Prices kernels by a device's peak rates, and each launch at the device's overhead."""

    roofline: Roofline

    @property
    def method(self) -> str:
        """Its name in configuration files."""
        return self.roofline.method

    @property
    def parameters(self) -> Mapping[str, object]:
        """The roofline's, and what a launch costs."""
        return {
            **self.roofline.parameters,
            "launch_overhead_s": self.roofline.device.launch_overhead_s,
        }

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What it takes for granted of every region."""
        launches = _told(self.roofline.device.launch_overhead_s)
        return (f"{_KERNELS_ASSUMPTION}; {launches}",)

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Add launches to the roofline's estimate; `CostError` for work that is not known."""
        priced = self.roofline.estimate(region, program)
        overhead_s = self.roofline.device.launch_overhead_s
        launches = kernel_count(region.operations, program)
        if not overhead_s or not launches:
            return priced
        cost = OpEstimate(count=launches, time_s=launches * overhead_s)
        return priced + Estimate(per_op={LAUNCH: cost})


def _told(overhead_s: float | None) -> str:
    if overhead_s is None:
        return "launches cost nothing, for what they cost on this device is not known"
    if overhead_s == 0:
        return "nothing launches them one by one on this device"
    return f"each launch costs {format_time(overhead_s)} more"


def kernel_count(operations: Iterable[Op], program: Program) -> float:
    """Return how many kernels operations launch; loops whose count is unknown count once.

    A branch launches what its weights say, or the most of any alternative.
    """
    return sum(_kernels(op, program) for op in operations if op.kind not in FREE)


def _kernels(op: Op, program: Program) -> float:
    match op.attrs:
        case WhileAttrs(trip_count=count):
            return (1 if count is None else count) * _in_block(op.regions[1], program)
        case CaseAttrs(weights=weights):
            counts = [_in_block(region, program) for region in op.regions]
            if weights is None:
                return max(counts)
            return sum(weight * count for weight, count in zip(weights, counts, strict=True))
        case CallAttrs(callee=callee):
            return _in_block(program.function(callee, location=op.location).body, program)
        case _:
            return 1.0


def _in_block(block: Block, program: Program) -> float:
    return kernel_count(block.operations, program)
