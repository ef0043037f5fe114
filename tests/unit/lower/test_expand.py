from __future__ import annotations

from expert_programs import product_alone
from hespas.frontend.load import load_source
from hespas.lower.expand import expanded

PROGRAM = load_source(product_alone().encode(), name="experts.mlir")


def kinds(*, has_grouped_products: bool) -> list[str]:
    program = expanded(PROGRAM, has_grouped_products=has_grouped_products)
    return [op.kind for op in program.main.body.operations]


def test_a_compiler_without_grouped_products_opens_them_and_says_so() -> None:
    assert "ragged_dot" not in kinds(has_grouped_products=False)
    (noted,) = expanded(PROGRAM, has_grouped_products=False).assumptions
    assert "up to 4 times" in noted


def test_a_library_keeps_grouped_products() -> None:
    assert "ragged_dot" in kinds(has_grouped_products=True)
    assert expanded(PROGRAM, has_grouped_products=True).assumptions == PROGRAM.assumptions
