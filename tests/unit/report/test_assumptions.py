from __future__ import annotations

import pytest

import hespas
from hespas.report.assumptions import group_text, grouped_assumptions

ACCESSES = "accesses go where data says, and are taken to be scattered"
SIZES = "products of bf16 outside the measured sizes (in {}) take as long as the smallest"


def test_kernels_of_which_the_same_is_assumed_are_one_line() -> None:
    texts = [f"kernel loop_{n}: {n + 1} {ACCESSES}" for n in range(30)]
    [group] = grouped_assumptions(texts, dict.fromkeys(texts, 0.01), 1.0)
    assert group.count == 30
    assert group.share == pytest.approx(0.3)
    assert group.examples == ["loop_0", "loop_1", "loop_2"]
    assert (
        group_text(group)
        == f"30 kernels (loop_0, loop_1, loop_2, ...): {ACCESSES} (30 % of the computation)"
    )


def test_sizes_of_which_the_same_is_assumed_are_one_line() -> None:
    [group] = grouped_assumptions([SIZES.format("k, n"), SIZES.format("m")])
    assert group.text == SIZES.format("k, m, n")
    assert group.share is None


def test_what_decides_most_stands_first_behind_what_is_about_everything() -> None:
    texts = ["small", "everything", "large", "all"]
    groups = grouped_assumptions(texts, {"small": 1.0, "large": 5.0}, 10.0)
    assert [group.text for group in groups] == ["everything", "all", "large", "small"]


def test_an_assumption_alone_stays_as_it_is() -> None:
    text = f"kernel loop_add: 2 {ACCESSES}"
    [group] = grouped_assumptions([text, text], {text: 1e-9}, 1.0)
    assert (group.text, group.count) == (text, 1)
    assert group_text(group).endswith("(less than 1 % of the computation)")


def test_the_share_is_that_of_the_operations_it_was_made_for() -> None:
    prediction = hespas.predict(
        "examples/attention_block.mlir", "H100_80GB", "H100_80GB_4GPU", method="measured"
    )
    rows = {str(row["text"]): row for row in prediction.rows("assumptions")}
    products = next(row for text, row in rows.items() if text.startswith("products of bf16 from"))
    dots = prediction.estimates.total.per_op["stablehlo.dot_general"].time_s
    assert products["share"] == pytest.approx(dots / prediction.compute_s)
