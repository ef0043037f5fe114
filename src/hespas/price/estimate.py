"""Estimates: values that add, and the limits that bound a time.

Every method prices by limits, `c` for arithmetic, `m` for memory, `l` for the launch, so that an
operation takes `f(c, m) + l`. The part of a limit is how much, in proportion, the time falls as the
limit is relieved, ``c df/dc``. The parts add up to the time for the two forms in use, which both
grow with their arguments in proportion (Euler's theorem on homogeneous functions):

* ``max(c, m)``, the roofline: the larger one has all of it;
* ``hypot(c, m)``, kernels that are read: each has its square over the time.

A time that a method doesn't divide, such as one that was measured as a whole, is in no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TypeVar

from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_S


@frozen
class Bound:
    """The parts of a time in seconds; they add as times do.

    >>> Bound(compute_s=1.0) + Bound(launch_s=0.5) * 2
    Bound(compute_s=1.0, memory_s=0.0, launch_s=1.0)
    """

    compute_s: float = 0.0
    memory_s: float = 0.0
    launch_s: float = 0.0

    @property
    def known_s(self) -> float:
        """The sum of the parts, the whole time if fully divided."""
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
"""The bound of a time without known limits."""


def larger_of(time_s: float, *, compute_s: float, memory_s: float) -> Bound:
    """Attribute a time to the larger of two limits.

    A time without limits is in no part.

    >>> larger_of(3.0, compute_s=1.0, memory_s=2.0)
    Bound(compute_s=0.0, memory_s=3.0, launch_s=0.0)
    >>> larger_of(3.0, compute_s=0.0, memory_s=0.0).known_s
    0.0
    """
    if compute_s <= 0 and memory_s <= 0:
        return UNDIVIDED
    return Bound(compute_s=time_s) if compute_s >= memory_s else Bound(memory_s=time_s)


FROM_TIME = -1
"""The ``duration_ps`` that means ``time_s`` in picoseconds."""

LAUNCH = "kernel launch"
"""The kind of launches among the operations of an estimate."""


@frozen
class TypeTotals:
    """FLOPs of one type, and their time at its peak rate."""

    flops: float = 0.0
    time_at_peak_s: float = 0.0

    def __add__(self, other: TypeTotals) -> TypeTotals:
        return TypeTotals(
            flops=self.flops + other.flops,
            time_at_peak_s=self.time_at_peak_s + other.time_at_peak_s,
        )

    def __mul__(self, count: float) -> TypeTotals:
        return TypeTotals(flops=self.flops * count, time_at_peak_s=self.time_at_peak_s * count)


@frozen
class OpEstimate:
    """All executions of one kind of operation: count, time and work.

    ``memory_time_at_peak_s`` is the time that ``bytes_moved`` takes at peak bandwidth. ``energy_j``
    is None where the device's power is not known. ``duration_ps`` is ``time_s`` in the whole
    picoseconds of simulations; each execution is rounded on its own, so that the sum over a program
    doesn't depend on how the program is cut. ``bound`` says which limits decide ``time_s``.
    """

    count: float = 0.0
    time_s: float = 0.0
    bytes_moved: float = 0.0
    memory_time_at_peak_s: float = 0.0
    energy_j: float | None = None
    per_type: Mapping[str, TypeTotals] = field(default_factory=dict[str, TypeTotals])
    duration_ps: int = FROM_TIME
    bound: Bound = UNDIVIDED

    def __post_init__(self) -> None:
        if self.duration_ps == FROM_TIME:
            object.__setattr__(self, "duration_ps", round(self.time_s * PS_PER_S))

    @property
    def flops(self) -> float:
        """FLOPs of all types."""
        return sum((totals.flops for totals in self.per_type.values()), 0.0)

    @property
    def compute_time_at_peak_s(self) -> float:
        """The time of the FLOPs at the peak rates of their types."""
        return sum((totals.time_at_peak_s for totals in self.per_type.values()), 0.0)

    @property
    def other_s(self) -> float:
        """The time that no arithmetic, memory or launch is known to decide."""
        return max(0.0, self.time_s - self.bound.known_s)

    @property
    def knows_peaks(self) -> bool:
        """Whether the time at peak rates is known."""
        return self.compute_time_at_peak_s + self.memory_time_at_peak_s > 0 or not (
            self.flops or self.bytes_moved
        )

    @property
    def main_type(self) -> str:
        """The type of most FLOPs, preferably with a peak rate; empty without."""
        per_type = self.per_type
        return max(
            per_type,
            key=lambda name: (per_type[name].time_at_peak_s > 0, per_type[name].flops, name),
            default="",
        )

    @property
    def flops_utilisation(self) -> float:
        """The part of the time that FLOPs take at peak."""
        return _ratio(self.compute_time_at_peak_s, self.time_s)

    @property
    def memory_utilisation(self) -> float:
        """The used part of the peak memory bandwidth, 0 to 1."""
        return _ratio(self.memory_time_at_peak_s, self.time_s)

    def __add__(self, other: OpEstimate) -> OpEstimate:
        return OpEstimate(
            count=self.count + other.count,
            time_s=self.time_s + other.time_s,
            bytes_moved=self.bytes_moved + other.bytes_moved,
            memory_time_at_peak_s=self.memory_time_at_peak_s + other.memory_time_at_peak_s,
            energy_j=_sum_known(self.energy_j, other.energy_j),
            per_type=_sum_by_key(self.per_type, [other.per_type]),
            duration_ps=self.duration_ps + other.duration_ps,
            bound=self.bound + other.bound,
        )

    def __mul__(self, count: float) -> OpEstimate:
        return OpEstimate(
            count=self.count * count,
            time_s=self.time_s * count,
            bytes_moved=self.bytes_moved * count,
            memory_time_at_peak_s=self.memory_time_at_peak_s * count,
            energy_j=None if self.energy_j is None else self.energy_j * count,
            per_type={key: totals * count for key, totals in self.per_type.items()},
            duration_ps=round(self.duration_ps * count),
            bound=self.bound * count,
        )


@frozen
class Timing:
    """A duration, its limits, and the assumptions made for it."""

    time_s: float
    notes: tuple[str, ...] = ()
    bound: Bound = UNDIVIDED

    def __add__(self, other: Timing) -> Timing:
        return Timing(
            time_s=self.time_s + other.time_s,
            notes=self.notes + other.notes,
            bound=self.bound + other.bound,
        )

    def __mul__(self, count: float) -> Timing:
        return Timing(time_s=self.time_s * count, notes=self.notes, bound=self.bound * count)

    def slowed(self, factor: float) -> Timing:
        """Return the timing with arithmetic that takes ``factor`` times as long.

        >>> Timing(time_s=3.0, bound=Bound(compute_s=2.0, launch_s=1.0)).slowed(1.5).time_s
        4.0
        """
        more_s = self.bound.compute_s * (factor - 1)
        bound = self.bound + Bound(compute_s=more_s)
        return Timing(time_s=self.time_s + more_s, notes=self.notes, bound=bound)


@frozen
class Price:
    """The cost of one execution of an operation, with labels and notes.

    ``launch_s`` is the time of its launch beside ``cost``, reported under `LAUNCH`; a method that
    knows launch and kernel only together includes it in ``cost``. ``label`` names the operation in
    tables where that differs from the operation's own name. ``notes`` are assumptions; empty ones
    are skipped.
    """

    cost: OpEstimate
    launch_s: float = 0.0
    label: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


T = TypeVar("T", TypeTotals, OpEstimate, float)


@frozen
class Estimate:
    """The cost of a piece of a program, by kind of operation.

    Estimates add, in any order, and multiply by a count; `Estimate()` is the zero. ``notes`` are
    the assumptions, sorted and distinct; ``warnings``, likewise, are those that the user asked for.
    ``noted_s`` maps a note to the time of the operations that it concerns; a note on everything has
    no entry.
    """

    per_op: Mapping[str, OpEstimate] = field(default_factory=dict[str, OpEstimate])
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    noted_s: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        if len(self.notes) > 1:
            object.__setattr__(self, "notes", tuple(sorted(set(self.notes))))
        if len(self.warnings) > 1:
            object.__setattr__(self, "warnings", tuple(sorted(set(self.warnings))))

    @property
    def total(self) -> OpEstimate:
        """The sum over all kinds of operations."""
        estimates = tuple(self.per_op.values())
        return sum(estimates[1:], estimates[0]) if estimates else OpEstimate()

    @property
    def time_s(self) -> float:
        """The time of all operations, one after the other."""
        return sum((op.time_s for op in self.per_op.values()), 0.0)

    @property
    def duration_ps(self) -> int:
        """The sum of times, each in whole picoseconds."""
        return sum(op.duration_ps for op in self.per_op.values())

    @property
    def without_launches_s(self) -> float:
        """The time of all operations if launches were free."""
        return sum((op.time_s for kind, op in self.per_op.items() if kind != LAUNCH), 0.0)

    @property
    def longest_kind(self) -> str:
        """The kind of operation that takes most of the time."""
        return max(self.per_op, key=lambda kind: (self.per_op[kind].time_s, kind), default="")

    def __add__(self, other: Estimate) -> Estimate:
        return sum_estimates([other], start=self)

    def __mul__(self, count: float) -> Estimate:
        return Estimate(
            per_op={kind: op * count for kind, op in self.per_op.items()},
            notes=self.notes,
            warnings=self.warnings,
            noted_s={note: time_s * count for note, time_s in self.noted_s.items()},
        )


NOTHING = Estimate()
"""The cost of nothing."""


def _ratio(part: float, whole: float) -> float:
    """Return part / whole, limited to 0 to 1 against rounding."""
    return min(1.0, part / whole) if whole > 0 else 0.0


def _sum_known(left: float | None, right: float | None) -> float | None:
    if left is None or right is None:
        return left if right is None else right
    return left + right


def sum_estimates(estimates: Iterable[Estimate], *, start: Estimate = NOTHING) -> Estimate:
    """Return the sum of estimates, added in their order."""
    added = list(estimates)
    return Estimate(
        per_op=_sum_by_key(start.per_op, [it.per_op for it in added]),
        notes=tuple(set(start.notes).union(*[it.notes for it in added])),
        warnings=tuple(set(start.warnings).union(*[it.warnings for it in added])),
        noted_s=_sum_by_key(start.noted_s, [it.noted_s for it in added]),
    )


def _sum_by_key(first: Mapping[str, T], more: Iterable[Mapping[str, T]]) -> dict[str, T]:
    added = dict(first)
    for mapping in more:
        for key, value in mapping.items():
            added[key] = added[key] + value if key in added else value
    return added
