from __future__ import annotations

import re
from pathlib import Path

import hespas
from reference import PAGE, table


def test_the_page_holds_what_the_script_finds() -> None:
    assert table() in PAGE.read_text()


def test_the_linear_split_finds_as_many_regions_as_published() -> None:
    graph = hespas.stages.split(hespas.stages.load("examples/llama3_100m_fsdp4.mlir"))
    assert len(graph.compute_regions) == 374
    assert len(graph.collective_regions) == 372


def test_every_test_that_the_page_names_exists() -> None:
    written = "\n".join(file.read_text() for file in Path("tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", PAGE.read_text())
    assert len(named) > 30
    assert [name for name in named if f"def {name}(" not in written] == []
