"""Open the gradient of a maximum over windows, which GPUs compute in two kernels.

The first one finds in each window the element that was selected and writes where it stands, one
index for each dimension; the second one scatters the gradient to these places. Each applies the
function that it had as one operation as often as that did.

Source: openxla/xla, ``SelectAndScatterExpander``
(xla/hlo/transforms/expanders/select_and_scatter_expander.cc, Apache License 2.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from msgspec.structs import replace

from hespas.lower.blocks import tensor_of
from hespas.program.attrs import DimensionAttrs
from hespas.program.program import Op, Value
from hespas.program.rewrite import plain_op
from hespas.program.types import TensorType, element_type

_INDEX = element_type("i32")


def with_windows_opened(operations: Sequence[Op]) -> list[Op]:
    """Return operations in which no ``select_and_scatter`` is left."""
    if not any(op.kind == "select_and_scatter" for op in operations):
        return list(operations)
    return [made for op in operations for made in _opened(op)]


def _opened(op: Op) -> Iterator[Op]:
    if op.kind != "select_and_scatter":
        yield op
        return
    operand, source = tensor_of(op.operands[0]), tensor_of(op.operands[1])
    selected = Value(type=TensorType(element=operand.element, shape=source.shape))
    places = TensorType(element=_INDEX, shape=source.shape)
    indices = [Value(type=places) for _ in operand.shape]
    yield replace(
        op,
        kind="reduce_window",
        operands=(op.operands[0], op.operands[2]),
        results=(selected, *indices),
        regions=op.regions[:1],
    )
    count = prod(source.shape)
    columns = [Value(type=TensorType(element=_INDEX, shape=(count, 1))) for _ in indices]
    for index, column in zip(indices, columns, strict=True):
        yield plain_op(op, "reshape", (index,), column)
    table = Value(type=TensorType(element=_INDEX, shape=(count, operand.rank)))
    joined = plain_op(op, "concatenate", columns, table)
    yield replace(joined, attrs=DimensionAttrs(dimension=1))
    empty = Value(type=op.results[0].type)
    yield plain_op(op, "broadcast_in_dim", op.operands[2:], empty)
    scattered = plain_op(op, "scatter", (empty, table, op.operands[1]), op.results[0])
    yield replace(scattered, regions=op.regions[1:])
