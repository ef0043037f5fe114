"""What prices a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hespas.cost.structure import Leaf
from hespas.estimate.timed import Timed
from hespas.program.program import Program


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
