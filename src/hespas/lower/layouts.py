"""Which order a value's dimensions have in memory.

A compiler gives values the layouts that save copies: a transpose is then only another name for the
same bytes. Products want their batch dimensions slowest, then rows and columns in either order;
collectives want the dimension along which they gather or scatter slowest; arguments and results of
the program have the default order. What a value's users want is passed back to where it is made,
and a copy stands where a value comes in another order than its user takes.

Orders list dimensions from the slowest to the fastest; dimensions of one element do not count.
"""

from __future__ import annotations

from functools import lru_cache

from hespas.program.attrs import DotAttrs
from hespas.program.program import Op
from hespas.program.types import TensorType

Order = tuple[int, ...]

VIEWS = frozenset({"reshape", "transpose"})
"""Operations that give elements another place and no other use."""

_ADA, _BLACKWELL = 8.9, 10.0


@lru_cache(maxsize=65536)
def default_order(shape: tuple[int, ...]) -> Order:
    """Return a shape's default order, without dimensions of one element.

    >>> default_order((4, 1, 8))
    (0, 2)
    """
    return tuple([axis for axis, size in enumerate(shape) if size > 1])


@lru_cache(maxsize=65536)
def layout_of(order: Order, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return an order's layout, fastest dimension first; None for the default.

    >>> layout_of((2, 0), (4, 1, 8)), layout_of((0, 2), (4, 1, 8))
    ((0, 2, 1), None)
    """
    if order == default_order(shape):
        return None
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    return (*reversed(order), *reversed(ones))


@lru_cache(maxsize=65536)
def transposed(order: Order, permutation: tuple[int, ...]) -> Order:
    """Return the order that the same bytes have after a transpose.

    >>> transposed((0, 1, 2), (2, 0, 1))
    (1, 2, 0)
    """
    where = {dimension: place for place, dimension in enumerate(permutation)}
    return tuple([where[dimension] for dimension in order])


@lru_cache(maxsize=65536)
def reshaped(order: Order, before: tuple[int, ...], after: tuple[int, ...]) -> Order | None:
    """Return the order of the same bytes in another shape, if any.

    >>> reshaped((0, 1, 2), (4, 6, 8), (24, 8))
    (0, 1)
    >>> reshaped((1, 2, 0), (4, 6, 8), (4, 48))
    (1, 0)
    >>> reshaped((1, 0, 2), (4, 6, 8), (24, 8)) is None
    True
    """
    if order == default_order(before):
        return default_order(after)
    position = {dimension: number for number, dimension in enumerate(order)}
    runs: list[tuple[int, Order]] = []
    for old, new in factors(before, after):
        if not old:
            continue
        places = [position[dimension] for dimension in old]
        if places != list(range(places[0], places[0] + len(places))):
            return None
        runs.append((places[0], new))
    return tuple([dimension for _, new in sorted(runs) for dimension in new])


@lru_cache(maxsize=65536)
def factors(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[tuple[Order, Order], ...]:
    """Return smallest groups of dimensions with equal products."""
    old, new = default_order(before), default_order(after)
    groups: list[tuple[Order, Order]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        start_i, start_j = i, j
        old_size = before[old[i]] if i < len(old) else 1
        new_size = after[new[j]] if j < len(new) else 1
        i, j = i + 1, j + 1
        while old_size != new_size:
            if old_size < new_size and i < len(old):
                old_size *= before[old[i]]
                i += 1
            elif j < len(new):
                new_size *= after[new[j]]
                j += 1
            else:
                break
        groups.append((old[start_i:i], new[start_j:j]))
    return tuple(groups)


def major(dimension: int, shape: tuple[int, ...]) -> Order:
    """Return the default order with a dimension moved to the slowest place.

    >>> major(2, (4, 6, 8))
    (2, 0, 1)
    """
    slower = [axis for axis in default_order(shape) if axis != dimension]
    return (dimension, *slower) if shape[dimension] > 1 else tuple(slower)


@lru_cache(maxsize=65536)
def operand_order(attrs: DotAttrs, operand: int, shape: tuple[int, ...]) -> Order:
    """Return the order to copy an unusable operand into."""
    batch, contracted, free = _parts(attrs, operand, len(shape))
    return tuple([axis for axis in (*batch, *contracted, *free) if shape[axis] > 1])


def sums_fastest(op: Op, compute_capability: float | None) -> bool:
    """Return whether both operands need their summed dimensions fastest.

    cuBLASLt has no other kernels for products of 8 bits: of integers on all parts, of floats on
    those before Blackwell that have such products. A part without a ``compute_capability`` is none
    of NVIDIA's.

    Source: NVIDIA, cuBLAS, section "cublasLtMatmul"; openxla/xla, ``GpuLayoutAssignment``
    (xla/service/gpu/transforms/layout_assignment.cc, Apache License 2.0).
    """
    if compute_capability is None:
        return False
    kinds = [value.type for value in (*op.operands, *op.results)]
    names = [tensor.element.name for tensor in kinds if isinstance(tensor, TensorType)]
    if names == ["i8", "i8", "i32"]:
        return True
    are_floats = all(name.startswith("f8") for name in names[:2])
    return are_floats and _ADA <= compute_capability < _BLACKWELL


def summed_fastest(attrs: DotAttrs, operand: int, order: Order) -> Order:
    """Return an operand's order with summed dimensions fastest."""
    contracted = (attrs.lhs_contracting, attrs.rhs_contracting)[operand]
    unsummed = [axis for axis in order if axis not in contracted]
    return (*unsummed, *[axis for axis in order if axis in contracted])


@lru_cache(maxsize=65536)
def takes_order(attrs: DotAttrs, operand: int, order: Order, shape: tuple[int, ...]) -> bool:
    """Return whether a product takes an operand as it lies.

    >>> dot = DotAttrs(
    ...     lhs_batching=(1,), rhs_batching=(0,), lhs_contracting=(2,), rhs_contracting=(2,)
    ... )
    >>> takes_order(dot, 0, (1, 0, 2), (64, 8, 128)), takes_order(dot, 0, (0, 1, 2), (64, 8, 128))
    (True, False)
    """
    batch, contracted, _ = _parts(attrs, operand, len(shape))
    kinds = [0 if axis in batch else 1 if axis in contracted else 2 for axis in order]
    runs = [kind for axis, kind in enumerate(kinds) if not axis or kinds[axis - 1] != kind]
    return len(runs) == len(set(runs)) and (0 not in runs or runs[0] == 0)


@lru_cache(maxsize=65536)
def merged_orders(attrs: DotAttrs, shapes: tuple[tuple[int, ...], ...]) -> tuple[Order, ...]:
    """Return operand orders of a batched product with merged dimensions.

    XLA makes three dimensions of an operand: batch, rows and summed ones of the left one, batch,
    summed ones and columns of the right one, and has both written so. Nothing of other products.

    Source: openxla/xla, ``DotDecomposer`` (xla/hlo/transforms/simplifiers/dot_decomposer.cc) and
    ``GpuLayoutAssignment`` (xla/service/gpu/transforms/layout_assignment.cc, Apache License 2.0).

    >>> dot = DotAttrs(
    ...     lhs_batching=(0,), rhs_batching=(0,), lhs_contracting=(2,), rhs_contracting=(3,)
    ... )
    >>> merged_orders(dot, ((2, 8, 64), (2, 4, 16, 64)))
    ((0, 1, 2), (0, 3, 1, 2))
    """
    orders: list[Order] = []
    is_merged = False
    for operand, shape in enumerate(shapes):
        batch, contracted, free = _parts(attrs, operand, len(shape))
        is_merged |= bool(batch) and max(len(contracted), len(free)) > 1
        rows_and_sums = (*contracted, *free) if operand else (*free, *contracted)
        orders.append(tuple([axis for axis in (*batch, *rows_and_sums) if shape[axis] > 1]))
    return tuple(orders) if is_merged else ()


def _parts(attrs: DotAttrs, operand: int, rank: int) -> tuple[Order, Order, Order]:
    batch = (attrs.lhs_batching, attrs.rhs_batching)[operand]
    contracted = (attrs.lhs_contracting, attrs.rhs_contracting)[operand]
    used = {*batch, *contracted}
    return batch, contracted, tuple([axis for axis in range(rank) if axis not in used])


def matching_order(attrs: DotAttrs, lhs: Order, rhs: Order, shape: tuple[int, ...]) -> Order:
    """Return the right operand's order that matches the left one."""
    pairs = (
        *zip(attrs.lhs_batching, attrs.rhs_batching, strict=True),
        *zip(attrs.lhs_contracting, attrs.rhs_contracting, strict=True),
    )
    theirs = dict(pairs)
    batches = iter([theirs[axis] for axis in lhs if axis in attrs.lhs_batching])
    summed = iter([theirs[axis] for axis in lhs if axis in attrs.lhs_contracting])
    matched: list[int] = []
    for axis in rhs:
        if axis in attrs.rhs_batching:
            matched.append(next(batches, axis))
        else:
            matched.append(next(summed, axis) if axis in attrs.rhs_contracting else axis)
    return tuple(matched) if sorted(matched) == sorted(rhs) else default_order(shape)


def result_orders(attrs: DotAttrs, lhs: Order, rhs: Order, ranks: tuple[int, int]) -> list[Order]:
    """Return the orders of a product's result: by rows and by columns."""
    batching, _, lhs_free = _parts(attrs, 0, ranks[0])
    _, _, rhs_free = _parts(attrs, 1, ranks[1])
    place = {axis: number for number, axis in enumerate((*batching, *lhs_free))}
    batch = [place[axis] for axis in lhs if axis in batching]
    rows = [place[axis] for axis in lhs if axis in lhs_free]
    columns = [len(place) + rhs_free.index(axis) for axis in rhs if axis in rhs_free]
    return [(*batch, *rows, *columns), (*batch, *columns, *rows)]
