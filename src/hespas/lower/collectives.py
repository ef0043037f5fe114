"""Combine collectives, and let other work run beside them.

Collectives of one kind, among the same devices, that do not wait for each other are one, up to the
sizes that the compiler's options say. All-reduces are one buffer: their operands are concatenated,
and each result is cut out of it again. A collective starts as soon as its operands are there, but a
gathering one, whose result takes memory, not before the one before it is needed; whatever stands
between its start and what first needs it runs beside it. A sum over devices ends before the
second one after it starts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import prod

from msgspec.structs import replace

from hespas.compile.options import CompileOptions
from hespas.lower.blocks import tensor_of
from hespas.lower.build import Names
from hespas.lower.order import in_order, needed_by
from hespas.program.attrs import NO_ATTRS, CollectiveAttrs, DimensionAttrs, FusionAttrs, SliceAttrs
from hespas.program.program import Block, Op, Value, is_communication_op
from hespas.program.scopes import joined_scopes
from hespas.program.text import structure_key
from hespas.program.types import AsyncType, TensorType, size_bytes

_MIB = 2**20
_MOST_COMBINED = 256
SUMMING = frozenset({"all_reduce", "reduce_scatter"})
"""Collectives that sum what devices have."""
_SUMS_TOGETHER = 2
"""How many of them are under way at a time. XLA's scheduler has one, and moves products between
them, which stay where they are here."""
_UNPAIRED = frozenset({"send", "recv"})


def limits_of(options: CompileOptions) -> Mapping[str, int]:
    """Return the bytes of results up to which collectives of each kind are combined.

    >>> limits_of(CompileOptions(all_gather_combine_bytes=1))["all_gather"]
    1
    """
    return {
        "all_gather": options.all_gather_combine_bytes or 128 * _MIB,
        "all_reduce": options.all_reduce_combine_bytes or 128 * _MIB,
        "reduce_scatter": options.reduce_scatter_combine_bytes or 64 * _MIB,
    }


def with_combined(operations: Sequence[Op], options: CompileOptions, names: Names) -> list[Op]:
    """Return operations with collectives combined, in an order that is possible."""
    limits = limits_of(options)
    current = list(operations)
    keys = {op: key for op in current if (key := _key(op, limits)) is not None}
    for key in dict.fromkeys(keys.values()):
        chosen = {op for op, each in keys.items() if each == key}
        if len(chosen) > 1:
            current = _combined(current, chosen, limits, names)
    return current


def _key(op: Op, limits: Mapping[str, int]) -> Hashable | None:
    """Return what collectives have in common that can be combined; None for others."""
    if op.kind not in limits or not isinstance(op.attrs, CollectiveAttrs):
        return None
    kinds = {value.type.element for value in op.operands if isinstance(value.type, TensorType)}
    if len(kinds) != 1:
        return None
    bodies = tuple(
        [structure_key(each.operations, each.operations[-1].operands) for each in op.regions]
    )
    return op.kind, op.attrs.groups, op.attrs.mode, next(iter(kinds)), bodies


def _combined(
    operations: list[Op], chosen: AbstractSet[Op], limits: Mapping[str, int], names: Names
) -> list[Op]:
    depths = _depths(operations, chosen)
    batches = _batches(operations, depths, limits)
    if not batches:
        return operations
    gone = {at for batch in batches for at in batch}
    changed: list[Op] = []
    ranks: list[float] = []
    starts = {batch[0]: batch for batch in batches}
    for at, op in enumerate(operations):
        if at in starts:
            made = _joined([operations[each] for each in starts[at]], names)
            changed.extend(made)
            ranks.extend([at] * len(made))
        if at not in gone:
            changed.append(op)
            ranks.append(at)
    return in_order(changed, ranks)


def _depths(operations: Sequence[Op], chosen: AbstractSet[Op]) -> dict[int, int]:
    """Return, for each of the chosen, how many of them stand on the longest way to it."""
    depth_of: dict[Value, int] = {}
    found: dict[int, int] = {}
    for at, op in enumerate(operations):
        depth = max([depth_of.get(value, 0) for value in needed_by(op)], default=0)
        if op in chosen:
            found[at] = depth
            depth += 1
        if depth:
            depth_of.update(dict.fromkeys(op.results, depth))
    return found


def _batches(
    operations: Sequence[Op], depths: Mapping[int, int], limits: Mapping[str, int]
) -> list[list[int]]:
    """Return the collectives that become one: at one depth, none waits for another one."""
    open_batches: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    batches: list[list[int]] = []
    for at, depth in depths.items():
        op = operations[at]
        size = sum([size_bytes(value.type) for value in op.results])
        batch = open_batches.get(depth)
        fits = batch is not None and sizes[depth] + size <= limits[op.kind]
        if batch is None or not fits or len(batch) >= _MOST_COMBINED:
            batch = open_batches[depth] = []
            sizes[depth] = 0
            batches.append(batch)
        batch.append(at)
        sizes[depth] += size
    return [batch for batch in batches if len(batch) > 1]


def _joined(collectives: Sequence[Op], names: Names) -> list[Op]:
    """Return one collective for several, with what goes around it."""
    scopes = sorted({op.scope for op in collectives if op.scope})
    first = replace(collectives[0], scope=joined_scopes(scopes))
    operands = tuple([value for op in collectives for value in op.operands])
    results = tuple([value for op in collectives for value in op.results])
    name = names.next(first.kind)
    if first.kind != "all_reduce":
        return [replace(first, operands=operands, results=results, instruction=name)]
    kind = tensor_of(operands[0])
    counts = [_count(value) for value in operands]
    whole = TensorType(element=kind.element, shape=(sum(counts),))
    packed, reduced = Value(type=whole), Value(type=whole)
    made = [
        _packing(operands, packed, names, first),
        replace(first, operands=(packed,), results=(reduced,), instruction=name),
    ]
    start = 0
    for result, count in zip(results, counts, strict=True):
        made.append(_cut(reduced, result, start, names, first))
        start += count
    return made


def _count(value: Value) -> int:
    return prod(value.type.shape) if isinstance(value.type, TensorType) else 1


def _flat(value: Value) -> Value:
    return Value(type=TensorType(element=tensor_of(value).element, shape=(_count(value),)))


def _op(
    kind: str,
    operands: Sequence[Value],
    result: Value,
    attrs: DimensionAttrs | SliceAttrs | None = None,
) -> Op:
    return Op(
        dialect="stablehlo",
        kind=kind,
        operands=tuple(operands),
        results=(result,),
        attrs=NO_ATTRS if attrs is None else attrs,
    )


def _kernel(
    operands: Sequence[Value], body: Sequence[Op], result: Value, name: str, like: Op
) -> Op:
    """Return a kernel around operations, whose operands are its own arguments' names."""
    arguments = tuple([Value(type=value.type) for value in operands])
    renaming = dict(zip(operands, arguments, strict=True))
    inner = [
        replace(op, operands=tuple([renaming.get(value, value) for value in op.operands]))
        for op in body
    ]
    end = Op(dialect="mhlo", kind="return", operands=inner[-1].results, results=(), attrs=NO_ATTRS)
    return Op(
        dialect="mhlo",
        kind="fusion",
        operands=tuple(operands),
        results=(result,),
        attrs=FusionAttrs(kind="kLoop"),
        attributes=(("fusion_kind", "#mhlo<fusion_kind kLoop>"),),
        regions=(Block(arguments=arguments, operations=(*inner, end)),),
        source_location=like.source_location,
        scope=like.scope,
        instruction=name,
    )


