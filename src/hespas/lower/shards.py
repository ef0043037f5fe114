"""Copies of PyTorch's FSDP2: weights out of one buffer, and gradients into another.

A layer's weights are gathered into one flat buffer, and copied out of it, each into an array of its
own; its gradients are copied into another, which is scattered. Gradients are summed in f32 where
weights are smaller. Source: pytorch/pytorch, torch/distributed/fsdp/_fully_shard/
_fsdp_collectives.py, ``foreach_all_gather_copy_out`` and ``foreach_reduce``; torchtitan,
``mixed_precision_reduce``, float32 by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from hespas.lower.build import Names, fusion_around
from hespas.program.attrs import CollectiveAttrs
from hespas.program.program import Op, Value, tensor_of
from hespas.program.rewrite import plain_op
from hespas.program.types import element_type

Groups = frozenset[frozenset[int]]

ASSUMPTION = (
    "FSDP2 copies gathered weights out of one buffer, and gradients into another, in which they "
    "are summed in f32"
)


def with_shards_copied(operations: Sequence[Op], groups: Groups, names: Names) -> Iterator[Op]:
    """Yield operations with FSDP2's copies around collectives among ``groups``."""
    for op in operations:
        if not isinstance(op.attrs, CollectiveAttrs) or _groups(op.attrs) != groups:
            yield op
        elif op.kind == "all_gather":
            buffers = tuple([Value(type=value.type) for value in op.results])
            yield replace(op, results=buffers)
            for buffer, result in zip(buffers, op.results, strict=True):
                yield _written(op, buffer, result, names)
        elif op.kind == "reduce_scatter":
            buffers, sums = (tuple(map(_in_f32, values)) for values in (op.operands, op.results))
            for operand, buffer in zip(op.operands, buffers, strict=True):
                yield _written(op, operand, buffer, names)
            yield replace(op, operands=buffers, results=sums)
            for total, result in zip(sums, op.results, strict=True):
                yield _written(op, total, result, names)
        else:
            yield op


def _groups(attrs: CollectiveAttrs) -> Groups:
    return frozenset(map(frozenset, attrs.groups.listed()))


def _in_f32(value: Value) -> Value:
    kind = tensor_of(value)
    return Value(type=replace(kind, element=element_type("f32")))


def _written(at: Op, value: Value, result: Value, names: Names) -> Op:
    """Return the kernel that reads a value and writes it elsewhere, in the type of ``result``."""
    kind = "copy" if value.type == result.type else "convert"
    copied = plain_op(at, kind, (value,), result)
    return fusion_around([copied], [result], at, names.next(f"fsdp_{kind}"))
