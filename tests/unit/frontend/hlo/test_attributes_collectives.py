from __future__ import annotations

import pytest

from hespas.program.attrs import CollectiveAttrs
from hlo_programs import ADD, entry_op


def _kernel(strategy: str, opcode: str = "all-reduce") -> str:
    config = f'backend_config={{"collective_backend_config":{{"kernel_strategy":"{strategy}"}}}}'
    op = entry_op(
        f"x = f32[8] parameter(0)\nROOT r = f32[8] {opcode}(x), replica_groups={{{{0,1}}}}, "
        f"to_apply=add, {config}",
        computations=ADD,
    )
    assert isinstance(op.attrs, CollectiveAttrs)
    return op.attrs.kernel


@pytest.mark.parametrize(
    ("strategy", "kernel"),
    [
        ("KERNEL_STRATEGY_TRITON_ONE_SHOT", "one_shot"),
        ("KERNEL_STRATEGY_TRITON_TWO_SHOT", "two_shot"),
        ("KERNEL_STRATEGY_DEFAULT", ""),
    ],
)
def test_the_compiler_says_which_kernel_reduces(strategy: str, kernel: str) -> None:
    assert _kernel(strategy) == kernel
