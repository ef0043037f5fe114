"""What prices a kernel, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from hespas.cost.structure import Leaf
from hespas.program.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A time, and what was assumed to tell it."""

    time_s: float
    notes: tuple[str, ...] = ()

    def __add__(self, other: Timed) -> Timed:
        return Timed(time_s=self.time_s + other.time_s, notes=self.notes + other.notes)

    def __mul__(self, count: float) -> Timed:
        return Timed(time_s=self.time_s * count, notes=self.notes)


class KernelPricer(Protocol):
    """Prices the kernels that are no products: fusions, copies, reductions."""

    @property
    def parameters(self) -> Mapping[str, object]:
        """Everything besides the kernel that decides the answer, as JSON values."""
        ...

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What it takes for granted of every kernel, as sentences for people."""
        ...

    def price(self, leaf: Leaf, program: Program) -> Timed | None:
        """Return the time of a kernel, its launch included; None where it is not known."""
        ...
