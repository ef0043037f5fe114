"""Matrix products as XLA's GPU pipeline rewrites them before values get layouts.

Products with vectors are multiplications and sums, operands are rounded as an algorithm says, small
products that share an operand are one, and sizes that tensor cores don't take are padded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from math import ceil, prod

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.lower.layouts import VIEWS
from hespas.program.attrs import NO_ATTRS, DotAttrs
from hespas.program.program import Block, Op, Value, shape_of, tensor_of, values_read
from hespas.program.rewrite import Builder, Pattern
from hespas.program.types import TensorType, element_type, size_bytes
from hespas.program.uses import Uses, in_order

FEWEST_OF_LIBRARY = 10_000_000
"""Elements of a matrix and a vector from which on their product is the library's.

Source: openxla/xla, ``ShouldStrengthReduceDotToReduce`` (xla/service/gpu/transforms/
algebraic_simplifier.cc, Apache License 2.0), and what jaxlib 0.10.2 compiles for H100: bf16 of
4096 x 2048 is summed, of 4096 x 2560 cuBLAS's."""

MERGED_BYTES = 64 * 2**20
"""Products of more bytes, operands and result together, are merged with no other.

Source: openxla/xla, ``xla_gpu_dot_merger_threshold_mb`` (xla/debug_options_flags.cc)."""

_MULTIPLES = {"bf16": 8, "f16": 8, "i8": 4}
_MULTIPLE_OF_F8 = 16
"""What cuBLAS wants sizes to be multiples of.

Source: openxla/xla, ``CublasPadForGemms`` (xla/service/gpu/transforms, Apache License 2.0), and
what jaxlib 0.10.2 compiles for H100."""

_MOST_VISITED = 2000


@frozen
class Side:
    """The shape of a product's operand: batched, summed and kept dimensions."""

    shape: tuple[int, ...]
    batching: tuple[int, ...]
    contracting: tuple[int, ...]

    @property
    def free(self) -> tuple[int, ...]:
        """The dimensions that are in the result alone."""
        used = {*self.batching, *self.contracting}
        return tuple([axis for axis in range(len(self.shape)) if axis not in used])

    def sizes(self, dimensions: Iterable[int]) -> tuple[int, ...]:
        """Return the sizes of some dimensions."""
        return tuple([self.shape[axis] for axis in dimensions])

    def without_units(self) -> Side:
        """Return it without free dimensions of size 1."""
        kept = [axis for axis, size in enumerate(self.shape) if size != 1 or axis not in self.free]

        def moved(dimensions: tuple[int, ...]) -> tuple[int, ...]:
            return tuple([kept.index(axis) for axis in dimensions if axis in kept])

        return Side(
            shape=self.sizes(kept),
            batching=moved(self.batching),
            contracting=moved(self.contracting),
        )

    def merged(self, multiple: int) -> Side:
        """Return it with merged free dimensions if padding requires that."""
        free = self.free
        is_beside = free == tuple(range(free[0], free[-1] + 1))
        if _long(self, free) is not None or not is_beside or prod(self.sizes(free)) % multiple == 0:
            return self

        def moved(dimensions: tuple[int, ...]) -> tuple[int, ...]:
            return tuple([axis if axis < free[0] else axis - len(free) + 1 for axis in dimensions])

        shape = (*self.shape[: free[0]], prod(self.sizes(free)), *self.shape[free[-1] + 1 :])
        return Side(shape=shape, batching=moved(self.batching), contracting=moved(self.contracting))

    def padded(self, multiple: int) -> Side:
        """Return it with free and summed dimensions padded."""
        shape = list(self.shape)
        for axis in (_long(self, self.free), _long(self, self.contracting)):
            if axis is not None:
                shape[axis] = ceil(shape[axis] / multiple) * multiple
        return Side(shape=tuple(shape), batching=self.batching, contracting=self.contracting)


def _long(side: Side, dimensions: Sequence[int]) -> int | None:
    """Return the only dimension longer than 1; None for more than one."""
    long = [axis for axis in dimensions if side.shape[axis] > 1]
    if len(long) > 1:
        return None
    return long[0] if long else next(iter(dimensions), None)


def sides_of(op: Op, attrs: DotAttrs) -> tuple[Side, Side]:
    """Return the two operands of a product."""
    lhs, rhs = map(shape_of, op.operands)
    return (
        Side(shape=lhs, batching=attrs.lhs_batching, contracting=attrs.lhs_contracting),
        Side(shape=rhs, batching=attrs.rhs_batching, contracting=attrs.rhs_contracting),
    )


