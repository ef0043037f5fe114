"""What a study's entries and output directories know a workload by."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.prediction.workload import workload_digest
from hespas.sources.source import DumpSource, FunctionSource


def test_a_changed_function_is_another_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = FunctionSource(name="mine:step", devices=1)
    Path("mine.py").write_text("import part")
    Path("part.py").write_text("WIDTH = 1")
    first = workload_digest(source)
    assert workload_digest(FunctionSource(name="mine:step", devices=2)) != first
    Path("part.py").write_text("WIDTH = 2")
    assert workload_digest(source) != first


def test_a_changed_dump_is_another_workload(tmp_path: Path) -> None:
    (tmp_path / "module.txt").write_text("one")
    source = DumpSource(path=tmp_path)
    first = workload_digest(source)
    (tmp_path / "module.txt").write_text("two")
    assert workload_digest(source) != first
