"""Versions of installed packages, held against ``importlib.metadata``."""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from hespas.base.version import installed_version


def test_the_version_of_each_installed_package() -> None:
    first: dict[str, str] = {}
    for each in distributions():
        first.setdefault(each.name, each.version)
    assert len(first) > 20
    assert {name: installed_version(name) for name in first} == first


def test_the_first_on_the_path_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Some.Package-1.5.dist-info").mkdir()
    (tmp_path / "some_package_more-2.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", ["/nowhere", str(tmp_path), *sys.path])
    assert installed_version("some-package") == "1.5"


def test_one_that_is_not_installed() -> None:
    with pytest.raises(ModuleNotFoundError):
        installed_version("no-such-package")
