"""Run the examples in the README, in docs/ and in docstrings as tests; settings of Hypothesis."""

from __future__ import annotations

import os
from doctest import ELLIPSIS

import pytest
from hypothesis import HealthCheck, settings
from sybil import Sybil
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown import PythonCodeBlockParser

# The module of compilations comes first: it has its own name of what is replaced below.
from hespas.compile import job as _job  # noqa: F401
from hespas.compile import packages
from hespas.compile.targets import GpuTarget, Target
from hespas.errors import ExtraMissingError

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


@pytest.fixture(autouse=True)
def _without_compilers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict as where no compiler is installed, so that tests say the same in both places.

    Compiling where it is asked for stays as it is. Tests marked ``finds_compilers`` see what is
    installed.
    """
    if request.node.get_closest_marker("finds_compilers") is None:
        monkeypatch.setattr(packages, "compiler_versions", _not_installed)


def _not_installed(target: Target) -> dict[str, str]:
    extra = "gpu" if isinstance(target, GpuTarget) else "tpu"
    raise ExtraMissingError(f"compiling for {target.name}", extra=extra)
