"""Run the examples in the README, in docs/ and in docstrings as tests; settings of Hypothesis."""

from __future__ import annotations

import os
from collections.abc import Generator
from doctest import ELLIPSIS

import pytest
from hypothesis import HealthCheck, settings
from sybil import Sybil
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown import PythonCodeBlockParser

from base_install import base_install

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
    fixtures=["_without_compilers"],
)
docstrings = Sybil(
    parsers=[DocTestParser(optionflags=ELLIPSIS)],
    path="src",
    patterns=["*.py"],
    fixtures=["_without_compilers"],
)

pytest_collect_file = (pages + docstrings).pytest()


@pytest.fixture(autouse=True)
def _without_compilers(request: pytest.FixtureRequest) -> Generator[None]:
    """Predict as where no compiler is installed, so that tests say the same in both places.

    Tests marked ``finds_compilers`` see what is installed.
    """
    if request.node.get_closest_marker("finds_compilers") is not None:
        yield
        return
    with base_install():
        yield
