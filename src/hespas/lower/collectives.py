"""Collectives: rewritten before layouts, and combined.

Before layouts, sums over devices are joined, folded, scattered, and turned first, and gathers are
narrowed. Collectives of one kind, among the same devices, that do not wait for each other are one,
up to the sizes that the compiler's options say. All-reduces are one buffer: their operands are
concatenated, and each result is cut out of it again. `hespas.lower.starts` places them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from math import prod

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.compile.options import CompileOptions
from hespas.lower.build import Names, fusion_around
from hespas.lower.layouts import VIEWS
from hespas.program.attrs import CollectiveAttrs, DimensionsAttrs, DotAttrs
from hespas.program.groups import ListedGroups, ReplicaGroups
from hespas.program.operations.traits import Category
from hespas.program.program import (
    Op,
    Value,
    applied_ops,
    shape_of,
    tensor_of,
    values_read,
)
from hespas.program.rewrite import Builder, Pattern
from hespas.program.scopes import joined_scopes
from hespas.program.text import structure_key
from hespas.program.types import (
    ElementType,
    NumberKind,
    TensorType,
    Type,
    size_bytes,
)
from hespas.program.uses import Uses, in_order

_MIB = 2**20
_MOST_COMBINED = 256
SUMMING = frozenset({"all_reduce", "reduce_scatter"})
"""Collectives that sum what devices have."""
_INDEXING = frozenset({"reshape", "slice", "dynamic_slice", "broadcast_in_dim"})
_TYPE_TEXT = "xla_shape"

ONE_SHOT_BYTES, TWO_SHOT_BYTES = 256 << 10, 4 << 20
"""All-reduces of one operand of bf16, f32 or s32 that XLA does by kernels of its own, among 2, 4 or
8 GPUs of a host: in one shot up to the first size, in two up to the second. f16, larger ones and
those among hosts are the library's. Found in what jaxlib 0.10.2 compiles for Hopper and Blackwell.
"""
_OWN_TYPES = frozenset({"bf16", "f32", "i32"})


def _bodies(op: Op) -> Hashable:
    return tuple([structure_key(it.operations, it.operations[-1].operands) for it in op.regions])


def _joined_sums(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return the all-reduce of a sum for a sum of all-reduces.

    Source: XLA's pass AllReduceReassociate, which does so where nothing else reads either of both.
    """
    both = [uses.producer(value) for value in op.operands]
    reduced = [reduction for reduction in both if reduction is not None]
    if len(reduced) < 2 or not _are_joined(reduced, uses):
        return None
    summed = Value(type=op.results[0].type)
    operands = tuple([reduction.operands[0] for reduction in reduced])
    return (
        replace(op, operands=operands, results=(summed,)),
        replace(reduced[1], operands=(summed,), results=op.results),
    )


