"""Single operations: each function adds one to a block."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from random_programs.blocks import FLOATS, INTEGERS, MOST_ELEMENTS, Block, Tensor, Value, body, dims

_FLOAT_UNARY = (
    "abs", "cbrt", "ceil", "cosine", "exponential", "exponential_minus_one", "floor", "log",
    "log_plus_one", "logistic", "negate", "rsqrt", "sign", "sine", "sqrt", "tanh",
    "round_nearest_even",
)  # fmt: skip
_INTEGER_UNARY = ("not", "popcnt", "count_leading_zeros")
_FLOAT_BINARY = (
    "add", "add", "multiply", "multiply", "subtract", "divide", "maximum", "minimum", "power",
    "remainder", "atan2",
)  # fmt: skip
_INTEGER_BINARY = (
    "add", "multiply", "subtract", "maximum", "minimum", "and", "or", "xor", "shift_left",
    "shift_right_logical",
)  # fmt: skip
_REDUCTIONS = ("add", "maximum", "minimum", "multiply")


def unary(block: Block) -> None:
    operand = block.value(lambda kind: kind.is_number)
    kinds = _FLOAT_UNARY if operand.type.is_float else _INTEGER_UNARY
    block.generic(block.one_of(kinds), (operand,), operand.type)


def binary(block: Block) -> None:
    left = block.value(lambda kind: kind.is_number)
    kinds = _FLOAT_BINARY if left.type.is_float else _INTEGER_BINARY
    block.generic(block.one_of(kinds), (left, block.like(left.type)), left.type)


def convert(block: Block) -> None:
    operand = block.value()
    element = block.one_of((*FLOATS, *INTEGERS))
    if element != operand.type.element:
        block.generic("convert", (operand,), operand.type.of(element))


def compare_and_select(block: Block) -> None:
    left = block.value(lambda kind: kind.is_number)
    right = block.like(left.type)
    direction = block.one_of(("LT", "GE", "EQ"))
    attributes = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
    holds = block.generic("compare", (left, right), left.type.of("i1"), attributes)
    chosen = block.like(block.value(lambda kind: kind.shape == left.type.shape).type)
    block.generic("select", (holds, chosen, block.like(chosen.type)), chosen.type)


def clamp(block: Block) -> None:
    operand = block.value(lambda kind: kind.is_number)
    least, most = block.like(operand.type), block.like(operand.type)
    block.generic("clamp", (least, operand, most), operand.type)


def broadcast(block: Block) -> None:
    operand = block.value(lambda kind: kind.rank < 4)
    shape = list(operand.type.shape)
    at = block.integer(0, len(shape))
    size = block.one_of((2, 3, 8, 64))
    if operand.type.elements * size > MOST_ELEMENTS:
        return
    shape.insert(at, size)
    kept = [dim for dim in range(len(shape)) if dim != at]
    attributes = f"broadcast_dimensions = {dims(kept)}"
    block.generic("broadcast_in_dim", (operand,), operand.type.shaped(*shape), attributes)


def transpose(block: Block) -> None:
    operand = block.value(lambda kind: kind.rank > 1)
    order = block.draw(st.permutations(range(operand.type.rank)))
    shape = [operand.type.shape[dim] for dim in order]
    attributes = f"permutation = {dims(order)}"
    block.generic("transpose", (operand,), operand.type.shaped(*shape), attributes)


def reshape(block: Block) -> None:
    operand = block.value(lambda kind: kind.rank > 0)
    shape = list(operand.type.shape)
    if len(shape) > 1 and block.flag():
        at = block.integer(0, len(shape) - 2)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    else:
        at = block.integer(0, len(shape) - 1)
        factor = block.one_of([each for each in (1, 2, 4) if shape[at] % each == 0])
        shape[at : at + 1] = [factor, shape[at] // factor]
    if len(shape) <= 5:
        block.generic("reshape", (operand,), operand.type.shaped(*shape))


def slice_of(block: Block) -> None:
    operand = block.value(lambda kind: kind.rank > 0)
    starts: list[int] = []
    limits: list[int] = []
    strides: list[int] = []
    for size in operand.type.shape:
        starts.append(block.integer(0, size - 1))
        limits.append(block.integer(starts[-1] + 1, size))
        strides.append(block.one_of((1, 1, 1, 2)))
    shape = [
        -(-(limit - start) // stride)
        for start, limit, stride in zip(starts, limits, strides, strict=True)
    ]
    attributes = (
        f"start_indices = {dims(starts)}, limit_indices = {dims(limits)}, strides = {dims(strides)}"
    )
    block.generic("slice", (operand,), operand.type.shaped(*shape), attributes)


def _starts(block: Block, kind: Tensor) -> list[Value]:
    return [block.like(Tensor(element="i32")) for _ in kind.shape]


def dynamic_slice(block: Block) -> None:
    operand = block.value(lambda kind: kind.rank > 0)
    sizes = [block.integer(1, size) for size in operand.type.shape]
    operands = (operand, *_starts(block, operand.type))
    attributes = f"slice_sizes = {dims(sizes)}"
    block.generic("dynamic_slice", operands, operand.type.shaped(*sizes), attributes)


def dynamic_update_slice(block: Block) -> None:
    operand = block.value(lambda kind: kind.rank > 0)
    sizes = [block.integer(1, size) for size in operand.type.shape]
    update = block.like(operand.type.shaped(*sizes))
    operands = (operand, update, *_starts(block, operand.type))
    block.generic("dynamic_update_slice", operands, operand.type)


def pad(block: Block) -> None:
    operand = block.value(lambda kind: kind.rank > 0)
    low = [block.integer(0, 2) for _ in operand.type.shape]
    inside = [block.integer(0, 1) for _ in operand.type.shape]
    shape = [
        size + (size - 1) * gap + edge
        for size, gap, edge in zip(operand.type.shape, inside, low, strict=True)
    ]
    attributes = (
        f"edge_padding_low = {dims(low)}, edge_padding_high = {dims([0] * len(low))}, "
        f"interior_padding = {dims(inside)}"
    )
    filling = block.constant(operand.type.shaped())
    block.generic("pad", (operand, filling), operand.type.shaped(*shape), attributes)


def concatenate(block: Block) -> None:
    first = block.value(lambda kind: kind.rank > 0 and 2 * kind.elements <= MOST_ELEMENTS)
    dim = block.integer(0, first.type.rank - 1)
    shape = list(first.type.shape)
    shape[dim] *= 2
    second = block.like(first.type)
    attributes = f"dimension = {dim} : i64"
    block.generic("concatenate", (first, second), first.type.shaped(*shape), attributes)


def reverse(block: Block) -> None:
    operand = block.value(lambda kind: kind.rank > 0)
    dim = block.integer(0, operand.type.rank - 1)
    block.generic("reverse", (operand,), operand.type, f"dimensions = {dims([dim])}")


def iota(block: Block) -> None:
    kind = block.value(lambda kind: kind.rank > 0 and kind.is_number).type
    dim = block.integer(0, kind.rank - 1)
    block.generic("iota", (), kind, f"iota_dimension = {dim} : i64")


def dot_general(block: Block) -> None:
    """Multiply by a matrix that shares the first (batch) and the last (contracted) dimension."""
    left = block.value(lambda kind: kind.is_float and kind.rank > 0)
    shape = left.type.shape
    batch = block.integer(0, min(1, len(shape) - 1))
    width = block.one_of((1, 3, 8, 64))
    result = left.type.shaped(*shape[:-1], width)
    if max(result.elements, width * shape[-1] * (shape[0] if batch else 1)) > MOST_ELEMENTS:
        return
    contracted_first = block.flag()
    inner = (shape[-1], width) if contracted_first else (width, shape[-1])
    right = block.like(left.type.shaped(*shape[:batch], *inner))
    numbers = (
        f"#stablehlo.dot<lhs_batching_dimensions = {[0] if batch else []}, "
        f"rhs_batching_dimensions = {[0] if batch else []}, "
        f"lhs_contracting_dimensions = [{len(shape) - 1}], "
        f"rhs_contracting_dimensions = [{batch if contracted_first else batch + 1}]>"
    )
    element = block.one_of((left.type.element, "f32"))
    attributes = f"dot_dimension_numbers = {numbers}"
    block.generic("dot_general", (left, right), result.of(element), attributes)


def reduce(block: Block) -> None:
    operand = block.value(lambda kind: kind.rank > 0 and kind.is_number)
    ranks = range(operand.type.rank)
    over = sorted(block.draw(st.sets(st.sampled_from(ranks), min_size=1)))
    start = block.constant(operand.type.shaped(), 0)
    block.reduced(block.one_of(_REDUCTIONS), operand, start, over)


def reduce_window(block: Block) -> None:
    operand = block.value(lambda kind: kind.rank > 0 and kind.is_float)
    window = [min(size, block.integer(1, 3)) for size in operand.type.shape]
    strides = [block.integer(1, 2) for _ in window]
    shape = [
        (size - wide) // stride + 1
        for size, wide, stride in zip(operand.type.shape, window, strides, strict=True)
    ]
    result, scalar = operand.type.shaped(*shape), operand.type.shaped()
    start = block.constant(scalar, 0)
    chosen = body(block.one_of(_REDUCTIONS), scalar)
    text = (
        f'"stablehlo.reduce_window"({operand.name}, {start.name}) <{{window_dimensions = '
        f"{dims(window)}, window_strides = {dims(strides)}}}> {chosen} "
        f": ({operand.type}, {scalar}) -> {result}"
    )
    block.emit(text, result, operand, start)


def gather(block: Block) -> None:
    """Take rows of a table by number."""
    table = block.value(lambda kind: kind.rank > 0)
    count = block.one_of((1, 2, 5, 16))
    row = table.type.shape[1:]
    result = table.type.shaped(count, *row)
    if result.elements > MOST_ELEMENTS:
        return
    places = block.like(Tensor(element="i32", shape=(count, 1)))
    offsets = list(range(1, len(row) + 1))
    attributes = (
        f"dimension_numbers = #stablehlo.gather<offset_dims = {offsets}, "
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, "
        f"slice_sizes = {dims((1, *row))}, indices_are_sorted = false"
    )
    block.generic("gather", (table, places), result, attributes)


def scatter(block: Block) -> None:
    """Add rows to a table, or put them there, by number."""
    table = block.value(lambda kind: kind.rank > 0 and kind.is_number)
    count = block.one_of((1, 2, 5, 16))
    row = table.type.shape[1:]
    updates_type = table.type.shaped(count, *row)
    if updates_type.elements > MOST_ELEMENTS:
        return
    places = block.like(Tensor(element="i32", shape=(count, 1)))
    updates = block.like(updates_type)
    scalar = table.type.shaped()
    windows = list(range(1, len(row) + 1))
    attributes = (
        f"scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {windows}, "
        "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, "
        "indices_are_sorted = false, unique_indices = false"
    )
    text = (
        f'"stablehlo.scatter"({table.name}, {places.name}, {updates.name}) <{{{attributes}}}> '
        f"{body(block.one_of(('add', 'maximum')), scalar)} "
        f": ({table.type}, {places.type}, {updates.type}) -> {table.type}"
    )
    block.emit(text, table.type, table, places, updates)


def sort(block: Block) -> None:
    """Sort a vector: of more rows XLA counts otherwise (docs/evidence/operation-counts.md)."""
    operand = block.value(lambda kind: kind.rank == 1 and kind.is_float)
    scalar = operand.type.shaped()
    compared = (
        f"({{\n^bb0(%l: {scalar}, %r: {scalar}):\n"
        f"%o = stablehlo.compare LT, %l, %r : ({scalar}, {scalar}) -> tensor<i1>\n"
        "stablehlo.return %o : tensor<i1>\n})"
    )
    text = (
        f'"stablehlo.sort"({operand.name}) <{{dimension = 0 : i64, is_stable = true}}> {compared} '
        f": ({operand.type}) -> {operand.type}"
    )
    block.emit(text, operand.type, operand)


def convolution(block: Block) -> None:
    images = block.value(lambda kind: kind.is_float and kind.rank == 4)
    batch, height, width, channels = images.type.shape
    kernel_height, kernel_width = min(3, height), min(2, width)
    groups = block.one_of([each for each in (1, 2, channels) if channels % each == 0])
    features = groups * block.one_of((1, 2, 4))
    stride = block.integer(1, 2)
    kernel = block.like(
        images.type.shaped(kernel_height, kernel_width, channels // groups, features)
    )
    shape = (
        batch,
        (height - kernel_height) // stride + 1,
        (width - kernel_width) // stride + 1,
        features,
    )
    result = images.type.shaped(*shape)
    if result.elements > MOST_ELEMENTS:
        return
    attributes = (
        "dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, "
        f"window_strides = {dims((stride, stride))}, "
        f"feature_group_count = {groups} : i64, batch_group_count = 1 : i64"
    )
    block.generic("convolution", (images, kernel), result, attributes)


SIMPLE: tuple[Callable[[Block], None], ...] = (
    unary, unary, binary, binary, binary, convert, compare_and_select, clamp, broadcast, transpose,
    reshape, slice_of, dynamic_slice, dynamic_update_slice, pad, concatenate, reverse, iota,
    dot_general, dot_general, dot_general, reduce, reduce, reduce_window, gather, scatter, sort,
    convolution,
)  # fmt: skip
