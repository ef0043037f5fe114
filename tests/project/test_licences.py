"""What is installed with hespas, and under which licence: NOTICE names all of it."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_ALLOWED = re.compile(r"BSD-[23]-Clause|MIT|Apache-2\.0")
_LOCKED = re.compile(r"^([a-z0-9][a-z0-9-]*)==", re.MULTILINE)


def _locked() -> list[str]:
    return sorted(set(_LOCKED.findall((ROOT / "requirements" / "run.lock").read_text())))


def _named() -> dict[str, str]:
    """Return the licence of each package that NOTICE names as a dependency."""
    text = (ROOT / "NOTICE").read_text().partition("It depends on packages")[2]
    text = text.partition("Extras install")[0]
    rows = re.findall(r"^  ([a-z][a-z0-9, -]*?) +((?:BSD|MIT|Apache)\S*)$", text, re.MULTILINE)
    found: dict[str, str] = {}
    for names, licence in rows:
        found.update(dict.fromkeys(names.split(", "), licence))
    return found


def test_every_locked_package_is_named() -> None:
    assert sorted(_named()) == _locked()


@pytest.mark.parametrize("name", _locked())
def test_each_has_a_licence_that_is_allowed(name: str) -> None:
    assert _ALLOWED.fullmatch(_named()[name])


@pytest.mark.parametrize("name", _locked())
def test_what_is_named_is_what_the_package_says(name: str) -> None:
    said = metadata(name)
    keys = ("License-Expression", "License", "Classifier")
    texts = [text for key in keys for text in said.get_all(key) or []]
    family = _named()[name].partition("-")[0]
    assert any(family in text for text in texts)


def test_every_package_of_an_extra_is_named_with_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        (_name(package), extra)
        for extra, packages in project["optional-dependencies"].items()
        for package in packages
        if _name(package) not in _locked()
    }
    text = (ROOT / "NOTICE").read_text().partition("Extras install")[2]
    assert set(re.findall(r"^  (\S+) +hespas\[(\w+)\] +\S", text, re.MULTILINE)) == extras


def _name(requirement: str) -> str:
    return re.split(r"[^a-z0-9-]", requirement)[0]
