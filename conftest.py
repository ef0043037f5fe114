"""Run the examples in the README, in docs/ and in docstrings as tests."""

from __future__ import annotations

from doctest import ELLIPSIS

from sybil import Sybil
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown import PythonCodeBlockParser

pages = Sybil(
    parsers=[PythonCodeBlockParser(doctest_optionflags=ELLIPSIS)],
    patterns=["README.md", "docs/*.md", "docs/decisions/*.md"],
)
docstrings = Sybil(
    parsers=[DocTestParser(optionflags=ELLIPSIS)],
    path="src",
    patterns=["*.py"],
)

pytest_collect_file = (pages + docstrings).pytest()
