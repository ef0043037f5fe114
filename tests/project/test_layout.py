"""The layout that docs/architecture.md describes: public faces, tests that mirror the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path("src/hespas")
FOLDERS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def imported_names(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield folder, module and name of each import of another top-level folder of hespas."""
    own = file.relative_to(SOURCE).parts[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("hespas."):
            continue
        _, folder, *module = (node.module or "").split(".")
        if folder not in FOLDERS or folder == own:
            continue
        for alias in node.names:
            inner = SOURCE.joinpath(folder, *module, alias.name)
            if inner.with_suffix(".py").exists() or inner.is_dir():
                yield folder, ".".join([*module, alias.name]), ""
            else:
                yield folder, ".".join(module), alias.name


IMPORTS = [(file, *names) for file in SOURCE.rglob("*.py") for names in imported_names(file)]


def declared(folder: str) -> dict[str, tuple[str, ...]]:
    return import_module(f"hespas.{folder}").PUBLIC


@pytest.mark.parametrize("folder", FOLDERS)
def test_other_folders_import_only_the_public_face(folder: str) -> None:
    public = declared(folder)
    private = sorted(
        f"{file}: hespas.{folder}.{module}.{name}"
        for file, where, module, name in IMPORTS
        if where == folder and (module not in public or (name and name not in public[module]))
    )
    assert not private


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_public_face_exists(folder: str) -> None:
    for module, names in declared(folder).items():
        tree = ast.parse(source_of(folder, module).read_text(encoding="utf-8"))
        missing = set(names) - set(defined(tree))
        assert not missing, f"hespas.{folder}.{module} lacks {missing}"


def source_of(folder: str, module: str) -> Path:
    path = SOURCE / folder / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[target]):
                yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name for alias in names)
            case _:
                pass


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_says_what_it_is_for(folder: str) -> None:
    text = import_module(f"hespas.{folder}").__doc__ or ""
    assert len(text.split()) >= 25, "a paragraph: what goes in, what comes out"


TESTS = sorted(Path("tests/unit").rglob("test_*.py"))


@pytest.mark.parametrize("test", TESTS, ids=str)
def test_unit_tests_mirror_the_source(test: Path) -> None:
    """A test of ``a/b.py`` is ``a/test_b.py`` or ``a/test_b_MORE.py``; ``a`` may be a ``b``."""
    relative = test.relative_to("tests/unit")
    name = relative.stem.removeprefix("test_")
    folder = SOURCE / relative.parent
    inside = {path.stem for path in folder.glob("*") if path.is_dir() or path.suffix == ".py"}
    subjects = inside | {folder.name}
    is_part = folder.with_suffix(".py").exists()
    assert is_part or any(name == each or name.startswith(f"{each}_") for each in subjects)
