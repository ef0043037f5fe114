"""Open operations that GPUs have no kernel for.

* ``ragged_dot``: how many rows each group has is known only when the program runs. The compiler
  makes a copy of the rows for each group, with zeros in the place of the others, and multiplies all
  of them: as many times the FLOPs as there are groups. TPUs have kernels that multiply each row
  once, as libraries do.
* ``rng_bit_generator`` writes two parts of words of 32 bits, which a second kernel joins; numbers
  of more bits are written once.
* ``select_and_scatter``, the gradient of a maximum over windows: one kernel finds the element of
  each window that is selected and writes where it stands, one index for each dimension; another
  scatters the gradient to these places. Both apply their function as often as the operation did.

Source: openxla/xla, ``RaggedDotRewriter``, ``RngBitGeneratorExpander``,
``SelectAndScatterExpander`` (xla/hlo/transforms/expanders, Apache License 2.0), and what jaxlib
0.10.2 compiles for H100.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from msgspec.structs import replace

from hespas.lower.convolutions import WRITTEN_IMAGES
from hespas.program.attrs import CompareAttrs, ConstantAttrs, DimensionAttrs, DotAttrs
from hespas.program.experts import grouped_product
from hespas.program.program import Function, Op, Program, Value, nested_ops, shape_of, tensor_of
from hespas.program.rewrite import Builder, Pattern, each_block, with_patterns
from hespas.program.types import TensorType, element_type
from hespas.program.uses import Uses

_INDEX, _BOOLEAN, _WORD = map(element_type, ("i32", "i1", "ui32"))


def expanded(program: Program, *, has_grouped_products: bool) -> Program:
    """Open operations that GPUs have no kernel for.

    With ``has_grouped_products`` libraries run it: one multiplies each row by the matrix of its
    group, and another writes random numbers in one pass.
    """
    if program.is_scheduled:
        return program
    groups, patterns = 0, [WRITTEN_IMAGES]
    if not has_grouped_products:
        groups = max(map(_groups_of, program.functions.values()))
        patterns += [OPENED_GROUPS, JOINED_PARTS]
    opened = partial(with_patterns, patterns=patterns)
    functions = {
        name: replace(function, body=each_block(function.body, opened))
        for name, function in program.functions.items()
    }
    note = (
        "products of groups of rows (ragged_dot) multiply all rows for each group, up to "
        f"{groups} times, as XLA's GPU compiler makes them by default; libraries multiply each "
        "row once"
    )
    assumptions = (note, *program.assumptions) if groups else program.assumptions
    return replace(program, functions=functions, assumptions=assumptions)


def _groups_of(function: Function) -> int:
    """Return the largest number of groups of a product; 0 without products."""
    products = [grouped_product(op) for op in nested_ops(function.body) if _is_opened(op)]
    return max([product.groups for product in products if product is not None], default=0)


def _is_opened(op: Op) -> bool:
    """Return whether groups divide rows, not batches."""
    attrs = op.attrs
    if op.kind != "ragged_dot" or not isinstance(attrs, DotAttrs):
        return False
    return attrs.ragged not in attrs.lhs_batching


def _opened_groups(op: Op, _uses: Uses) -> Sequence[Op] | None:
    product, attrs = grouped_product(op) if _is_opened(op) else None, op.attrs
    if product is None or not isinstance(attrs, DotAttrs) or attrs.ragged is None:
        return None
    build = Builder(op)
    lhs, rhs, counts = op.operands
    places = TensorType(element=_INDEX, shape=(product.groups, product.rows))
    numbers = build.add("iota", (), places, DimensionAttrs(dimension=1))
    ends = build.broadcast(counts, places.shape, (0,))
    kind = replace(places, element=_BOOLEAN)
    mask = build.add("compare", (numbers, ends), kind, CompareAttrs(direction="LT"))
    rows = _masked(build, mask, lhs, attrs.ragged)
    batching, contracting = _moved(attrs.lhs_batching), _moved(attrs.lhs_contracting)
    if attrs.is_divided:
        axis = attrs.rhs_contracting[attrs.lhs_contracting.index(attrs.ragged)]
        rhs = _masked(build, mask, rhs, axis)
        plain = DotAttrs(
            lhs_batching=(0, *batching),
            rhs_batching=(0, *_moved(attrs.rhs_batching)),
            lhs_contracting=contracting,
            rhs_contracting=_moved(attrs.rhs_contracting),
        )
    else:
        # The first dimension of so many elements tells the matrices of the groups apart.
        used = {*attrs.rhs_batching, *attrs.rhs_contracting}
        sizes = enumerate(shape_of(rhs))
        first = next(axis for axis, size in sizes if size == product.groups and axis not in used)
        plain = DotAttrs(
            lhs_batching=batching,
            rhs_batching=attrs.rhs_batching,
            lhs_contracting=(0, *contracting),
            rhs_contracting=(first, *attrs.rhs_contracting),
        )
    plain = replace(plain, precision=attrs.precision, algorithm=attrs.algorithm)
    build.add("dot_general", (rows, rhs), op.results[0], plain)
    return build.operations


def _moved(dimensions: Sequence[int]) -> tuple[int, ...]:
    return tuple([axis + 1 for axis in dimensions])


def _masked(build: Builder, mask: Value, operand: Value, rows: int) -> Value:
    """Return an operand's copies, zero in other groups' rows."""
    shape = (shape_of(mask)[0], *shape_of(operand))
    kind = replace(tensor_of(operand), shape=shape)
    zero = build.add("constant", (), replace(kind, shape=()), ConstantAttrs(value=0))
    copies = build.broadcast(operand, shape, range(1, len(shape)))
    zeros = build.broadcast(zero, shape, ())
    picked = build.broadcast(mask, shape, (0, rows + 1))
    return build.add("select", (picked, copies, zeros), kind)


OPENED_GROUPS = Pattern(kinds=("ragged_dot",), change=_opened_groups)


def _joined_parts(op: Op, _uses: Uses) -> Sequence[Op] | None:
    state, numbers = op.results
    words_type = tensor_of(numbers)
    count = words_type.element_count
    if count <= 1 or words_type.element.bits > _WORD.bits:
        return None
    build = Builder(op)
    parts = [
        Value(type=TensorType(element=_WORD, shape=(size,)))
        for size in ((count + 1) // 2, count // 2)
    ]
    build.operations.append(replace(op, results=(state, *parts)))
    words = build.reshape(build.concatenate(parts, 0), words_type.shape)
    return build.making(numbers, build.convert(words, words_type.element))


JOINED_PARTS = Pattern(kinds=("rng_bit_generator",), change=_joined_parts)


def _opened_windows(op: Op, _uses: Uses) -> Sequence[Op]:
    (operand, source, init), build = op.operands, Builder(op)
    operand_type, shape = tensor_of(operand), shape_of(source)
    selected = Value(type=TensorType(element=operand_type.element, shape=shape))
    indices = [Value(type=TensorType(element=_INDEX, shape=shape)) for _ in operand_type.shape]
    window = replace(op, kind="reduce_window", operands=(operand, init), regions=op.regions[:1])
    build.operations.append(replace(window, results=(selected, *indices)))
    columns = [build.reshape(index, (prod(shape), 1)) for index in indices]
    table = build.concatenate(columns, 1)
    empty = build.broadcast(init, operand_type.shape, ())
    build.add("scatter", (empty, table, source), op.results[0], regions=op.regions[1:])
    return build.operations


OPENED_WINDOWS = Pattern(kinds=("select_and_scatter",), change=_opened_windows)
