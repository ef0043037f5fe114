"""One HTML file: headings, cards, tables and charts, with all that a browser needs inside.

A page asks for nothing from a network: its content security policy refuses it. Charts are
Vega-Lite specifications, drawn by the libraries in ``assets``; every name is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from typing import Any, assert_never

from hespas.base.version import __version__
from hespas.errors import OutputError

Specification = Mapping[str, Any]
"""A Vega-Lite specification: https://vega.github.io/schema/vega-lite/v6.json."""
_LIBRARIES = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart with its title, and what it shows in a sentence for those who can't see it."""

    title: str
    description: str
    specification: Specification


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a table shows, and what it is sorted by where that is something else.

    Links of charts lead to an ``anchor``.
    """

    text: str
    sort_by: float | str | None = None
    anchor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under the names of columns; those in ``numbers`` stand to the right.

    A table with ``has_filter`` has a field that hides rows without the text in it.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: frozenset[str] = frozenset()
    has_filter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """Figures that stand out: each a name, a value and a note."""

    figures: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Sentences as a list; ``is_warning`` ones are to be seen first."""

    texts: tuple[str, ...]
    is_warning: bool = False


Part = Chart | Table | Cards | Notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, a sentence under it, and parts; one without parts is left out."""

    title: str
    parts: tuple[Part, ...]
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A title, a line under it, and sections."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]


def page_html(page: Page) -> str:
    """Return the page as one HTML file.

    Raises `OutputError` where a figure in a chart is no finite number.

    >>> text = page_html(Page(title="<b>", subtitle="", sections=()))
    >>> "&lt;b&gt;" in text, "<b>" in text
    (True, False)
    """
    sections = [each for each in page.sections if each.parts]
    charts: dict[str, Specification] = {}
    body = "\n".join(
        _section(each, f"section-{number}", charts) for number, each in enumerate(sections, start=1)
    )
    contents = "".join(
        f'<li><a href="#section-{number}">{escape(each.title)}</a></li>'
        for number, each in enumerate(sections, start=1)
    )
    libraries = "".join(f"<script>{_library(name)}</script>\n" for name in _LIBRARIES)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="hespas {escape(__version__)}">
<title>{escape(page.title)}</title>
<style>{_asset("page.css")}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the figures</a>
<header>
<div><h1>{escape(page.title)}</h1><p>{escape(page.subtitle)}</p></div>
<button id="theme" type="button" aria-pressed="false">Dark</button>
</header>
<nav aria-label="Sections"><ol>{contents}</ol></nav>
<main id="main">
{body}
</main>
<footer>Made by hespas {escape(__version__)}. Charts are drawn by Vega, Vega-Lite and Vega-Embed
(BSD-3-Clause), which are part of this file.</footer>
<script type="application/json" id="charts">{_json(charts)}</script>
{libraries}<script>{_asset("page.js")}</script>
</body>
</html>
"""


def _section(section: Section, anchor: str, charts: dict[str, Specification]) -> str:
    parts = "\n".join(_part(each, charts) for each in section.parts)
    text = f"<p>{escape(section.text)}</p>\n" if section.text else ""
    title = escape(section.title)
    return (
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">\n'
        f'<h2 id="{anchor}-title">{title}</h2>\n{text}{parts}\n</section>'
    )


def _part(part: Part, charts: dict[str, Specification]) -> str:
    match part:
        case Chart():
            return _chart(part, charts)
        case Table():
            return _table(part)
        case Cards():
            return "".join(['<dl class="cards">', *map(_card, part.figures), "</dl>"])
        case Notes():
            items = "".join(f"<li>{escape(text)}</li>" for text in part.texts)
            kind = ' class="warnings" role="alert"' if part.is_warning else ""
            return f"<ul{kind}>{items}</ul>"
        case _:
            assert_never(part)


def _chart(chart: Chart, charts: dict[str, Specification]) -> str:
    name = f"chart-{len(charts) + 1}"
    charts[name] = chart.specification
    again = (
        f'<button type="button" class="whole" data-chart="{name}" hidden>Show all of it</button>'
        if "usermeta" in chart.specification
        else ""
    )
    return (
        f'<figure><figcaption id="{name}-title">{escape(chart.title)}</figcaption>{again}'
        f'<div class="chart" id="{name}" role="img" aria-labelledby="{name}-title" '
        f'aria-describedby="{name}-text"></div>'
        f'<p class="description" id="{name}-text">{escape(chart.description)}</p></figure>'
    )


def _card(figure: tuple[str, str, str]) -> str:
    name, value, note = map(escape, figure)
    return f"<div><dt>{name}</dt><dd><strong>{value}</strong> <span>{note}</span></dd></div>"


def _table(table: Table) -> str:
    heads = "".join(
        f'<th scope="col"{_right(name, table)}><button type="button">{escape(name)}</button></th>'
        for name in table.columns
    )
    rows = "\n".join(_row(row, table) for row in table.rows)
    field = (
        '<label class="filter">Filter <input type="search" autocomplete="off"></label>'
        '<output aria-live="polite"></output>'
        if table.has_filter
        else ""
    )
    return (
        f'<div class="table">{field}<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(table.caption)}"><table><caption>{escape(table.caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div></div>"
    )


def _row(row: Sequence[Cell], table: Table) -> str:
    cells = zip(table.columns, row, strict=True)
    return "".join(["<tr>", *(_cell(cell, _right(name, table)) for name, cell in cells), "</tr>"])


def _cell(cell: Cell, attributes: str) -> str:
    by = "" if cell.sort_by is None else f' data-sort="{escape(str(cell.sort_by))}"'
    place = f' id="{escape(cell.anchor)}" tabindex="-1"' if cell.anchor else ""
    return f"<td{attributes}{by}{place}>{escape(cell.text)}</td>"


def _right(name: str, table: Table) -> str:
    return ' class="number"' if name in table.numbers else ""


def _json(value: object) -> str:
    """Return JSON that no name can end: a script element ends at ``</script``."""
    try:
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        message = "a figure of the page is no finite number: a result is nearly 0, or huge"
        raise OutputError(message) from error
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _asset(name: str) -> str:
    assets = resources.files("hespas.report.page") / "assets"
    return assets.joinpath(name).read_text(encoding="utf-8")


def _library(name: str) -> str:
    """Return a library without the comment that names a file for debuggers to fetch."""
    lines = _asset(name).splitlines()
    return "\n".join(line for line in lines if not line.startswith("//# sourceMappingURL"))


def text_cells(texts: Iterable[str]) -> Iterator[Cell]:
    """Yield cells that are sorted as they read."""
    for text in texts:
        yield Cell(text=text)
