"""The layout that docs/architecture.md describes: folders with a purpose, tests that mirror it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path("src/hespas")
FOLDERS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_says_what_it_is_for(folder: str) -> None:
    text = import_module(f"hespas.{folder}").__doc__ or ""
    assert len(text.split()) >= 25, "a paragraph: what goes in, what comes out"


TESTS = sorted(Path("tests/unit").rglob("test_*.py"))


@pytest.mark.parametrize("test", TESTS, ids=str)
def test_unit_tests_mirror_the_source(test: Path) -> None:
    """A test of ``a/b.py`` is ``a/test_b.py`` or ``a/test_b_MORE.py``; ``a`` may be a ``b``."""
    relative = test.relative_to("tests/unit")
    name = relative.stem.removeprefix("test_")
    folder = SOURCE / relative.parent
    inside = {path.stem for path in folder.glob("*") if path.is_dir() or path.suffix == ".py"}
    subjects = inside | {folder.name}
    is_part = folder.with_suffix(".py").exists()
    assert is_part or any(name == each or name.startswith(f"{each}_") for each in subjects)