def _opened(op: Op, _uses: Uses) -> Sequence[Op] | None:
    """Return a multiplication and a sum for a product with a vector.

    Source: openxla/xla, ``AlgebraicSimplifier`` (HandleDot, Apache License 2.0).
    """
    attrs = op.attrs
    if not isinstance(attrs, DotAttrs) or attrs.algorithm:
        return None
    lhs, rhs = sides_of(op, attrs)
    sums, rows, columns = (
        lhs.sizes(lhs.contracting),
        lhs.sizes(lhs.free),
        rhs.sizes(rhs.free),
    )
    summed = prod(sums)
    if not (summed == 1 or prod(rows) == prod(columns) == 1):
        is_vector = min(prod(rows), prod(columns)) == 1
        if not is_vector or (prod(rows) + prod(columns)) * summed >= FEWEST_OF_LIBRARY:
            return None
    build, result = Builder(op), tensor_of(op.results[0])
    shape = (*lhs.sizes(lhs.batching), *rows, *columns, *sums)
    last = len(shape) - len(sums)

    def spread(value: Value, side: Side, first: int) -> Value:
        turned = build.transpose(value, (*side.batching, *side.free, *side.contracting))
        places = (
            *range(len(side.batching)),
            *range(first, first + len(side.free)),
            *range(last, len(shape)),
        )
        return build.broadcast(build.convert(turned, result.element), shape, places)

    batch = len(lhs.batching)
    factors = (
        spread(op.operands[0], lhs, batch),
        spread(op.operands[1], rhs, batch + len(rows)),
    )
    value = build.add("multiply", factors, TensorType(element=result.element, shape=shape))
    if summed > 1:
        value = build.sum(value, range(last, len(shape)))
    return build.making(op.results[0], build.reshape(value, result.shape))


OPENED_VECTORS = Pattern(kinds=("dot_general",), change=_opened)
_OF_A_BLOCK = 114_688
"""Numbers of 16 bits that a block of threads keeps in shared memory.

Source: NVIDIA, CUDA C++ Programming Guide, compute capability 9.0 and 10.0: 228 KiB, less 4."""


