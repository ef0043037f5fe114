"""A step's slow kernels, and a table of all kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Protocol

from hespas.base.frozen import frozen
from hespas.price.driver import Estimator, OperationMethod, estimate_region
from hespas.price.estimate import Estimate, OpEstimate, Price
from hespas.price.kernel import kernel_of
from hespas.price.measured import Measured
from hespas.price.ptx.kernels import KernelEstimator, KernelPricer, Reading
from hespas.price.ptx.terms import reasons
from hespas.program.scopes import merged_layers, read_scope
from hespas.program.work import CustomCallCost
from hespas.split.regions import Compute, RegionGraph
from hespas.work.expand import Leaf

_LIBRARY = "library"
_MOST = 5
"""Slow kernels shown."""


@frozen
class SlowKernel:
    """All launches of a kernel slower than its limit."""

    name: str
    time_s: float
    limit_s: float
    why: tuple[str, ...]

    @property
    def note(self) -> str:
        """The reached share of the limit, and the reasons."""
        part = f"{self.name} runs at {100 * self.limit_s / self.time_s:.0f} % of its memory limit"
        return f"{part}: {'; '.join(self.why)}" if self.why else part


def pricer_of(method: object) -> KernelPricer | None:
    """Return the reader of a method's kernels, if any."""
    return method.kernels if isinstance(method, Measured | KernelEstimator) else None


def name_of(leaf: Leaf, reading: Reading) -> str:
    """Return a kernel's compiled or instruction name."""
    return reading.analysis.name if reading.analysis else leaf.op.instruction


@frozen
class ByKernel:
    """Prices kernels by name, and all else as nothing.

    Limits are stored as memory times.
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
        """Return the kernels furthest above their limit, the slowest first."""
        kernels = [
            SlowKernel(
                name=name,
                time_s=priced.per_op[name].time_s,
                limit_s=priced.per_op[name].memory_time_at_peak_s,
                why=reasons(reading.terms, reading.analysis, category=reading.category),
            )
            for name, reading in self.first.items()
            if name in priced.per_op
        ]
        slow = [kernel for kernel in kernels if kernel.limit_s < kernel.time_s]
        return sorted(slow, key=lambda kernel: (kernel.limit_s - kernel.time_s, kernel.name))[
            :_MOST
        ]


@frozen
class AtLimit:
    """Prices kernels of a name, or all, at their limit."""

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


class KernelMethod(Estimator, OperationMethod, Protocol):
    """An estimator that prices single operations, kernels among them."""


@frozen
class KernelRow:
    """Equal kernels: a step launches them ``launches`` times, ``time_s`` each.

    ``launches`` counts every round of a loop; branches with weights make it fractional.
    ``modules`` are the user's modules that have them, without the numbers of layers.
    """

    name: str
    kind: str
    launches: float
    time_s: float
    bytes_moved: int
    reading: Reading
    modules: tuple[str, ...] = ()

    @property
    def total_s(self) -> float:
        """The time of all launches."""
        return self.launches * self.time_s


@frozen
class KernelTable:
    """The kernels of a step, longest first, and libraries'."""

    method: str
    rows: tuple[KernelRow, ...]
    library: OpEstimate
    notes: tuple[str, ...]

    @property
    def launches(self) -> float:
        """The kernel launches of a step, without libraries'."""
        return sum(row.launches for row in self.rows)

    @property
    def kernels_s(self) -> float:
        """The time of all kernels, without libraries'."""
        return sum(row.total_s for row in self.rows)


@frozen
class _Grouped:
    """Labels kernels of equal name and time, priced alike."""

    method: KernelMethod
    kernels: KernelPricer
    labels: dict[tuple[object, ...], str] = field(default_factory=dict[tuple[object, ...], str])
    first: dict[str, tuple[Leaf, Reading]] = field(default_factory=dict[str, tuple[Leaf, Reading]])
    modules: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        price = self.method.price(leaf, is_kernel=is_kernel)
        if not is_kernel:
            return price
        if kernel_of(leaf.op).is_of_library:
            return replace(price, label=_LIBRARY)
        reading = self.kernels.read(leaf)
        name = reading.analysis.name if reading.analysis else reading.category
        key = (name, reading.analysis is None, reading.terms, price.cost.time_s)
        label = self.labels.setdefault(key, f"kernel {len(self.labels)}")
        self.first.setdefault(label, (leaf, reading))
        path = merged_layers(read_scope(leaf.op.scope).path)
        self.modules.setdefault(label, set()).add("/".join(path))
        return replace(price, label=label, notes=())


def kernel_table(
    graph: RegionGraph,
    method: KernelMethod,
    kernels: KernelPricer,
    *,
    custom_calls: Mapping[str, CustomCallCost],
) -> KernelTable:
    """Return the kernels of a compiled program, as priced.

    Loops multiply their launches; a branch launches its most expensive alternative, or each by its
    weight. Raises `CostError` for unknown work.
    """
    by_kernel = _Grouped(method=method, kernels=kernels)
    total = Estimate()
    for operations, count in Counter(
        compute_region.operations for compute_region in graph.compute_regions
    ).items():
        region = Compute(id=0, operations=operations, constants=(), inputs=(), outputs=())
        total += (
            estimate_region(by_kernel, region, graph.program, custom_calls=custom_calls) * count
        )
    rows = [
        KernelRow(
            name=name_of(leaf, reading),
            kind=reading.category,
            launches=total.per_op[label].count,
            time_s=total.per_op[label].time_s / total.per_op[label].count,
            bytes_moved=leaf.work.bytes_moved,
            reading=reading,
            modules=tuple(sorted(by_kernel.modules[label] - {""})),
        )
        for label, (leaf, reading) in by_kernel.first.items()
        if label in total.per_op and total.per_op[label].count
    ]
    return KernelTable(
        method=method.method,
        rows=tuple(sorted(rows, key=lambda row: (-row.total_s, row.name))),
        library=total.per_op.get(_LIBRARY, OpEstimate()),
        notes=total.notes,
    )
