"""What bounds a time: the parts of it that arithmetic, memory and launches decide.

Every method prices by limits, `c` for arithmetic, `m` for memory, `l` for the launch, so that an
operation takes `f(c, m) + l`. The part of a limit is by how much, in proportion, the time falls
as the limit is relieved, ``c df/dc``. The parts add to the time for the two forms in use, which
both grow with their arguments in proportion (Euler's theorem on homogeneous functions):

* ``max(c, m)``, the roofline: the larger one has all of it;
* ``hypot(c, m)``, kernels that are read: each has its square over the time.

What a method doesn't divide, as a time that was measured as a whole, is in none of the parts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The parts of a time in seconds; they add and multiply as the time does.

    >>> Bound(compute_s=1.0) + Bound(launch_s=0.5) * 2
    Bound(compute_s=1.0, memory_s=0.0, launch_s=1.0)
    """

    compute_s: float = 0.0
    memory_s: float = 0.0
    launch_s: float = 0.0

    @property
    def known_s(self) -> float:
        """All parts together: the time, where the method divides all of it."""
        return self.compute_s + self.memory_s + self.launch_s

    def __add__(self, other: Bound) -> Bound:
        return Bound(
            compute_s=self.compute_s + other.compute_s,
            memory_s=self.memory_s + other.memory_s,
            launch_s=self.launch_s + other.launch_s,
        )

    def __mul__(self, count: float) -> Bound:
        return Bound(
            compute_s=self.compute_s * count,
            memory_s=self.memory_s * count,
            launch_s=self.launch_s * count,
        )


UNDIVIDED = Bound()
"""Says nothing of what decides a time."""


def larger_of(time_s: float, *, compute_s: float, memory_s: float) -> Bound:
    """Return the parts of a time that the larger of two limits decides.

    A time with neither limit is in no part.

    >>> larger_of(3.0, compute_s=1.0, memory_s=2.0)
    Bound(compute_s=0.0, memory_s=3.0, launch_s=0.0)
    >>> larger_of(3.0, compute_s=0.0, memory_s=0.0).known_s
    0.0
    """
    if compute_s <= 0 and memory_s <= 0:
        return UNDIVIDED
    return Bound(compute_s=time_s) if compute_s >= memory_s else Bound(memory_s=time_s)
