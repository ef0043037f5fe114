"""The kernels of a compiled program: which take longest, and what limits them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hespas.base.units import format_time
from hespas.price.driver import Estimator, OperationMethod, estimate_region
from hespas.price.estimate import Estimate, OpEstimate, Price
from hespas.price.kernel import kernel_of
from hespas.price.ptx.kernels import KernelPricer, Reading
from hespas.price.ptx.terms import reasons
from hespas.program.scopes import merged_layers, read_scope
from hespas.split.regions import Compute, RegionGraph
from hespas.work.custom_call import CustomCallCost
from hespas.work.expand import Leaf

_LIBRARY = "library"


class KernelMethod(Estimator, OperationMethod, Protocol):
    """An estimator that prices single operations, kernels among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """Equal kernels: a step launches them ``launches`` times, ``time_s`` each.

    ``launches`` counts every round of a loop. It is no whole number where branches have weights.
    ``modules`` are the user's modules that they belong to, without the numbers of layers.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """The kernels of a step, longest first, and what libraries run beside them: all computation."""

    method: str
    rows: tuple[KernelRow, ...]
    library: OpEstimate
    notes: tuple[str, ...]

    @property
    def launches(self) -> float:
        """How often a step launches kernels, libraries' left out."""
        return sum(row.launches for row in self.rows)

    @property
    def kernels_s(self) -> float:
        """What all kernels take, libraries' left out."""
        return sum(row.total_s for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ByKernel:
    """Prices operations as ``method`` does, and labels them with the kernel that they launch."""

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
    """Return the kernels of a compiled program, as ``method`` prices its computation.

    Loops multiply what they launch; a branch launches its most expensive alternative, or each by
    its weight. Raises `CostError` for work that is not known.
    """
    by_kernel = _ByKernel(method=method, kernels=kernels)
    total = Estimate()
    for operations, count in Counter(each.operations for each in graph.compute_regions).items():
        region = Compute(id=0, operations=operations, constants=(), inputs=(), outputs=())
        total += (
            estimate_region(by_kernel, region, graph.program, custom_calls=custom_calls) * count
        )
    rows = [
        KernelRow(
            name=reading.analysis.name if reading.analysis else leaf.op.instruction,
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


def kernels_text(table: KernelTable, *, shown: int) -> str:
    """Return a table of the first ``shown`` kernels, with what limits them."""
    lines = [
        (
            f"{table.launches:g} launches of {len(table.rows)} kernels take "
            f"{format_time(table.kernels_s)} of a step"
        )
    ]
    if table.library.count:
        lines.append(
            f"{table.library.count:g} calls of libraries (matrix products, convolutions, fused "
            f"attention) take {format_time(table.library.time_s)} more"
        )
    lines += [
        "",
        (
            f"  {'together':>10} {'each':>10} {'launches':>8}  {'memory':>8} {'L2':>8} {'L1':>8} "
            f"{'pipe':>8} {'turnover':>8}  kernel: why"
        ),
    ]
    for row in table.rows[:shown]:
        terms = row.reading.terms
        figures = (terms.memory_s, terms.l2_s, terms.l1_s, terms.pipe_s, terms.turnover_s)
        lines.append(
            f"  {format_time(row.total_s):>10} {format_time(row.time_s):>10} {row.launches:>8g}  "
            + " ".join(f"{1e6 * each:>8.1f}" for each in figures)
            + f"  {row.name}{_where(row)} ({row.kind}): {'; '.join(_why(row))}"
        )
    if len(table.rows) > shown:
        lines.append(f"  and {len(table.rows) - shown} more")
    lines += ["", "Terms of one launch in microseconds."]
    return "\n".join(lines)


def _where(row: KernelRow) -> str:
    if not row.modules:
        return ""
    first, *others = row.modules
    return f" in {first}" + (f" and {len(others)} more" if others else "")


def _why(row: KernelRow) -> Sequence[str]:
    return reasons(row.reading.terms, row.reading.analysis, category=row.kind)


def kernels_json(table: KernelTable) -> Mapping[str, object]:
    """Return all rows as JSON values, times in seconds."""
    return {
        "method": table.method,
        "launches": _count(table.launches),
        "kernels_s": table.kernels_s,
        "library": {"launches": _count(table.library.count), "time_s": table.library.time_s},
        "kernels": [_row_json(row) for row in table.rows],
    }


def _count(launches: float) -> float:
    return int(launches) if launches == int(launches) else launches


def _row_json(row: KernelRow) -> Mapping[str, object]:
    terms = row.reading.terms
    return {
        "name": row.name,
        "kind": row.kind,
        "modules": list(row.modules),
        "launches": _count(row.launches),
        "time_s": row.time_s,
        "total_s": row.total_s,
        "bytes_moved": row.bytes_moved,
        "limit": terms.limit,
        "terms_s": {
            "memory": terms.memory_s,
            "l2": terms.l2_s,
            "l1": terms.l1_s,
            "pipe": terms.pipe_s,
            "turnover": terms.turnover_s,
            "launch": terms.launch_s,
        },
        "pipe": terms.pipe,
        "reasons": list(_why(row)),
        "notes": list(row.reading.notes),
    }
