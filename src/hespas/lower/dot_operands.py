"""Compute what products read, where it is made of less, inside of the products.

libtpu writes products and what makes their operands as one kernel: in llama3-100m compiled for four
v6e, the one-hot rows by which a product looks up the embedding, 1.05 GB, are never in memory, in
the forward pass or for the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

from hespas.lower.kinds import BROADCASTS, CREATING, ELEMENTWISE
from hespas.lower.order import readers_of
from hespas.program.attrs import NO_ATTRS, FusionAttrs
from hespas.program.program import Block, Op, Value
from hespas.program.rewrite import Renaming, copied_op, fresh
from hespas.program.types import allocated_bytes

_INSIDE = ELEMENTWISE | CREATING | BROADCASTS | {"reshape", "bitcast"}


def with_operands_inside(operations: Sequence[Op], returned: Sequence[Value]) -> list[Op]:
    """Return operations with kernels that only products read as parts of these products.

    They are kernels that work element by element and whose operands together are smaller than their
    result. What ``returned`` names has to be in memory.
    """
    readers = readers_of(operations)
    inside = {
        op.results[0]: op
        for op in operations
        if _is_small(op) and not any(value is op.results[0] for value in returned)
        if all(reader.kind == "dot_general" for reader in readers.get(op.results[0], ()))
    }
    if not inside:
        return [*operations]
    made = set(inside.values())
    return [_product(op, inside) for op in operations if op not in made]


def _is_small(op: Op) -> bool:
    if op.kind != "fusion" or len(op.results) != 1:
        return False
    body = op.regions[0].operations[:-1]
    if any(each.kind not in _INSIDE for each in body):
        return False
    given = sum(allocated_bytes(value.type) for value in op.operands)
    return given < allocated_bytes(op.results[0].type)


def _product(op: Op, inside: dict[Value, Op]) -> Op:
    """Return a product as a kernel that makes its operands itself, where it can."""
    makers = [inside[value] for value in dict.fromkeys(op.operands) if value in inside]
    if op.kind != "dot_general" or not makers:
        return op
    given = [value for maker in makers for value in maker.operands]
    given.extend(value for value in op.operands if value not in inside)
    operands = tuple(dict.fromkeys(given))
    outer: Renaming = {}
    arguments = fresh(operands, outer)
    body: list[Op] = []
    for maker in makers:
        (block,) = maker.regions
        inner: Renaming = {
            argument: outer[value]
            for argument, value in zip(block.arguments, maker.operands, strict=True)
        }
        body.extend(copied_op(each, inner) for each in block.operations[:-1])
        outer[maker.results[0]] = inner[block.operations[-1].operands[0]]
    product = copied_op(op, outer)
    end = Op(dialect="mhlo", kind="return", operands=product.results, results=(), attrs=NO_ATTRS)
    return Op(
        dialect="mhlo",
        kind="fusion",
        operands=operands,
        results=op.results,
        attrs=FusionAttrs(kind="kOutput", backend_kind="", in_place=()),
        attributes=(("fusion_kind", "#mhlo<fusion_kind kOutput>"),),
        regions=(Block(arguments=arguments, operations=(*body, product, end)),),
        source_location=op.source_location,
        scope=op.scope,
        instruction=op.instruction,
    )
