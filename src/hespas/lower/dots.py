"""Matrix products as XLA's GPU pipeline rewrites them before values get layouts.

Products with vectors are multiplications and sums, operands are rounded as an algorithm says, small
products that share an operand are one, and sizes that tensor cores don't take are padded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, prod

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.program.attrs import DotAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Op, Value, shape_of, size_of, tensor_of, values_read
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
        return tuple([at for at in range(len(self.shape)) if at not in used])

    def sizes(self, dimensions: Iterable[int]) -> tuple[int, ...]:
        """Return the sizes of some dimensions."""
        return tuple([self.shape[at] for at in dimensions])

    def merged(self, multiple: int) -> Side:
        """Return it with merged free dimensions if padding requires that."""
        free = self.free
        is_beside = free == tuple(range(free[0], free[-1] + 1))
        if _long(self, free) is not None or not is_beside or prod(self.sizes(free)) % multiple == 0:
            return self

        def moved(dimensions: tuple[int, ...]) -> tuple[int, ...]:
            return tuple([at if at < free[0] else at - len(free) + 1 for at in dimensions])

        shape = (*self.shape[: free[0]], prod(self.sizes(free)), *self.shape[free[-1] + 1 :])
        return Side(shape=shape, batching=moved(self.batching), contracting=moved(self.contracting))

    def padded(self, multiple: int) -> Side:
        """Return it with its free and summed dimensions filled up to a multiple."""
        shape = list(self.shape)
        for at in (_long(self, self.free), _long(self, self.contracting)):
            if at is not None:
                shape[at] = ceil(shape[at] / multiple) * multiple
        return replace_shape(self, tuple(shape))


def replace_shape(side: Side, shape: tuple[int, ...]) -> Side:
    """Return an operand of another shape."""
    return Side(shape=shape, batching=side.batching, contracting=side.contracting)


def _long(side: Side, dimensions: Sequence[int]) -> int | None:
    """Return the only dimension longer than 1; None for more than one."""
    long = [at for at in dimensions if side.shape[at] > 1]
    if len(long) > 1:
        return None
    return long[0] if long else next(iter(dimensions), None)


def sides_of(op: Op, attrs: DotAttrs) -> tuple[Side, Side]:
    """Return the two operands of a product."""
    left, right = map(shape_of, op.operands)
    return (
        Side(shape=left, batching=attrs.lhs_batching, contracting=attrs.lhs_contracting),
        Side(shape=right, batching=attrs.rhs_batching, contracting=attrs.rhs_contracting),
    )


def _opened(op: Op, _uses: Uses) -> Sequence[Op] | None:
    """Return a multiplication and a sum for a product with a vector.

    Source: openxla/xla, ``AlgebraicSimplifier`` (HandleDot, Apache License 2.0).
    """
    attrs = op.attrs
    if not isinstance(attrs, DotAttrs) or attrs.algorithm:
        return None
    left, right = sides_of(op, attrs)
    sums, rows, columns = (
        left.sizes(left.contracting),
        left.sizes(left.free),
        right.sizes(right.free),
    )
    summed = prod(sums)
    if not (summed == 1 or prod(rows) == prod(columns) == 1):
        is_vector = min(prod(rows), prod(columns)) == 1
        if not is_vector or (prod(rows) + prod(columns)) * summed >= FEWEST_OF_LIBRARY:
            return None
    build, result = Builder(op), tensor_of(op.results[0])
    shape = (*left.sizes(left.batching), *rows, *columns, *sums)
    last = len(shape) - len(sums)

    def spread(value: Value, side: Side, first: int) -> Value:
        turned = build.transpose(value, (*side.batching, *side.free, *side.contracting))
        places = (
            *range(len(side.batching)),
            *range(first, first + len(side.free)),
            *range(last, len(shape)),
        )
        return build.broadcast(build.convert(turned, result.element), shape, places)

    batch = len(left.batching)
    factors = (
        spread(op.operands[0], left, batch),
        spread(op.operands[1], right, batch + len(rows)),
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
    left, right = sides_of(op, op.attrs)
    summed = prod(left.sizes(left.contracting))
    rows, columns = prod(left.sizes(left.free)), prod(right.sizes(right.free))
    return _opened(op, uses) if (rows + columns) * summed <= _OF_A_BLOCK else None


OPENED_SMALL = Pattern(kinds=("dot_general",), change=_opened_small)


def _rounded(op: Op, _uses: Uses) -> Sequence[Op] | None:
    """Round a product's operands in a kernel before it.

    Source: openxla/xla, ``DotAlgorithmRewriter`` (xla/service/gpu/transforms, Apache License 2.0).
    """
    if not isinstance(op.attrs, DotAttrs) or not op.attrs.algorithm:
        return None
    build, operands = Builder(op), list(op.operands)
    for at, side in enumerate(("lhs", "rhs")):
        is_rounded = f"{side}_precision_type = bf16" in op.attrs.algorithm
        if is_rounded and tensor_of(operands[at]).element.name == "f32":
            operands[at] = build.convert(operands[at], element_type("bf16"))
    return (*build.operations, replace(op, operands=tuple(operands)))


ROUNDED_OPERANDS = Pattern(kinds=("dot_general",), change=_rounded)


_VIEWS = ("reshape", "transpose")


def _scaled(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return a product that reads narrow operands and their scales directly.

    Kernels of serving frameworks widen them as they load them: Marlin, Triton's ``matmul_ogs``,
    CUTLASS; tensor cores that multiply both types widen nothing.
    """
    if not isinstance(op.attrs, DotAttrs):
        return None
    build, operands, scales = Builder(op), list(op.operands), list[Value]()
    for at, operand in enumerate(op.operands[:2]):
        parts = _narrow(operand, uses)
        if parts is not None:
            narrow, scale, views = parts
            for view in reversed(views):
                kind = replace(tensor_of(view.results[0]), element=tensor_of(narrow).element)
                narrow = build.add(view.kind, (narrow,), kind, view.attrs)
            operands[at] = narrow
            scales.append(scale)
    if not scales:
        return None
    kind = op.kind if op.kind == "ragged_dot" else "scaled_dot"
    return (*build.operations, replace(op, kind=kind, operands=(*operands, *scales)))