def _folded_sums(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return one all-reduce for an all-reduce of an all-reduce.

    Source: XLA's pass AllReduceFolder.
    """
    inner = uses.producer(op.operands[0])
    if inner is None or uses.only_reader(inner.results[0]) is not op:
        return None
    own, before = _sum_of(op), _sum_of(inner)
    if own is None or before is None or own.kind != before.kind:
        return None
    groups = _folded_groups(before.groups, own.groups)
    if groups is None:
        return None
    return (replace(op, operands=inner.operands, attrs=replace(op.attrs, groups=groups)),)


@lru_cache
def _folded_groups(inner: ReplicaGroups, outer: ReplicaGroups) -> ListedGroups | None:
    """Return among which devices both sums are one, None where they are none.

    >>> pairs = ListedGroups(groups=((0, 1), (2, 3)))
    >>> across = ListedGroups(groups=((0, 2), (1, 3)))
    >>> _folded_groups(pairs, across).groups, _folded_groups(pairs, pairs)
    (((0, 1, 2, 3),), None)
    """
    groups = (*inner.listed(), ())
    number_of = {member: number for number, group in enumerate(groups) for member in group}
    found: set[tuple[int, ...]] = set()
    for group in outer.listed():
        parts = {number_of.get(member, -1) for member in group}
        if len(parts) != len(group):
            return None
        found.add(tuple(sorted([member for part in parts for member in groups[part]])))
    if sum(map(len, found)) != len(number_of):
        return None
    return ListedGroups(groups=tuple(sorted(found)))


def _sums_first(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return an all-reduce of a sum for a sum of all-reduces.

    Norms over all weights add what devices sum to what each has whole, weight by weight. Frameworks
    add first, and sum over devices once. Sources: PyTorch, ``torch/nn/utils/clip_grad.py``;
    Megatron-LM, ``core/optimizer/clip_grads.py``.
    """
    both = [uses.producer(value) for value in op.operands]
    for side, inner in enumerate(both):
        if inner is None or inner.kind != "add" or uses.only_reader(inner.results[0]) is not op:
            continue
        split = _split_sum(inner, uses)
        if split is None:
            continue
        reduced, addend = split
        other_maker = both[1 - side]
        first, total = (Value(type=op.results[0].type) for _ in range(2))
        if other_maker is not None and _are_joined((reduced, other_maker), uses):
            sums = reduced.operands[0], other_maker.operands[0]
            added = replace(op, operands=sums, results=(first,))
            again = replace(other_maker, operands=(first,), results=(total,))
            return added, again, replace(op, operands=(total, addend))
        added = replace(op, operands=(addend, op.operands[1 - side]), results=(first,))
        return replace(reduced, results=(total,)), added, replace(op, operands=(total, first))
    return None


def _split_sum(op: Op, uses: Uses) -> tuple[Op, Value] | None:
    """Return the all-reduce that a sum adds, and its addend."""
    for value, addend in (op.operands, op.operands[::-1]):
        maker = uses.producer(value)
        if maker is not None and _are_joined((maker,), uses):
            return maker, addend
    return None


def _are_joined(reduced: Sequence[Op], uses: Uses) -> bool:
    """Return whether the sum of all-reduces may be reduced once."""
    sums = {_sum_of(reduction) for reduction in reduced}
    are_read_once = all(uses.count(reduction.results[0]) == 1 for reduction in reduced)
    return len(sums) == 1 and None not in sums and are_read_once


def _held_back(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return a gathered weight's conversion without the barrier before it.

    The barrier keeps what a layer computes again from being computed once. Frameworks gather the
    weights of the next layer meanwhile. Source: PyTorch, FSDP2, ``_fsdp_param_group.py``.
    """
    barrier, gather = uses.producer(op.operands[0]), uses.only_reader(op.results[0])
    if barrier is None or barrier.kind != "optimization_barrier":
        return None
    if gather is None or gather.kind != "all_gather":
        return None
    weight = barrier.operands[barrier.results.index(op.operands[0])]
    return None if uses.producer(weight) is not None else (replace(op, operands=(weight,)),)


@frozen
class _Sum:
    """Devices whose arrays an all-reduce adds, and how; those of equal ones may be added first."""

    groups: ReplicaGroups
    kind: Hashable


def _sum_of(op: Op) -> _Sum | None:
    """Return the sum of an all-reduce of one array; None for other operations."""
    kinds = [applied.kind for applied in applied_ops(op)]
    if op.kind != "all_reduce" or len(op.results) != 1 or kinds != ["add"]:
        return None
    attrs = op.attrs
    if not isinstance(attrs, CollectiveAttrs):
        return None
    return _Sum(groups=attrs.groups, kind=(attrs.mode, op.results[0].type, _bodies(op)))


def _scattered(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return a reduce-scatter for a device's slice of an all-reduce.

    Source: XLA's pass ReduceScatterCreator.
    """
    reduced = uses.producer(op.operands[0])
    if reduced is None or reduced.kind != "all_reduce" or len(reduced.results) != 1:
        return None
    if uses.only_reader(reduced.results[0]) is not op or not _by_device(op.operands[1:], uses):
        return None
    sizes = zip(shape_of(reduced.results[0]), shape_of(op.results[0]), strict=True)
    differing = [axis for axis, (long, short) in enumerate(sizes) if long != short]
    if len(differing) != 1:
        return None
    attrs = reduced.attrs
    if isinstance(attrs, CollectiveAttrs):
        attrs = replace(attrs, dimension=differing[0])
    text = ("scatter_dimension", f"{differing[0]} : i64")
    return [
        replace(
            reduced,
            kind="reduce_scatter",
            results=op.results,
            attrs=attrs,
            attributes=tuple(sorted((*reduced.attributes, text))),
        )
    ]


def _by_device(starts: Iterable[Value], uses: Uses) -> bool:
    """Return whether a start depends on the device's number alone."""
    is_known = False
    pending, seen = list(starts), set[Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        op = uses.producer(value)
        if op is None or len(seen) > 64:
            return False
        is_known = is_known or op.kind in ("partition_id", "replica_id")
        if op.traits.category is not Category.CREATION:
            if not (op.traits.is_elementwise or op.kind in _INDEXING):
                return False
            pending.extend(op.operands)
    return is_known


def _turned_first(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return a product that is transposed before it is all-reduced.

    The partitioner sums what a product makes as it is, and turns it where a weight lies the other
    way round. A product writes its result either way, and the sum then lies as what reads it.
    Source: Llama 3 8B on eight H200, ``data=8``, compiled by XLA: all-reduces of 117 MB are of
    transposed gradients, and hidden but for 5 us of 8.7 ms.
    """
    summed = uses.producer(op.operands[0])
    if summed is None or summed.kind != "all_reduce" or len(summed.results) != 1:
        return None
    product, order = uses.producer(summed.operands[0]), op.attrs
    if product is None or product.kind != "dot_general" or not isinstance(order, DimensionsAttrs):
        return None
    attrs = product.attrs
    if not isinstance(attrs, DotAttrs) or attrs.lhs_batching:
        return None
    if uses.count(summed.results[0]) > 1 or uses.count(product.results[0]) > 1:
        return None
    rank = len(order.dimensions)
    rows = len(shape_of(product.operands[0])) - len(attrs.lhs_contracting)
    if order.dimensions != (*range(rows, rank), *range(rows)):
        return None
    turned = Value(type=op.results[0].type)
    swapped = replace(
        attrs,
        lhs_contracting=attrs.rhs_contracting,
        rhs_contracting=attrs.lhs_contracting,
        precision=attrs.precision[::-1],
    )
    return (
        replace(
            product,
            operands=product.operands[::-1],
            results=(turned,),
            attrs=swapped,
            attributes=(),
            scope=op.scope,
        ),
        replace(summed, operands=(turned,), results=op.results, scope=op.scope),
    )


def _narrow_gather(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return a gather in the narrower type of a later convert.

    Weights are kept in f32 and multiplied in bf16, so that half of the bytes need no link. Source:
    XLA's pass CollectiveQuantizer; libtpu 0.0.42 does so too, for TPUs v6e and v7x.
    """
    chain: list[Op] = []
    value = op.operands[0]
    while not chain or chain[0].kind in VIEWS:
        maker = uses.producer(value)
        if maker is None or uses.only_reader(value) is None or not maker.operands:
            return None
        chain.insert(0, maker)
        value = maker.operands[0]
    narrow = narrower(op.results[0].type, chain[0].results[0].type)
    if chain[0].kind != "all_gather" or len(chain[0].operands) != 1 or narrow is None:
        return None
    value = like(value, narrow)
    operations = [replace(op, operands=chain[0].operands, results=(value,))]
    for view in chain:
        result = op.results[0] if view is chain[-1] else like(view.results[0], narrow)
        attributes = tuple([pair for pair in view.attributes if pair[0] != _TYPE_TEXT])
        operations.append(
            replace(view, operands=(value,), results=(result,), attributes=attributes)
        )
        value = result
    return operations


def narrower(narrow: Type, wide: Type) -> ElementType | None:
    """Return the first type's element if it is the narrower float."""
    if not isinstance(narrow, TensorType) or not isinstance(wide, TensorType):
        return None
    kinds = {narrow.element.kind, wide.element.kind}
    is_narrower = narrow.element.bits < wide.element.bits
    return narrow.element if kinds == {NumberKind.FLOAT} and is_narrower else None


def like(value: Value, element: ElementType) -> Value:
    """Return a new value like another one, of another type of numbers."""
    kind = value.type
    return Value(type=replace(kind, element=element) if isinstance(kind, TensorType) else kind)


JOINED_SUMS = Pattern(kinds=("add",), change=_joined_sums)
SUMS_FIRST = Pattern(kinds=("add",), change=_sums_first)
FOLDED_SUMS = Pattern(kinds=("all_reduce",), change=_folded_sums)
HELD_BACK = Pattern(kinds=("convert",), change=_held_back)
SCATTERED_SUMS = Pattern(kinds=("dynamic_slice",), change=_scattered)
TURNED_FIRST = Pattern(kinds=("transpose",), change=_turned_first)
NARROW_GATHERS = Pattern(kinds=("convert",), change=_narrow_gather)


def limits_of(options: CompileOptions) -> Mapping[str, int]:
    """Return each kind's limit of combined result bytes.

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
        chosen = {op for op, op_key in keys.items() if op_key == key}
        if len(chosen) > 1:
            current = _combined(current, chosen, limits, names)
    return current


def _key(op: Op, limits: Mapping[str, int]) -> Hashable | None:
    """Return a key that combinable collectives share; None for others."""
    if op.kind not in limits or not isinstance(op.attrs, CollectiveAttrs):
        return None
    elements = {value.type.element for value in op.operands if isinstance(value.type, TensorType)}
    if len(elements) != 1:
        return None
    return op.kind, op.attrs.groups, op.attrs.mode, elements.pop(), _bodies(op)


def _combined(
    operations: list[Op], chosen: AbstractSet[Op], limits: Mapping[str, int], names: Names
) -> list[Op]:
    batches = _batches(operations, chosen, limits)
    if not batches:
        return operations
    joined = {batch[0]: _joined([operations[place] for place in batch], names) for batch in batches}
    gone = {place for batch in batches for place in batch}
    ranked = [
        (place, new)
        for place, op in enumerate(operations)
        for new in joined.get(place, () if place in gone else (op,))
    ]
    return in_order([op for _, op in ranked], [rank for rank, _ in ranked])


def _batches(
    operations: Sequence[Op], chosen: AbstractSet[Op], limits: Mapping[str, int]
) -> list[list[int]]:
    """Group collectives that become one: behind equally many of the chosen."""
    depth_of: dict[Value, int] = {}
    open_batches: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    batches: list[list[int]] = []
    for place, op in enumerate(operations):
        depth = max([depth_of.get(value, 0) for value in values_read(op)], default=0)
        if op in chosen:
            size = sum([size_bytes(value.type) for value in op.results])
            batch = open_batches.get(depth, [])
            fits = sizes.get(depth, 0) + size <= limits[op.kind]
            if not batch or not fits or len(batch) >= _MOST_COMBINED:
                batch = open_batches[depth] = []
                sizes[depth] = 0
                batches.append(batch)
            batch.append(place)
            sizes[depth] += size
            depth += 1
        if depth:
            depth_of.update(dict.fromkeys(op.results, depth))
    return [batch for batch in batches if len(batch) > 1]


def _joined(collectives: Sequence[Op], names: Names) -> list[Op]:
    """Return one collective for several, with packing around it."""
    scopes = sorted({op.scope for op in collectives if op.scope})
    first = replace(collectives[0], scope=joined_scopes(scopes))
    operands = tuple([value for op in collectives for value in op.operands])
    results = tuple([value for op in collectives for value in op.results])
    name = names.next(first.kind)
    if first.kind != "all_reduce":
        return [replace(first, operands=operands, results=results, instruction=name)]
    build = Builder(first)
    flat = [build.reshape(value, (prod(shape_of(value)),)) for value in operands]
    packed = build.concatenate(flat, 0)
    kernel = names.next("wrapped_concatenate")
    reduced = Value(type=packed.type)
    joined = [
        fusion_around(build.operations, (packed,), first, kernel),
        replace(first, operands=(packed,), results=(reduced,), instruction=name),
    ]
    start = 0
    for result in results:
        build, count = Builder(first), prod(shape_of(result))
        cut = build.slice(reduced, 0, start, start + count)
        body = build.making(result, build.reshape(cut, shape_of(result)))
        joined.append(fusion_around(body, (result,), first, names.next("wrapped_slice")))
        start += count
    return joined


def with_own_kernels(operations: Sequence[Op]) -> list[Op]:
    """Return operations with the kernel that is chosen for each all-reduce.

    A link without such kernels, and a group of another size, leave it to the library: the
    simulation of the network decides.
    """
    return [_with_kernel(op) if op.kind == "all_reduce" else op for op in operations]


def _with_kernel(op: Op) -> Op:
    if not isinstance(op.attrs, CollectiveAttrs) or len(op.operands) != 1:
        return op
    kind = tensor_of(op.operands[0])
    if kind.element.name not in _OWN_TYPES or kind.size_bytes > TWO_SHOT_BYTES:
        return op
    kernel = "one_shot" if kind.size_bytes <= ONE_SHOT_BYTES else "two_shot"
    return replace(op, attrs=replace(op.attrs, kernel=kernel))
