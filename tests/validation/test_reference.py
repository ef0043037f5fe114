from __future__ import annotations

import hespas
from reference import PAGE, table


def test_the_page_holds_what_the_script_finds() -> None:
    assert table() in PAGE.read_text()


def test_the_linear_split_finds_as_many_regions_as_published() -> None:
    graph = hespas.stages.split(hespas.stages.load("examples/llama3_100m_fsdp4.mlir"))
    assert len(graph.compute_regions) == 374
    assert len(graph.collective_regions) == 372
