"""A step's time by phase, module and kernel kind.

A compiled fusion is charged to its own name, which compilers take from its root; every operation
that isn't fused to its own. A collective that compilers combined is charged, by their bytes, to
what its tensors are named after (`hespas.split.names`). What a loop runs counts for all of its
rounds. Computation without a name has a row of its own, so that the rows of each table add up to
the computation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TypeVar

from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_S
from hespas.prediction.figures.communication import Communication, exposed_by_task
from hespas.prediction.figures.schema import NO_NAME_ROW, KindRow, LayerRow, PhaseRow
from hespas.prediction.result import Prediction
from hespas.price.driver import Priced, Step
from hespas.price.estimate import Estimate, OpEstimate
from hespas.price.kernel import kind_of
from hespas.program.program import Op, nested_ops
from hespas.program.scopes import NO_NAME, Named, Phase, merged_layers
from hespas.program.types import size_bytes
from hespas.split.names import carried, operation_names
from hespas.split.regions import Collective, Compute
from hespas.tasks.build import regions_of_tasks
from hespas.tasks.graph import CollectiveTask

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, kw_only=True)
class Amount:
    """Computation and exposed communication, added up in place.

    ``arithmetic_s``, ``memory_s`` and ``launch_s`` are what limits its time, where that is known.
    """

    count: float = 0.0
    time_s: float = 0.0
    flops: float = 0.0
    bytes_moved: float = 0.0
    exposed_s: float = 0.0
    arithmetic_s: float = 0.0
    memory_s: float = 0.0
    launch_s: float = 0.0

    def add(self, amount: Amount, times: float = 1.0) -> None:
        """Add an amount ``times`` times."""
        self.count += amount.count * times
        self.time_s += amount.time_s * times
        self.flops += amount.flops * times
        self.bytes_moved += amount.bytes_moved * times
        self.exposed_s += amount.exposed_s * times
        self.arithmetic_s += amount.arithmetic_s * times
        self.memory_s += amount.memory_s * times
        self.launch_s += amount.launch_s * times


@frozen
class Breakdown:
    """A step's amounts by name and by kind."""

    by_name: Mapping[Named, Amount]
    by_kind: Mapping[str, Amount]


SUMS = "sums of gradients"
"""What adds gradients of micro-batches, in no program."""


def breakdown(prediction: Prediction) -> Breakdown:
    """Return a step's amounts by name and by kind."""
    names = operation_names(prediction.graph)
    by_name: dict[Named, Amount] = {}
    by_kind: dict[str, Amount] = {}
    labels: dict[Op, tuple[Named, str]] = {}
    for op, amount, times in amounts_of(prediction):
        if op not in labels:
            labels[op] = names.of(op), kind_of(op)
        name, kind = labels[op]
        by_name.setdefault(name, Amount()).add(amount, times)
        by_kind.setdefault(kind, Amount()).add(amount, times)
    tensors = carried(prediction.graph.program, names)
    for op, exposed_s in _exposed(prediction):
        for own, share in tensors.of(op):
            by_name.setdefault(own, Amount()).add(Amount(exposed_s=exposed_s * share))
    return Breakdown(by_name=by_name, by_kind=by_kind)


def joined_breakdown(parts: Iterable[tuple[Breakdown, float, float]]) -> Breakdown:
    """Return a weighted sum of breakdowns.

    Each comes with its times and the share of its exposed time.
    """
    by_name: dict[Named, Amount] = {}
    by_kind: dict[str, Amount] = {}
    for part, times, share in parts:
        for name, amount in part.by_name.items():
            shown = replace(amount, exposed_s=amount.exposed_s * share)
            by_name.setdefault(name, Amount()).add(shown, times)
        for kind, amount in part.by_kind.items():
            by_kind.setdefault(kind, Amount()).add(amount, times)
    return Breakdown(by_name=by_name, by_kind=by_kind)


def with_sums_of_gradients(parts: Breakdown, time_s: float) -> Breakdown:
    """Add what adds gradients of micro-batches to their sums, in no program."""
    if not time_s:
        return parts
    name = Named(phase=Phase.BACKWARD, path=(), operation=SUMS)
    amount = Amount(time_s=time_s)
    return Breakdown(
        by_name={**parts.by_name, name: amount}, by_kind={**parts.by_kind, SUMS: amount}
    )


