from __future__ import annotations

from math import prod

import pytest

from expert_programs import gradient_alone, product_alone
from hespas.frontend.load import load_source
from hespas.lower.expand import OPENED_GROUPS, expanded
from hespas.program.program import Op
from hespas.program.types import TensorType
from hespas.work.expand import Leaf, expand
from rewriting import rewritten

ROWS, K, N, GROUPS = 64, 8, 16, 4


def operations(text: str) -> list[Op]:
    return list(load_source(text.encode(), name="test.mlir").main.body.operations[:-1])


def flops(ops: list[Op], kind: str) -> int:
    leaves = [leaf for leaf in expand(ops) if isinstance(leaf, Leaf) and leaf.op.kind == kind]
    return sum(count for leaf in leaves for _, count in leaf.work.flops)


@pytest.mark.parametrize("text", [product_alone(), gradient_alone()])
def test_every_row_is_multiplied_once_for_each_group(text: str) -> None:
    given = operations(text)
    opened = rewritten(given, OPENED_GROUPS)
    assert "ragged_dot" not in {op.kind for op in opened}
    assert opened[-1].results == given[-1].results
    assert flops(given, "ragged_dot") == 2 * ROWS * K * N
    assert flops(opened, "dot_general") == GROUPS * 2 * ROWS * K * N


@pytest.mark.parametrize(("text", "masked"), [(product_alone(), 1), (gradient_alone(), 2)])
def test_an_operand_with_rows_is_copied_for_each_group(text: str, masked: int) -> None:
    made = [
        op.results[0].type
        for op in rewritten(operations(text), OPENED_GROUPS)
        if op.kind == "select"
    ]
    sizes = [prod(kind.shape) for kind in made if isinstance(kind, TensorType)]
    assert sizes == [GROUPS * ROWS * K, GROUPS * ROWS * N][:masked]


def test_the_most_groups_are_counted() -> None:
    program = load_source(product_alone().encode(), name="a.mlir")
    (note,) = expanded(program, has_grouped_products=False).assumptions
    assert f"up to {GROUPS} times" in note
