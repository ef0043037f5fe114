from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from hespas.report.page.kernels import Block, icicle_chart, step_blocks
from step_reports import step_report


def test_a_block_holds_what_is_inside_of_it() -> None:
    def check(block: Block) -> None:
        inside = sum(each.time_s for each in block.inside.values())
        assert inside <= block.time_s * (1 + 1e-9)
        for each in block.inside.values():
            check(each)

    check(step_blocks(step_report()))


def test_the_blocks_add_up_to_the_step() -> None:
    report = step_report()
    step = step_blocks(report)
    assert step.time_s == pytest.approx(report.step_time_s, rel=1e-7)
    assert {"forward", "backward", "exposed communication"} <= set(step.inside)


def test_a_phase_is_as_long_as_the_report_says() -> None:
    report = step_report()
    blocks = step_blocks(report).inside
    for row in report.phases:
        if row.time_s:
            assert blocks[row.phase].time_s == pytest.approx(row.time_s)


def test_blocks_of_one_level_do_not_overlap() -> None:
    rows: list[dict[str, Any]] = list(icicle_chart(step_report()).specification["data"]["values"])
    for level in {row["level"] for row in rows}:
        placed = sorted((row["x0"], row["x1"]) for row in rows if row["level"] == level)
        assert all(right[0] >= left[1] * (1 - 1e-5) for left, right in pairwise(placed))