def _narrow(operand: Value, uses: Uses) -> tuple[Value, Value, list[Op]] | None:
    """Return an operand's narrow source, its scales and the views behind them."""
    maker, views = _behind_views(operand, uses)
    if maker is None or maker.kind != "multiply":
        return None
    for wide, spread in (maker.operands, maker.operands[::-1]):
        scale, (convert, inner) = _before_spread(spread, uses), _behind_views(wide, uses)
        if convert is None or convert.kind != "convert" or scale is None:
            continue
        narrow = convert.operands[0]
        if tensor_of(narrow).element.bits < tensor_of(wide).element.bits:
            return narrow, scale, [*views, *inner]
    return None


def _behind_views(value: Value, uses: Uses) -> tuple[Op | None, list[Op]]:
    """Return what makes a value but for views, and these, the last first."""
    views: list[Op] = []
    maker = uses.producer(value)
    while maker is not None and maker.kind in _VIEWS:
        views.append(maker)
        maker = uses.producer(maker.operands[0])
    return maker, views


def _before_spread(value: Value, uses: Uses) -> Value | None:
    """Return the scales that a value repeats within each group, if any."""
    whole, maker = size_of(value), uses.producer(value)
    while (
        maker is not None
        and maker.operands
        and (maker.kind in _SPREADING or size_of(value) < whole)
    ):
        value = maker.operands[0]
        if maker.kind == "convert" and size_of(value) < whole:
            return value
        maker = uses.producer(value)
    return value if size_of(value) < whole else None


_SPREADING = (*_VIEWS, "broadcast_in_dim", "convert", "slice")
SCALED_PRODUCTS = Pattern(kinds=("dot", "dot_general", "ragged_dot"), change=_scaled)


@frozen
class _Dot:
    """A product's place, and its shared operand."""

    at: int
    op: Op
    shared: int

    @property
    def size_bytes(self) -> int:
        return sum([size_bytes(value.type) for value in (*self.op.operands, *self.op.results)])


