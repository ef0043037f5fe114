"""The repository is used by itself: nothing in it needs a folder beside it."""

from __future__ import annotations

import re
from pathlib import Path

from workloads import ROOT

_MAY_LOOK_BESIDE = ROOT / "tests" / "workloads" / "__init__.py"
_PARENTS = re.compile(r"\.parents\[(\d+)\]")
_BESIDE = re.compile(r"(ROOT|REPOSITORY)\.parent\b|[\"/]\.\./\w+/data\b")


def _looks_beside(file: Path) -> bool:
    text = file.read_text(encoding="utf-8")
    to_root = len(file.relative_to(ROOT).parts) - 1
    above = any(int(number) > to_root for number in _PARENTS.findall(text))
    return above or _BESIDE.search(text) is not None


def test_one_file_alone_looks_beside_the_repository() -> None:
    folders = ("src", "tests", "validation", "benchmarks")
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    assert [file for file in files if _looks_beside(file)] == [_MAY_LOOK_BESIDE]
