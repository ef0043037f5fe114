"""Run the examples in the README, in docs/ and in docstrings as tests; settings of Hypothesis."""

from __future__ import annotations

from collections.abc import Generator
from doctest import ELLIPSIS

import pytest
from hypothesis import HealthCheck, settings
from sybil import Sybil
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown import PythonCodeBlockParser

from base_install import base_install
from hespas.base.process import stay

# Nothing timed decides: machines are shared. The same examples are drawn every time.
settings.register_profile(
    "hespas",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("hespas")

_JAX_STAYS = ("lower", "models", "prediction", "report", "study")
"""Folders of tests/unit that export much: JAX is started once for all of their tests."""

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


@pytest.fixture(autouse=True)
def _jax_stays(request: pytest.FixtureRequest) -> Generator[None]:
    """Export and partition in this process, as workers of studies do, where tests do much of it.

    Tests marked ``starts_jax`` start a process for each, as commands do.
    """
    parts = request.path.relative_to(request.config.rootpath).parts
    stays = parts[:2] == ("tests", "unit") and parts[2] in _JAX_STAYS
    if not stays or request.node.get_closest_marker("starts_jax") is not None:
        yield
        return
    stay(stays=True)
    yield
    stay(stays=False)