def with_merged_dots(block: Block) -> Block:
    """Return a block in which small products that share an operand are one."""
    *operations, end = block.operations
    groups = [group for group in _sharing(operations) if len(group) > 1]
    producer = {result: at for at, op in enumerate(operations) for result in op.results}
    replaced: dict[int, list[Op]] = {}
    for group in groups:
        free = [dot for dot in group if dot.at not in replaced]
        chosen = _independent(free, operations, producer)
        if len(chosen) > 1:
            replaced.update({dot.at: [] for dot in chosen})
            replaced[chosen[-1].at] = [*_merged(chosen)]
    if not replaced:
        return block
    changed = [new for at, op in enumerate(operations) for new in replaced.get(at, (op,))]
    ordered = in_order(changed, range(len(changed)))
    return Block(arguments=block.arguments, operations=(*ordered, end))


def _sharing(operations: Sequence[Op]) -> Iterable[list[_Dot]]:
    """Return the products that could be merged, by what they share."""
    groups: dict[tuple[object, ...], list[_Dot]] = {}
    for at, op in enumerate(operations):
        attrs = op.attrs
        if op.kind != "dot_general" or not isinstance(attrs, DotAttrs) or attrs.lhs_batching:
            continue
        if op.operands[0] is op.operands[1]:
            continue
        both = sides_of(op, attrs)
        for shared, other in ((0, both[1]), (1, both[0])):
            rank, count = len(other.shape), len(other.contracting)
            firsts, lasts = tuple(range(count)), tuple(range(rank - count, rank))
            if count < rank and other.contracting in (firsts, lasts):
                element = tensor_of(op.operands[1 - shared]).element
                is_first = other.contracting[0] == 0
                contracting = both[shared].contracting
                key = (op.operands[shared], shared, contracting, is_first, element, op.attributes)
                groups.setdefault(key, []).append(_Dot(at=at, op=op, shared=shared))
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
        if not earlier or not _needs(dot.at, earlier, operations, producer, first=dots[0].at):
            chosen.append(dot)
            size = max(size, dot.size_bytes)
        earlier.add(dot.at)
    return chosen


def _needs(
    dot: int,
    earlier: set[int],
    operations: Sequence[Op],
    producer: Mapping[Value, int],
    *,
    first: int,
) -> bool:
    """Return whether a product needs one of others, ``first`` being the first of them.

    True where that takes long to say.
    """
    pending, seen = [dot], {dot}
    while pending:
        for value in values_read(operations[pending.pop()]):
            at = producer.get(value, -1)
            if at in earlier:
                return True
            if at > first and at not in seen:
                seen.add(at)
                pending.append(at)
        if len(seen) > _MOST_VISITED:
            return True
    return False


def _merged(dots: Sequence[_Dot]) -> Iterator[Op]:
    """Yield the operations that compute all products as one: concatenated, multiplied, sliced."""
    first, shared, other = dots[0].op, dots[0].shared, 1 - dots[0].shared
    attrs = first.attrs
    assert isinstance(attrs, DotAttrs)  # noqa: S101 - checked where they were found
    both = sides_of(first, attrs)
    count = len(both[other].contracting)
    is_first = both[other].contracting[0] == 0
    build = Builder(first)
    flat: list[Value] = []
    for dot in dots:
        shape = shape_of(dot.op.operands[other])
        matrix = (
            (*shape[:count], prod(shape[count:]))
            if is_first
            else (prod(shape[:-count]), *shape[-count:])
        )
        flat.append(build.reshape(dot.op.operands[other], matrix))
    axis = count if is_first else 0
    joined = build.concatenate(flat, axis)
    numbers = tuple(range(count)) if is_first else tuple(range(1, count + 1))
    total, kept = shape_of(joined)[axis], both[shared].sizes(both[shared].free)
    element = tensor_of(first.results[0]).element
    whole = build.add(
        "dot_general",
        (first.operands[0], joined) if other else (joined, first.operands[1]),
        TensorType(element=element, shape=(*kept, total) if other else (total, *kept)),
        replace(attrs, rhs_contracting=numbers)
        if other
        else replace(attrs, lhs_contracting=numbers),
    )
    yield from build.operations
    start = 0
    for dot, value in zip(dots, flat, strict=True):
        build, width = Builder(dot.op), shape_of(value)[axis]
        cut = build.slice(whole, len(kept) if other else 0, start, start + width)
        result = dot.op.results[0]
        yield from build.making(result, build.reshape(cut, shape_of(result)))
        start += width


