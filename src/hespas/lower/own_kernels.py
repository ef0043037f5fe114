"""All-reduces that XLA's GPU compiler does by kernels of its own, as it chooses them.

Found in what jaxlib 0.10.2 compiles for Hopper and Blackwell: one shot up to 256 KiB, two shots up
to 4 MiB, of one operand of bf16, f32 or s32, among 2, 4 or 8 GPUs of a host. f16, larger ones and
those among hosts are the library's.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hespas.program.attrs import CollectiveAttrs
from hespas.program.program import Op
from hespas.program.types import TensorType

ONE_SHOT_BYTES, TWO_SHOT_BYTES = 256 << 10, 4 << 20
_TYPES = frozenset({"bf16", "f32", "i32"})


def with_own_kernels(operations: Sequence[Op]) -> list[Op]:
    """Return operations with the kernel that is chosen for each all-reduce.

    A link without such kernels, and a group of another size, leave it to the library: the
    simulation of the network decides.
    """
    return [_chosen(op) if op.kind == "all_reduce" else op for op in operations]


def _chosen(op: Op) -> Op:
    if not isinstance(op.attrs, CollectiveAttrs) or len(op.operands) != 1:
        return op
    kind = op.operands[0].type
    if not isinstance(kind, TensorType) or kind.element.name not in _TYPES:
        return op
    if kind.size_bytes > TWO_SHOT_BYTES:
        return op
    kernel = "one_shot" if kind.size_bytes <= ONE_SHOT_BYTES else "two_shot"
    return replace(op, attrs=replace(op.attrs, kernel=kernel))
