from __future__ import annotations

from typing import Any

from hespas.prediction.figures.schema import KernelTimeRow
from hespas.report.page.kernels import kernel_sections
from hespas.report.page.vega import Chart
from step_reports import step_report


def kernel(**changed: Any) -> KernelTimeRow:
    given: dict[str, Any] = {
        "name": "k", "kind": "elementwise fusion", "path": "", "count": 2, "time_s": 1e-3,
        "flops": 1e9, "bytes": 1e9, "limit": "memory",
    }  # fmt: skip
    return KernelTimeRow(**(given | changed))


def drawn(kernels: list[KernelTimeRow]) -> dict[str, Any]:
    (section,) = kernel_sections(step_report(kernels=kernels))
    charts = [part for part in section.parts if isinstance(part, Chart)]
    return {each.title: each.specification["data"]["values"] for each in charts}


def test_a_kernel_that_only_moves_data_is_not_on_the_roofline() -> None:
    charts = drawn([kernel(name="sums"), kernel(name="moves", flops=0.0)])
    assert [row["name"] for row in charts["Kernels on the roofline"]] == ["sums"]
    assert len(charts["Memory bandwidth that kernels reach"]) == 2


def test_rates_are_those_of_all_launches() -> None:
    (row,) = drawn([kernel()])["Kernels on the roofline"]
    assert (row["intensity"], row["flops"]) == (1.0, 1e12)


def test_the_others_are_in_the_table_only() -> None:
    charts = drawn([kernel(), kernel(name="7 others", kind="others")])
    assert all(len(rows) == 1 for rows in charts.values())


def test_without_kernels_there_is_no_section() -> None:
    assert not list(kernel_sections(step_report(kernels=[])))