def amounts_of(prediction: Prediction) -> Iterator[tuple[Op, Amount, float]]:
    """Yield operations with their amount and number of runs."""
    parts = _Parts(prediction=prediction)
    counts = Counter(region.operations for region in prediction.graph.compute_regions)
    first = {region.operations: region for region in prediction.graph.compute_regions[::-1]}
    for operations, times in counts.items():
        region = first[operations]
        estimate = prediction.estimates.estimate_of_region[region.id]
        if estimate is None or not estimate.time_s:
            continue
        if len(operations) == 1 and not operations[0].traits.runs_operations:
            yield operations[0], _amount(estimate.total, estimate.time_s), times
            continue
        for op, amount in parts.of(region, estimate):
            yield op, amount, times


def _amount(cost: OpEstimate, time_s: float) -> Amount:
    return Amount(
        count=1.0,
        time_s=time_s,
        flops=cost.flops,
        bytes_moved=cost.bytes_moved,
        arithmetic_s=cost.bound.compute_s,
        memory_s=cost.bound.memory_s,
        launch_s=cost.bound.launch_s,
    )


@dataclass(slots=True, kw_only=True)
class _Parts:
    """Divides regions among their operations, equal regions alike."""

    prediction: Prediction
    _of_module: dict[int, list[tuple[int, Amount]]] = field(
        default_factory=dict[int, list[tuple[int, Amount]]]
    )

    def of(self, region: Compute, estimate: Estimate) -> Iterator[tuple[Op, Amount]]:
        modules = self.prediction.modules
        number = modules.module_of_region[region.id]
        if number not in self._of_module:
            first = self.prediction.graph.regions[modules.modules[number].first_region]
            self._of_module[number] = (
                self._divided(first, estimate) if isinstance(first, Compute) else []
            )
        operations = all_operations(region)
        for index, amount in self._of_module[number]:
            if amount.time_s:
                yield operations[index], amount

    def _divided(self, region: Compute, estimate: Estimate) -> list[tuple[int, Amount]]:
        """Return each operation's amount by index.

        Their times add up to the estimate's.
        """
        indices = {op: index for index, op in enumerate(all_operations(region))}
        steps = self.prediction.steps(region)
        amounts: dict[int, Amount] = {}
        if steps is None:
            for op, amount in _by_bytes(region, estimate):
                amounts[indices[op]] = amount
        else:
            for op, amount, times in _flat(steps, 1.0):
                # The region's first operation is charged for called functions.
                amounts.setdefault(indices.get(op, 0), Amount()).add(amount, times)
        total_s = _total_s(amounts)
        for amount in amounts.values():
            amount.time_s *= estimate.time_s / total_s if total_s else 1.0
        return list(amounts.items())


def all_operations(region: Compute) -> list[Op]:
    """Return a region's operations, each before those inside of it."""
    return [
        op
        for outer in region.operations
        for op in (outer, *(inner for block in outer.regions for inner in nested_ops(block)))
    ]


def _flat(steps: Iterable[Step], times: float) -> Iterator[tuple[Op, Amount, float]]:
    for step in steps:
        if isinstance(step, Priced):
            yield step.op, _amount(step.cost, step.cost.time_s), times
        else:
            yield from _flat(step.body, times * step.count)


def _by_bytes(region: Compute, estimate: Estimate) -> Iterator[tuple[Op, Amount]]:
    """Divide a measured region among operations, by accessed bytes."""
    sizes = {
        op: sum(size_bytes(value.type) for value in (*op.operands, *op.results))
        for op in region.operations
    }
    total_bytes = sum(sizes.values()) or 1
    total = estimate.total
    for op, size in sizes.items():
        yield (
            op,
            Amount(
                count=1.0,
                time_s=estimate.time_s * size / total_bytes,
                flops=total.flops * size / total_bytes,
                bytes_moved=total.bytes_moved * size / total_bytes,
            ),
        )