@frozen
class _Padded:
    """A product as computed: operands reshaped to ``given``, padded to ``wide``."""

    attrs: DotAttrs
    given: tuple[Side, Side]
    wide: tuple[Side, Side]

    @property
    def is_cut(self) -> bool:
        """Whether the result has more elements than are wanted."""
        return _result_shape(self.wide) != _result_shape(self.given)


def _result_shape(sides: tuple[Side, Side]) -> tuple[int, ...]:
    left, right = sides
    return (*left.sizes((*left.batching, *left.free)), *right.sizes(right.free))


def _multiple(value: Value) -> int:
    name = tensor_of(value).element.name
    return _MULTIPLE_OF_F8 if name.lower().startswith("f8") else _MULTIPLES.get(name, 1)


def _padded(op: Op | None) -> _Padded | None:
    """Return a product's padding; None without one.

    Products with a vector stay. Several dimensions are padded as one if they lie beside each other.
    """
    if op is None or op.kind != "dot_general" or not isinstance(op.attrs, DotAttrs):
        return None
    multiple, sides = _multiple(op.operands[0]), sides_of(op, op.attrs)
    if multiple == 1 or _multiple(op.operands[1]) != multiple:
        return None
    if min([prod(side.sizes(side.free)) for side in sides]) <= 1:
        return None
    left, right = [side.merged(multiple) for side in sides]
    wide = left.padded(multiple), right.padded(multiple)
    if wide == (left, right):
        return None
    attrs = replace(
        op.attrs,
        lhs_batching=left.batching,
        lhs_contracting=left.contracting,
        rhs_batching=right.batching,
        rhs_contracting=right.contracting,
    )
    return _Padded(attrs=attrs, given=(left, right), wide=wide)


def _with_padding(op: Op, product: Op, padded: _Padded, added: Value | None = None) -> list[Op]:
    """Return the padded product and sum, and the slice for ``op``."""
    build = Builder(product)
    operands = [
        build.pad(build.reshape(value, given.shape), wide.shape)
        for value, given, wide in zip(product.operands, padded.given, padded.wide, strict=True)
    ]
    shape, wide = _result_shape(padded.given), _result_shape(padded.wide)
    whole = TensorType(element=tensor_of(product.results[0]).element, shape=wide)
    value = build.add(
        "dot_general", operands, whole, padded.attrs, attributes=_text(product, padded.attrs)
    )
    if added is not None:
        build.origin = op
        value = build.add("add", (value, build.pad(build.reshape(added, shape), wide)), whole)
    value = build.head(value, shape)
    return build.making(op.results[0], build.reshape(value, shape_of(op.results[0])))


def _text(product: Op, attrs: DotAttrs) -> tuple[tuple[str, str], ...]:
    """Return a product's attributes' text if its dimensions stay."""
    return product.attributes if attrs == product.attrs else ()


def _padded_sum(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return a padded product with its addend, which the library still adds."""
    for value, other in (op.operands, op.operands[::-1]):
        product = uses.producer(value)
        while product is not None and product.kind == "reshape" and _is_read_once(product, uses):
            product = uses.producer(product.operands[0])
        padded = _padded(product)
        if product is None or padded is None or not _is_read_once(product, uses):
            continue
        maker = uses.producer(other)
        is_made = maker is not None and maker.traits.category in _MADE
        if padded.is_cut and not is_made:
            return _with_padding(op, product, padded, other)
    return None


def _is_read_once(op: Op, uses: Uses) -> bool:
    return uses.count(op.results[0]) == 1


def _padded_alone(op: Op, _uses: Uses) -> Sequence[Op] | None:
    padded = _padded(op)
    return None if padded is None else _with_padding(op, op, padded)


_MADE = (Category.BROADCAST, Category.CREATION)

PADDED_SUMS = Pattern(kinds=("add",), change=_padded_sum)
PADDED_DOTS = Pattern(kinds=("dot_general",), change=_padded_alone)
