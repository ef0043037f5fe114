"""What every estimator offers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hespas.estimate.estimate import Estimate
from hespas.program.program import Program
from hespas.split.regions import Compute


class Estimator(Protocol):
    """Tells how long a compute region takes on one device."""

    @property
    def method(self) -> str:
        """The name that configuration files give it."""
        ...

    @property
    def parameters(self) -> Mapping[str, object]:
        """Everything besides the region that decides the answer, as JSON values."""
        ...

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What it takes for granted of every region, as sentences for people."""
        ...

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Return what the region costs; a `HespasError` where that is not known."""
        ...