def _exposed(prediction: Prediction) -> Iterator[tuple[Op, float]]:
    timeline = prediction.timeline
    if timeline is None:
        return
    specified = timeline.as_specified or timeline.slowest
    regions = regions_of_tasks(prediction.graph, prediction.tasks)
    kinds = CollectiveTask if prediction.stages else Communication
    for task, exposed_ps in exposed_by_task(specified, kinds).items():
        region = regions.get(task)
        if exposed_ps and isinstance(region, Collective):
            yield region.operation, exposed_ps / PS_PER_S


def phase_rows(parts: Breakdown) -> list[PhaseRow]:
    """Return each phase's amount in step order, unnamed last."""
    by_phase = _grouped(parts.by_name, lambda name: name.phase)
    total_s = _total_s(by_phase)
    return [
        PhaseRow(
            phase=NO_NAME_ROW if phase is None else phase.value,
            time_s=amount.time_s,
            share=amount.time_s / total_s if total_s else 0.0,
            flops=amount.flops,
            bytes=amount.bytes_moved,
            exposed_s=amount.exposed_s,
        )
        for phase in (*Phase, None)
        if (amount := by_phase.get(phase)) is not None
    ]


def layer_rows(parts: Breakdown, *, depth: int, each_layer: bool) -> list[LayerRow]:
    """Return each module's amount, longest first.

    Paths are cut after ``depth`` modules, counted in the module that has the layers; equal layers
    are one, unless ``each_layer``. What is outside of modules has the name of its operation.
    """
    outer = _outer_modules(parts)

    def path(name: Named) -> str:
        if name == NO_NAME:
            return NO_NAME_ROW
        modules = name.path if each_layer else merged_layers(name.path)
        more = len(outer) if name.path[: len(outer)] == outer else 0
        return "/".join(modules[: depth + more]) or name.operation or NO_NAME_ROW

    by_path = _grouped(parts.by_name, path)
    by_phase = _grouped(parts.by_name, lambda name: (path(name), name.phase))
    total_s = _total_s(by_path)
    rows = [
        LayerRow(
            path=name,
            depth=name.count("/") + 1,
            time_s=amount.time_s,
            share=amount.time_s / total_s if total_s else 0.0,
            flops=amount.flops,
            bytes=amount.bytes_moved,
            exposed_s=amount.exposed_s,
            phases={
                phase.value: by_phase[name, phase].time_s
                for phase in Phase
                if (name, phase) in by_phase
            },
        )
        for name, amount in by_path.items()
    ]
    return sorted(rows, key=lambda row: (-row.time_s, -row.exposed_s, row.path))


def _outer_modules(parts: Breakdown) -> tuple[str, ...]:
    """Return the modules around most of the layers, by their time.

    They are those before the first with a number, as ``model`` of ``model/layers.0/mlp``.
    """
    times_s: dict[tuple[str, ...], float] = {}
    for name, amount in parts.by_name.items():
        pairs = zip(name.path, merged_layers(name.path), strict=True)
        outer = tuple([module for module, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)])
        if len(outer) < len(name.path):
            times_s[outer] = times_s.get(outer, 0.0) + amount.time_s
    return max(times_s, key=lambda outer: times_s[outer], default=())


def kind_rows(parts: Breakdown) -> list[KindRow]:
    """Return the amount of each kind of kernel, longest first."""
    total_s = _total_s(parts.by_kind)
    rows = [
        KindRow(
            kind=kind,
            count=int(amount.count) if amount.count == int(amount.count) else amount.count,
            time_s=amount.time_s,
            share=amount.time_s / total_s if total_s else 0.0,
            flops=amount.flops,
            bytes=amount.bytes_moved,
        )
        for kind, amount in parts.by_kind.items()
    ]
    return sorted(rows, key=lambda row: (-row.time_s, row.kind))


def _grouped(amounts: Mapping[Named, Amount], key: Callable[[Named], K]) -> dict[K, Amount]:
    groups: dict[K, Amount] = {}
    for name, amount in amounts.items():
        groups.setdefault(key(name), Amount()).add(amount)
    return groups


def _total_s(amounts: Mapping[K, Amount]) -> float:
    return sum(amount.time_s for amount in amounts.values())
