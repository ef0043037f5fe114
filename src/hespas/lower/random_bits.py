"""Write random numbers as XLA's GPU compiler does: in parts, which a second kernel joins.

Words have 32 bits. Numbers of fewer bits are cut from a word each; those of more are written once.

Source: openxla/xla, ``RngBitGeneratorExpander`` (xla/hlo/transforms/expanders, Apache License 2.0),
and what jaxlib 0.10.2 compiles for H100.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from hespas.lower.blocks import tensor_of
from hespas.program.attrs import DimensionAttrs
from hespas.program.program import Op, Value
from hespas.program.rewrite import plain_op
from hespas.program.types import TensorType, element_type

_WORD = element_type("ui32")


def with_parts_joined(operations: Iterable[Op]) -> Iterator[Op]:
    """Yield operations; generators write two parts, which are then joined."""
    for op in operations:
        if op.kind != "rng_bit_generator" or not _is_of_parts(tensor_of(op.results[1])):
            yield op
        else:
            yield from _joined(op)


def _is_of_parts(made: TensorType) -> bool:
    return made.element_count > 1 and made.element.bits <= _WORD.bits


def _joined(op: Op) -> Iterator[Op]:
    state, numbers = op.results
    made = tensor_of(numbers)
    count = made.element_count
    first, second, together = (
        Value(type=TensorType(element=_WORD, shape=(size,)))
        for size in ((count + 1) // 2, count // 2, count)
    )
    yield replace(op, results=(state, first, second))
    joined = plain_op(op, "concatenate", (first, second), together)
    yield replace(joined, attrs=DimensionAttrs(dimension=0))
    if made.element == _WORD:
        yield plain_op(op, "reshape", (together,), numbers)
        return
    shaped = Value(type=replace(made, element=_WORD))
    yield plain_op(op, "reshape", (together,), shaped)
    yield plain_op(op, "convert", (shaped,), numbers)
