"""Times that are known of operations one by one, and what they are together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from hespas.cost.structure import Leaf
from hespas.estimate.estimate import Estimate
from hespas.estimate.opened import summed
from hespas.estimate.roofline import Roofline


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A time, and what was assumed to tell it."""

    time_s: float
    notes: tuple[str, ...] = ()

    def __add__(self, other: Timed) -> Timed:
        return Timed(time_s=self.time_s + other.time_s, notes=self.notes + other.notes)

    def __mul__(self, count: float) -> Timed:
        return Timed(time_s=self.time_s * count, notes=self.notes)


def summed_times(
    leaves: Sequence[Leaf], time: Callable[[Leaf], Timed], roofline: Roofline
) -> Estimate:
    """Return what operations cost that take the times of ``time``, beside the roofline's peaks."""
    times = [time(leaf) for leaf in leaves]
    return summed(
        (
            (leaf.op.name, roofline.timed(leaf.op.name, leaf.work, timed.time_s))
            for leaf, timed in zip(leaves, times, strict=True)
        ),
        chain(
            (leaf.assumption for leaf in leaves),
            roofline.unrated(leaf.work for leaf in leaves),
            *(timed.notes for timed in times),
        ),
    )
