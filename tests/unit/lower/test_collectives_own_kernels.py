from __future__ import annotations

import pytest

from hespas.lower.collectives import with_own_kernels
from hespas.program.attrs import CollectiveAttrs
from hlo_programs import ADD, entry_op


@pytest.mark.parametrize(
    ("element", "count", "kernel"),
    [
        ("bf16", 128 << 10, "one_shot"),
        ("bf16", (128 << 10) + 1, "two_shot"),
        ("f32", 1 << 20, "two_shot"),
        ("f32", (1 << 20) + 1, ""),
        ("s32", 1, "one_shot"),
        ("f16", 8, ""),
    ],
)
def test_sizes_and_types_choose(element: str, count: int, kernel: str) -> None:
    op = entry_op(
        f"x = {element}[{count}] parameter(0)\n"
        f"ROOT r = {element}[{count}] all-reduce(x), replica_groups={{{{0,1}}}}, to_apply=add",
        computations=ADD.replace("f32", element),
    )
    (chosen,) = with_own_kernels([op])
    assert isinstance(chosen.attrs, CollectiveAttrs)
    assert chosen.attrs.kernel == kernel
