"""Draw which folder of src/hespas imports which, and list what each is for.

    python validation/architecture.py

It writes docs/images/architecture.svg and the table of docs/architecture.md. Layers are those of
``[tool.importlinter]`` in pyproject.toml, imports those of the source, purposes the first lines of
docstrings. In the picture a folder's row has a dot in the column of each folder that it imports:
all dots lie on one side.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "hespas"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
PAGE = ROOT / "docs" / "architecture.md"
_TABLE = re.compile(r"(?<=<!-- folders -->\n).*?(?=<!-- end -->)", re.DOTALL)
_CELL, _TOP, _LEFT = 18, 96, 104


def layers() -> list[str]:
    """Return the folders and modules of the package, those on top first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layered,) = (each for each in contracts["contracts"] if each.get("containers") == ["hespas"])
    rows: list[str] = layered["layers"]
    return [name.strip() for row in rows for name in row.split(":")]


def imported(layer: str) -> set[str]:
    """Return the layers that a layer imports, inside functions too."""
    files = (SOURCE / layer).rglob("*.py")
    module = SOURCE / f"{layer}.py"
    names = {
        name
        for file in (*files, *([module] if module.exists() else []))
        for node in ast.walk(ast.parse(file.read_text()))
        for name in _names(node)
    }
    return {name.split(".")[1] for name in names if name.startswith("hespas.")} - {layer}


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (each.name for each in names)
        case ast.ImportFrom(module=str(module), names=names):
            yield from (f"{module}.{each.name}" for each in names)
        case _:
            pass


def drawing(names: Sequence[str]) -> str:
    """Return the matrix of imports as SVG."""
    size = _CELL * len(names)
    width, height = _LEFT + size + 36, _TOP + size + 8
    font = 'font-family="sans-serif" font-size="12"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {font}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for row, name in enumerate(names):
        y, x = _TOP + _CELL * row, _LEFT + _CELL * row
        shade = "#f2f4fb" if row % 2 else "#ffffff"
        lines.append(f'<rect x="{_LEFT}" y="{y}" width="{size}" height="{_CELL}" fill="{shade}"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        turned = f"rotate(-60 {x + 12} {_TOP - 6})"
        lines.append(
            f'<text x="{x + 12}" y="{_TOP - 6}" transform="{turned}">{escape(name)}</text>'
        )
        lines.append(f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" fill="#c5cae9"/>')
        used = imported(name)
        lines += [
            f'<circle cx="{_LEFT + _CELL * column + 9}" cy="{y + 9}" r="4" fill="#3f51b5"/>'
            for column, other in enumerate(names)
            if other in used
        ]
    return "\n".join([*lines, "</svg>", ""])


def table(names: Sequence[str]) -> str:
    """Return a row for each layer: its name, and the first line of its docstring."""
    lines = ["| in `src/hespas/` | what it does |", "|---|---|"]
    for name in names:
        folder, module = SOURCE / name / "__init__.py", SOURCE / f"{name}.py"
        file = folder if folder.exists() else module
        purpose = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n\n")[0]
        shown = f"{name}/" if file == folder else f"{name}.py"
        lines.append(f"| `{shown}` | {' '.join(purpose.replace('``', '`').split())} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PICTURE.write_text(drawing(layers()))
    PAGE.write_text(_TABLE.sub(lambda _: table(layers()), PAGE.read_text()))