def _opened_small(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return a multiplication and a sum for batched small vector products.

    Libraries stream them, as Megatron-LM's and Transformer Engine's kernels do that weigh what
    experts make of a token and add it up; libraries of products have no kernel for them.
    """
    if not isinstance(op.attrs, DotAttrs) or not op.attrs.lhs_batching:
        return None
    lhs, rhs = sides_of(op, op.attrs)
    summed = prod(lhs.sizes(lhs.contracting))
    rows, columns = prod(lhs.sizes(lhs.free)), prod(rhs.sizes(rhs.free))
    return _opened(op, uses) if (rows + columns) * summed <= _OF_A_BLOCK else None


OPENED_SMALL = Pattern(kinds=("dot_general",), change=_opened_small)


def _numbered(attrs: DotAttrs, lhs: Side, rhs: Side) -> DotAttrs:
    """Return a product's attributes with the dimensions of other sides."""
    return replace(
        attrs,
        lhs_batching=lhs.batching,
        lhs_contracting=lhs.contracting,
        rhs_batching=rhs.batching,
        rhs_contracting=rhs.contracting,
    )


def _without_units(op: Op, _uses: Uses) -> Sequence[Op] | None:
    """Return the product of one new token with a cache without free dimensions of size 1.

    With these dimensions the product would turn the cache. XLA keeps them in products of many
    tokens, whose operands it turns (tests of `layouts` compare attention with compiled programs).
    Source: openxla/xla, ``AlgebraicSimplifier`` (RemoveDegenerateDimensionFromDot, Apache License
    2.0).
    """
    if not isinstance(op.attrs, DotAttrs) or not op.attrs.lhs_batching:
        return None
    sides = sides_of(op, op.attrs)
    if not any(map(_is_of_one_token, sides)):
        return None
    lhs, rhs = (side.without_units() for side in sides)
    attrs = _numbered(op.attrs, lhs, rhs)
    build = Builder(op)
    operands = [
        build.reshape(value, side.shape)
        for value, side in zip(op.operands, (lhs, rhs), strict=True)
    ]
    kind = TensorType(element=tensor_of(op.results[0]).element, shape=_result_shape((lhs, rhs)))
    value = build.add("dot_general", operands, kind, attrs)
    return build.making(op.results[0], build.reshape(value, shape_of(op.results[0])))


def _is_of_one_token(side: Side) -> bool:
    """Return whether a side has free dimensions of size 1 beside at most one group of heads."""
    sizes = side.sizes(side.free)
    return len(sizes) > 1 and 1 in sizes and prod(sizes) <= _MOST_HEADS


_MOST_HEADS = 64
"""Of a group that shares keys and values."""
WITHOUT_UNITS = Pattern(kinds=("dot_general",), change=_without_units)


def _rounded(op: Op, _uses: Uses) -> Sequence[Op] | None:
    """Round a product's operands in a kernel before it.

    Source: openxla/xla, ``DotAlgorithmRewriter`` (xla/service/gpu/transforms, Apache License 2.0).
    """
    if not isinstance(op.attrs, DotAttrs) or not op.attrs.algorithm:
        return None
    build, operands = Builder(op), list(op.operands)
    for index, side in enumerate(("lhs", "rhs")):
        is_rounded = f"{side}_precision_type = bf16" in op.attrs.algorithm
        if is_rounded and tensor_of(operands[index]).element.name == "f32":
            operands[index] = build.convert(operands[index], element_type("bf16"))
    return (*build.operations, replace(op, operands=tuple(operands)))


ROUNDED_OPERANDS = Pattern(kinds=("dot_general",), change=_rounded)


@frozen
class _Dot:
    """A product's place, and its shared operand."""

    place: int
    op: Op
    shared: int

    @property
    def size_bytes(self) -> int:
        return sum([size_bytes(value.type) for value in (*self.op.operands, *self.op.results)])


def with_merged_dots(block: Block) -> Block:
    """Merge small products that share an operand."""
    groups = _sharing(block.operations, alike=lambda op, _: op.attributes)
    return _with_merged(block, [group for group in groups if len(group) > 1], are_held=False)


def with_held_weights_merged(block: Block) -> Block:
    """Merge small products of held weights that share rows.

    Such weights are one matrix in memory, which nothing puts together: vLLM's fused_qkv_a_proj, a
    Mamba's in_proj. Weights that a step makes of others, as in training, are multiplied one by one.
    """
    uses = Uses(block.operations)
    arguments = set(block.arguments)
    groups = [
        [
            dot
            for dot in group
            if uses.source(dot.op.operands[1 - dot.shared], _is_part) in arguments
        ]
        for group in _sharing(block.operations, alike=_but_for_places)
    ]
    return _with_merged(block, [group for group in groups if len(group) > 1], are_held=True)


def _but_for_places(_op: Op, attrs: DotAttrs) -> Hashable:
    """Return what products of one matrix have in common, however many dimensions it has."""
    return replace(attrs, lhs_contracting=(), rhs_contracting=())


def _is_part(op: Op) -> bool:
    """Return whether an operation is a layout, or a part, of what it reads."""
    return op.kind in {*VIEWS, "slice", "dynamic_slice"}


def _with_merged(block: Block, groups: Sequence[Sequence[_Dot]], *, are_held: bool) -> Block:
    *operations, end = block.operations
    producer = {result: place for place, op in enumerate(operations) for result in op.results}
    replaced: dict[int, list[Op]] = {}
    for group in groups:
        free = [dot for dot in group if dot.place not in replaced]
        chosen = _independent(free, operations, producer)
        if len(chosen) > 1:
            replaced.update({dot.place: [] for dot in chosen})
            replaced[chosen[-1].place] = [*_merged(chosen, are_held=are_held)]
    if not replaced:
        return block
    changed = [new for place, op in enumerate(operations) for new in replaced.get(place, (op,))]
    ordered = in_order(changed, range(len(changed)))
    return Block(arguments=block.arguments, operations=(*ordered, end))


def _sharing(
    operations: Sequence[Op], *, alike: Callable[[Op, DotAttrs], Hashable]
) -> Iterable[list[_Dot]]:
    """Return the products that could be merged, by what they share and are ``alike`` in."""
    groups: dict[tuple[object, ...], list[_Dot]] = {}
    for place, op in enumerate(operations):
        attrs = op.attrs
        if op.kind != "dot_general" or not isinstance(attrs, DotAttrs) or attrs.lhs_batching:
            continue
        if op.operands[0] is op.operands[1]:
            continue
        both = sides_of(op, attrs)
        for shared, free_side in ((0, both[1]), (1, both[0])):
            rank, count = len(free_side.shape), len(free_side.contracting)
            firsts, lasts = tuple(range(count)), tuple(range(rank - count, rank))
            if count < rank and free_side.contracting in (firsts, lasts):
                element = tensor_of(op.operands[1 - shared]).element
                is_first = free_side.contracting[0] == 0
                contracting = both[shared].contracting
                key = (
                    op.operands[shared],
                    shared,
                    contracting,
                    is_first,
                    element,
                    alike(op, attrs),
                )
                groups.setdefault(key, []).append(_Dot(place=place, op=op, shared=shared))
    return groups.values()


def _independent(
    dots: Sequence[_Dot], operations: Sequence[Op], producer: Mapping[Value, int]
) -> list[_Dot]:
    """Return independent products; at most one of them is large.

    What needs one that needs a chosen one needs that too.
    """
    chosen: list[_Dot] = []
    size = 0
    earlier: set[int] = set()
    for dot in dots:
        if chosen and size > MERGED_BYTES and dot.size_bytes > MERGED_BYTES:
            continue
        if not earlier or not _needs(dot.place, earlier, operations, producer, first=dots[0].place):
            chosen.append(dot)
            size = max(size, dot.size_bytes)
        earlier.add(dot.place)
    return chosen


def _needs(
    dot: int,
    earlier: set[int],
    operations: Sequence[Op],
    producer: Mapping[Value, int],
    *,
    first: int,
) -> bool:
    """Return whether a product needs an earlier one, or may after a long search."""
    pending, seen = [dot], {dot}
    while pending:
        for value in values_read(operations[pending.pop()]):
            place = producer.get(value, -1)
            if place in earlier:
                return True
            if place > first and place not in seen:
                seen.add(place)
                pending.append(place)
        if len(seen) > _MOST_VISITED:
            return True
    return False


def _merged(dots: Sequence[_Dot], *, are_held: bool) -> Iterator[Op]:
    """Yield the operations that compute all products as one: concatenated, multiplied, sliced.

    Matrices that ``are_held`` as one are concatenated by nothing.
    """
    first, shared, free = dots[0].op, dots[0].shared, 1 - dots[0].shared
    attrs = first.attrs
    assert isinstance(attrs, DotAttrs)  # noqa: S101 - checked where they were found
    both = sides_of(first, attrs)
    count = len(both[free].contracting)
    is_first = both[free].contracting[0] == 0
    build = Builder(first)
    flat: list[Value] = []
    for dot in dots:
        shape = shape_of(dot.op.operands[free])
        matrix = (
            (*shape[:count], prod(shape[count:]))
            if is_first
            else (prod(shape[:-count]), *shape[-count:])
        )
        flat.append(build.reshape(dot.op.operands[free], matrix))
    axis = count if is_first else 0
    joined = build.concatenate(flat, axis)
    if are_held:
        *_, concatenation = build.operations
        build.operations[-1] = replace(concatenation, kind="bitcast", attrs=NO_ATTRS)
    numbers = tuple(range(count)) if is_first else tuple(range(1, count + 1))
    total, rows = shape_of(joined)[axis], both[shared].sizes(both[shared].free)
    element = tensor_of(first.results[0]).element
    product = build.add(
        "dot_general",
        (first.operands[0], joined) if free else (joined, first.operands[1]),
        TensorType(element=element, shape=(*rows, total) if free else (total, *rows)),
        replace(attrs, rhs_contracting=numbers)
        if free
        else replace(attrs, lhs_contracting=numbers),
    )
    yield from build.operations
    start = 0
    for dot, value in zip(dots, flat, strict=True):
        build, width = Builder(dot.op), shape_of(value)[axis]
        cut = build.slice(product, len(rows) if free else 0, start, start + width)
        result = dot.op.results[0]
        yield from build.making(result, build.reshape(cut, shape_of(result)))
        start += width


def _result_shape(sides: tuple[Side, Side]) -> tuple[int, ...]:
    lhs, rhs = sides
    return (*lhs.sizes((*lhs.batching, *lhs.free)), *rhs.sizes(rhs.free))


def _multiple(value: Value) -> int:
    name = tensor_of(value).element.name
    return _MULTIPLE_OF_F8 if name.lower().startswith("f8") else _MULTIPLES.get(name, 1)


def _padded_dot(op: Op, _uses: Uses) -> Sequence[Op] | None:
    """Return a product of padded operands, cut to its size.

    Products with a vector stay. Several dimensions are padded as one if they lie beside each other.
    """
    if not isinstance(op.attrs, DotAttrs):
        return None
    multiple, sides = _multiple(op.operands[0]), sides_of(op, op.attrs)
    if multiple == 1 or _multiple(op.operands[1]) != multiple:
        return None
    if min([prod(side.sizes(side.free)) for side in sides]) <= 1:
        return None
    lhs, rhs = [side.merged(multiple) for side in sides]
    wide = lhs.padded(multiple), rhs.padded(multiple)
    if wide == (lhs, rhs):
        return None
    attrs, build = _numbered(op.attrs, lhs, rhs), Builder(op)
    operands = [
        build.pad(build.reshape(value, own.shape), padded.shape)
        for value, own, padded in zip(op.operands, (lhs, rhs), wide, strict=True)
    ]
    element = tensor_of(op.results[0]).element
    kind = TensorType(element=element, shape=_result_shape(wide))
    text = op.attributes if attrs == op.attrs else ()
    value = build.add("dot_general", operands, kind, attrs, attributes=text)
    value = build.head(value, _result_shape((lhs, rhs)))
    return build.making(op.results[0], build.reshape(value, shape_of(op.results[0])))


PADDED_DOTS = Pattern(kinds=("dot_general",), change=_padded_dot)
