"""What docs/security.md promises, as far as the source can show it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, cast

import pytest

SOURCES = sorted(Path("src/hespas").rglob("*.py"))
LOCK = Path("requirements/run.lock").read_text()
NOTICE = Path("NOTICE").read_text()
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {
    ("os", "system"), ("os", "popen"), ("yaml", "load"), ("yaml", "unsafe_load"),
    ("yaml", "full_load"), ("numpy", "load"), ("np", "load"),
}  # fmt: skip
ALLOWED = re.compile(r"MIT|BSD|Apache", re.IGNORECASE)


def forbidden(source: str) -> Iterator[str]:
    """Yield what in a source would run what is read."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names if each.name.split(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in MODULES:
                yield module
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield f"{name}()"
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if (
                name,
                attribute,
            ) in ATTRIBUTES:
                yield f"{name}.{attribute}"
            case ast.keyword(arg="shell", value=ast.Constant(value=True)):
                yield "shell=True"
            case _:
                pass


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_nothing_that_is_read_runs(path: Path) -> None:
    assert not list(forbidden(path.read_text(encoding="utf-8")))


BAD = [
    ("import pickle", "pickle"),
    ("from pickle import loads", "pickle"),
    ("eval('1')", "eval()"),
    ("import os\nos.system('ls')", "os.system"),
    ("import yaml\nyaml.load(f)", "yaml.load"),
    ("import subprocess\nsubprocess.run('ls', shell=True)", "shell=True"),
]


@pytest.mark.parametrize(("source", "found"), BAD)
def test_the_search_finds_what_it_looks_for(source: str, found: str) -> None:
    assert list(forbidden(source)) == [found]


PACKAGES = sorted(set(re.findall(r"^([A-Za-z0-9_.-]+)==", LOCK, re.MULTILINE)))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_dependency_is_listed_with_a_licence_that_allows_use(package: str) -> None:
    listed = [line for line in NOTICE.splitlines() if re.search(rf"\b{package}\b", line)]
    assert any(ALLOWED.search(line) for line in listed)
    try:
        said = cast("Any", metadata(package))
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    named: list[str] = said.get_all("Classifier") or []
    classifiers = [each for each in named if "License" in each]
    texts: list[str] = [said.get("License-Expression") or "", said.get("License") or ""]
    texts += classifiers
    assert any(ALLOWED.search(text) for text in texts)
    assert not any("GPL" in text.split("\n")[0] for text in texts)


def test_what_the_package_contains_is_listed() -> None:
    for licence in Path("src/hespas/report/page/assets").glob("LICENSE.*"):
        assert licence.suffix.removeprefix(".").casefold() in NOTICE.casefold()
