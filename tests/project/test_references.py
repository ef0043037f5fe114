"""Files and modules that pages and docstrings name exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hespas"
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "evidence"]
"""Evidence cites files of other projects, too."""
FILES = [*PAGES, *sorted(PACKAGE.rglob("*.py"))]
ENTRY_POINT_GROUPS = {"hespas.engines", "hespas.estimators"}


@cache
def names_in(file: Path) -> frozenset[str]:
    """Return the names that a module defines or imports."""
    names = set[str]()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Import() | ast.ImportFrom():
                names.update(alias.asname or alias.name for alias in node.names)
            case _:
                pass
    return frozenset(names)


def is_there(dotted: str) -> bool:
    """Return whether a dotted name is a module, or a name in one."""
    place, words = PACKAGE, dotted.split(".")[1:]
    for position, word in enumerate(words):
        if (place / word).is_dir():
            place /= word
            continue
        is_module = (place / f"{word}.py").is_file()
        file = place / (f"{word}.py" if is_module else "__init__.py")
        rest = words[position + is_module :]
        return not rest or rest[0] in names_in(file)
    return True


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_what_is_named_exists(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    dotted = set(re.findall(r"`(hespas(?:\.\w+)+)`", text)) - ENTRY_POINT_GROUPS
    assert [name for name in sorted(dotted) if not is_there(name)] == []
    if file.suffix == ".md":
        rooms = "|".join(each.name for each in PACKAGE.iterdir() if each.is_dir())
        paths = re.findall(rf"`(?:src/hespas/)?((?:{rooms})/[\w/]+\.py)`", text)
        assert [path for path in paths if not (PACKAGE / path).exists()] == []
