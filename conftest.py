"""Run the examples in the README, in docs/ and in docstrings as tests; settings of Hypothesis."""

from __future__ import annotations

import os
from doctest import ELLIPSIS

from hypothesis import HealthCheck, settings
from sybil import Sybil
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown import PythonCodeBlockParser

# Nothing timed decides: machines are shared. CI draws the same examples every time.
settings.register_profile(
    "hespas",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("hespas")

pages = Sybil(
    parsers=[PythonCodeBlockParser(doctest_optionflags=ELLIPSIS)],
    patterns=["README.md", "docs/**/*.md"],
)
docstrings = Sybil(
    parsers=[DocTestParser(optionflags=ELLIPSIS)],
    path="src",
    patterns=["*.py"],
)

pytest_collect_file = (pages + docstrings).pytest()
