"""Words that were private to this project appear neither in the pages nor in the source.

CONTRIBUTING.md says how to write, docs/glossary.md has the terms to use. Ordinary English with its
ordinary meaning (place, room, way, kind) is not forbidden.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
PAGES = (*(ROOT / name for name in ROOT_PAGES), *sorted((ROOT / "docs").rglob("*.md")))
SOURCES = sorted((ROOT / "src").rglob("*.py"))

OLD_NAMES = ("mend", "mends", "fluid", "meeting", "wished", "dearest", "wiring", "wirings", "skew")
"""Old names of things that have a term of the field now: hint, flow, matching, routes, ..."""

RIDDLES = (*OLD_NAMES, "mended", "told", "tells", "arrangement", "colours", "thereof")
"""Not to be found in pages: something reports, overrides, is distinguished, is laid out."""

CONTRACTIONS = ("doesn't", "isn't", "don't", "can't", "aren't", "won't", "that's", "it's")

IN_SOURCE = (
    *("arrangement", "colours", "course", "dearest", "fluid", "seat", "skew"),
    *("meeting", "mend", "wiring", "wirings", "wished"),
)
"""Old names that are gone from the source, in names, docstrings and comments alike."""


RIDDLES_OF_VARIABLES = frozenset({"asked", "at", "held", "made", "rest", "taken", "these", "those"})
"""A variable is a noun of its content: operand, offset, kernel, path."""


def lines_with(words: tuple[str, ...], text: str) -> list[str]:
    """Return the lines that hold one of the words, as a word or as a part of a name."""
    pattern = re.compile(rf"(?<![A-Za-z])({'|'.join(words)})(?![a-z'])", re.IGNORECASE)
    return [line.strip() for line in text.splitlines() if pattern.search(line)]


def prose(text: str) -> str:
    """Return a page without blocks of code and without code in its lines."""
    return re.sub(
        r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_is_written_in_plain_words(page: Path) -> None:
    assert not lines_with((*RIDDLES, *CONTRACTIONS), prose(page.read_text()))


@pytest.mark.parametrize("word", IN_SOURCE)
def test_an_old_name_is_gone_from_the_source(word: str) -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in SOURCES
        if (lines := lines_with((word,), path.read_text()))
    }
    assert not found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_variables_are_nouns_of_their_content(path: Path) -> None:
    stored = {
        node.id
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    assert stored.isdisjoint(RIDDLES_OF_VARIABLES)


def test_names_that_hold_a_word_are_found() -> None:
    text = "told_size = 1\nuntold = 2\ntolder = 3\n"
    assert lines_with(("told",), text) == ["told_size = 1"]
    assert lines_with(("untold",), text) == ["untold = 2"]
