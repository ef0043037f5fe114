"""Kernels against their own limit: their bytes at the peak bandwidth, and the launch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hespas.price.driver import OperationMethod
from hespas.price.estimate import Estimate, OpEstimate, Price
from hespas.price.kernel import kernel_of
from hespas.price.measured import Measured
from hespas.price.ptx.kernels import KernelEstimator, KernelPricer, Reading
from hespas.price.ptx.terms import reasons
from hespas.work.expand import Leaf

_MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowKernel:
    """A kernel that takes longer than its limit: all launches of a step, and why."""

    name: str
    time_s: float
    limit_s: float
    why: tuple[str, ...]

    @property
    def note(self) -> str:
        """What part of its limit it reaches, and why it is no more."""
        part = f"{self.name} runs at {100 * self.limit_s / self.time_s:.0f} % of its memory limit"
        return f"{part}: {'; '.join(self.why)}" if self.why else part


def pricer_of(method: object) -> KernelPricer | None:
    """Return what reads kernels for a method; None where nothing does."""
    return method.kernels if isinstance(method, Measured | KernelEstimator) else None


def name_of(leaf: Leaf, reading: Reading) -> str:
    """Return the name of a kernel: as the compiler called it, or its instruction's."""
    return reading.analysis.name if reading.analysis else leaf.op.instruction


@dataclass(frozen=True, slots=True, kw_only=True)
class ByKernel:
    """Prices kernels under their names, with their limit as what memory takes; all else as nothing.

    ``first`` has what was read of the first kernel of each name.
    """

    method: OperationMethod
    kernels: KernelPricer
    first: dict[str, Reading] = field(default_factory=dict[str, Reading])

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Return the price of one operation."""
        if not is_kernel or kernel_of(leaf.op).is_of_library:
            return Price(cost=OpEstimate())
        reading = self.kernels.read(leaf)
        name = name_of(leaf, reading)
        self.first.setdefault(name, reading)
        time_s = self.method.price(leaf, is_kernel=is_kernel).cost.time_s
        limit_s = min(time_s, _limit_s(reading))
        cost = OpEstimate(count=1.0, time_s=time_s, memory_time_at_peak_s=limit_s)
        return Price(cost=cost, label=name)

    def slowest(self, priced: Estimate) -> list[SlowKernel]:
        """Return the kernels that lose most time against their limit, the slowest first."""
        found = [
            SlowKernel(
                name=name,
                time_s=priced.per_op[name].time_s,
                limit_s=priced.per_op[name].memory_time_at_peak_s,
                why=reasons(reading.terms, reading.analysis, category=reading.category),
            )
            for name, reading in self.first.items()
            if name in priced.per_op
        ]
        slow = [each for each in found if each.limit_s < each.time_s]
        return sorted(slow, key=lambda each: (each.limit_s - each.time_s, each.name))[:_MOST]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLimit:
    """Prices the kernels of a name, or all, at their limit; all else as ``method`` does."""

    method: OperationMethod
    kernels: KernelPricer
    name: str | None = None

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Return the price of one operation."""
        price = self.method.price(leaf, is_kernel=is_kernel)
        if not is_kernel or kernel_of(leaf.op).is_of_library:
            return price
        reading = self.kernels.read(leaf)
        if self.name not in {None, name_of(leaf, reading)}:
            return price
        time_s = min(price.cost.time_s, _limit_s(reading))
        cost = OpEstimate(count=price.cost.count, time_s=time_s)
        return replace(price, cost=cost)


def _limit_s(reading: Reading) -> float:
    return reading.floor_s + reading.terms.launch_s