def _packing(operands: Sequence[Value], packed: Value, names: Names, like: Op) -> Op:
    flat = [_flat(value) for value in operands]
    body = [_op("reshape", (value,), view) for value, view in zip(operands, flat, strict=True)]
    whole = Value(type=packed.type)
    body.append(_op("concatenate", flat, whole, DimensionAttrs(dimension=0)))
    unique = tuple(dict.fromkeys(operands))
    return _kernel(unique, body, packed, names.next("wrapped_concatenate"), like)


def _cut(reduced: Value, result: Value, start: int, names: Names, like: Op) -> Op:
    flat = _flat(result)
    bounds = SliceAttrs(start=(start,), limit=(start + _count(result),), strides=(1,))
    shaped = Value(type=result.type)
    body = [_op("slice", (reduced,), flat, bounds), _op("reshape", (flat,), shaped)]
    return _kernel((reduced,), body, result, names.next("wrapped_slice"), like)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flight:
    """A collective: where it starts, and where it is first needed, as places in a schedule."""

    op: Op
    start: int
    end: int


def with_starts(operations: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    """Return a schedule in which collectives start early and end where they are needed."""
    kept = [op for op in operations if not _is_started(op)]
    made_at = {result: at for at, op in enumerate(kept) for result in op.results}
    used_at: dict[Value, int] = dict.fromkeys(results, len(kept))
    at = len(kept)
    for op in reversed(operations):
        at -= not _is_started(op)
        used_at.update(dict.fromkeys(needed_by(op), at))
    flights: list[_Flight] = []
    last_gather = 0
    for op in filter(_is_started, operations):
        ready = max([made_at.get(value, -1) + 1 for value in op.operands], default=0)
        end = min([used_at.get(value, len(kept)) for value in op.results], default=len(kept))
        start = ready
        if op.kind == "all_gather":
            start, last_gather = max(ready, min(last_gather, end)), max(end, last_gather)
        made_at.update(dict.fromkeys(op.results, end - 1))
        flights.append(_Flight(op=op, start=start, end=end))
    return _placed(kept, _landed(flights))


def _landed(flights: Sequence[_Flight]) -> list[_Flight]:
    """Return flights of which a sum over devices ends when a later one starts, or earlier.

    What a sum reads is held until it ends.
    """
    sums = sorted((each for each in flights if each.op.kind in SUMMING), key=lambda one: one.start)
    ends = {
        each.op: max(each.start, min(each.end, later.start))
        for each, later in zip(sums, sums[_SUMS_TOGETHER:], strict=False)
    }
    return [
        _Flight(op=each.op, start=each.start, end=ends.get(each.op, each.end)) for each in flights
    ]


def one_by_one(operations: Iterable[Op]) -> list[Op]:
    """Return a schedule in which nothing runs beside a collective."""
    return [each for op in operations for each in (started(op) if _is_started(op) else (op,))]


def _is_started(op: Op) -> bool:
    return is_communication_op(op) and op.kind not in _UNPAIRED


def _placed(kept: Sequence[Op], flights: Sequence[_Flight]) -> list[Op]:
    before: list[list[Op]] = [[] for _ in range(len(kept) + 1)]
    bundles = [started(each.op) for each in flights]
    for flight, (start, done) in zip(flights, bundles, strict=True):
        if flight.start > flight.end:
            before[flight.start].extend((start, done))
            continue
        before[flight.start].append(start)
        before[flight.end].append(done)
    placed: list[Op] = []
    for at, op in enumerate(kept):
        placed.extend(before[at])
        placed.append(op)
    return [*placed, *before[len(kept)]]


def started(op: Op) -> tuple[Op, Op]:
    """Return the start and the end of a collective."""
    arguments = tuple([Value(type=value.type) for value in op.operands])
    results = tuple([Value(type=value.type) for value in op.results])
    end = Op(dialect="stablehlo", kind="return", operands=results, results=(), attrs=NO_ATTRS)
    inner = replace(op, operands=arguments, results=results)
    members = tuple([value.type for value in results])
    spelling = f"!mhlo.async_bundle<{', '.join(map(str, members))}>"
    bundle = Value(type=AsyncType(spelling=spelling, members=members))
    start = Op(
        dialect="mhlo",
        kind="async_start",
        operands=op.operands,
        results=(bundle,),
        attrs=NO_ATTRS,
        regions=(Block(arguments=arguments, operations=(inner, end)),),
        source_location=op.source_location,
        scope=op.scope,
        instruction=op.instruction,
    )
    done = Op(
        dialect="mhlo",
        kind="async_done",
        operands=(bundle,),
        results=op.results,
        attrs=NO_ATTRS,
        source_location=op.source_location,
        scope=op.scope,
        instruction=f"{op.instruction}-done" if op.instruction else "",
    )
    return start, done
