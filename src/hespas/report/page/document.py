"""Build one HTML file of headings, cards, tables and charts.

A page asks for nothing from a network: its content security policy refuses it. Charts are Vega-Lite
specifications, drawn by the libraries in ``assets``; every name is escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from html import escape
from importlib import import_module, resources
from pathlib import Path
from types import ModuleType
from typing import Any, assert_never, cast

from hespas.base.files import write_file
from hespas.base.frozen import frozen
from hespas.base.units import format_quantity, format_time
from hespas.base.version import __version__
from hespas.errors import ExtraMissingError, OutputError
from hespas.report.page.vega import WIDTH, Chart, Specification

_LIBRARIES = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


@frozen
class Cell:
    """A cell's text, with its sort key and link target."""

    text: str
    sort_by: float | str | None = None
    anchor: str = ""


def time_cell(time_s: float) -> Cell:
    """Return a time with its unit, sorted by seconds."""
    return Cell(text=format_time(time_s), sort_by=time_s)


def share_cell(share: float | None) -> Cell:
    """Return a share in per cent, empty if unknown."""
    if share is None:
        return Cell(text="", sort_by="")
    return Cell(text=f"{100 * share:.1f} %", sort_by=share)


def quantity_cell(value: float | None, unit: str, unknown: str = "not known") -> Cell:
    """Return a quantity with its unit, or ``unknown``."""
    if value is None:
        return Cell(text=unknown, sort_by="")
    return Cell(text=format_quantity(value, unit), sort_by=value)


@frozen
class Table:
    """Rows of cells; columns in ``numbers`` are right-aligned."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell | str]]
    numbers: Collection[str] = ()
    has_filter: bool = False


@frozen
class Cards:
    """Figures that stand out: names, values and notes."""

    figures: tuple[tuple[str, str, str], ...]


@frozen
class Notes:
    """Sentences as a list; those with ``is_warning`` stand out."""

    texts: tuple[str, ...]
    is_warning: bool = False


Part = Chart | Table | Cards | Notes


@frozen
class Section:
    """A heading, a sentence and parts; hidden without parts."""

    title: str
    parts: tuple[Part, ...]
    text: str = ""


@frozen
class Page:
    """A title, a line under it, and sections."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]


def page_html(page: Page) -> str:
    """Return the page as one HTML file.

    Raises `OutputError` if a figure in a chart is no finite number.

    >>> text = page_html(Page(title="<b>", subtitle="", sections=()))
    >>> "&lt;b&gt;" in text, "<b>" in text
    (True, False)
    """
    sections = [section for section in page.sections if section.parts]
    charts: dict[str, Specification] = {}
    body = "\n".join(
        _section(section, f"section-{number}", charts)
        for number, section in enumerate(sections, start=1)
    )
    contents = "".join(
        f'<li><a href="#section-{number}">{escape(section.title)}</a></li>'
        for number, section in enumerate(sections, start=1)
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
    parts = "\n".join(_part(part, charts) for part in section.parts)
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
            figures = (map(escape, figure) for figure in part.figures)
            cards = (
                f"<div><dt>{name}</dt><dd><strong>{value}</strong> <span>{note}</span></dd></div>"
                for name, value, note in figures
            )
            return f'<dl class="cards">{"".join(cards)}</dl>'
        case Notes():
            items = "".join(f"<li>{escape(text)}</li>" for text in part.texts)
            kind = ' class="warnings" role="alert"' if part.is_warning else ""
            return f"<ul{kind}>{items}</ul>"
        case _:
            assert_never(part)


def _chart(chart: Chart, charts: dict[str, Specification]) -> str:
    name = f"chart-{len(charts) + 1}"
    charts[name] = chart.specification
    reset_button = (
        f'<button type="button" class="whole" data-chart="{name}" hidden>Show all of it</button>'
        if "usermeta" in chart.specification
        else ""
    )
    return (
        f'<figure><figcaption id="{name}-title">{escape(chart.title)}</figcaption>{reset_button}'
        f'<div class="chart" id="{name}" role="img" aria-labelledby="{name}-title" '
        f'aria-describedby="{name}-text"></div>'
        f'<p class="description" id="{name}-text">{escape(chart.description)}</p></figure>'
    )


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
        f'aria-label="{escape(table.caption)}"><table>'
        f"<caption><span>{escape(table.caption)}</span></caption>"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div></div>"
    )


def _row(row: Sequence[Cell | str], table: Table) -> str:
    cells: list[str] = []
    for name, value in zip(table.columns, row, strict=True):
        cell = Cell(text=value) if isinstance(value, str) else value
        sort_attribute = "" if cell.sort_by is None else f' data-sort="{escape(str(cell.sort_by))}"'
        place = f' id="{escape(cell.anchor)}" tabindex="-1"' if cell.anchor else ""
        cells.append(f"<td{_right(name, table)}{sort_attribute}{place}>{escape(cell.text)}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _right(name: str, table: Table) -> str:
    return ' class="number"' if name in table.numbers else ""


def _json(value: object) -> str:
    """Return JSON for a script element, which ``</script`` ends."""
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
    """Return a library without its source-map comment."""
    lines = _asset(name).splitlines()
    return "\n".join(line for line in lines if not line.startswith("//# sourceMappingURL"))


_SCALE = 2.0
_VEGA_LITE = "6.4"
_FONT = "sans-serif"
_CLIP = re.compile(r'((?:id="|url\(#)clip)(\d+)')


def _svg(module: ModuleType, specification: dict[str, Any]) -> bytes:
    picture = cast("str", module.vegalite_to_svg(specification, vl_version=_VEGA_LITE))
    numbers: dict[str, int] = {}
    # The renderer counts clip paths on from picture to picture.
    return _CLIP.sub(
        lambda match: f"{match[1]}{numbers.setdefault(match[2], len(numbers))}", picture
    ).encode()


def _png(module: ModuleType, specification: dict[str, Any]) -> bytes:
    picture = module.vegalite_to_png(specification, vl_version=_VEGA_LITE, scale=_SCALE)
    return cast("bytes", picture)


FORMATS: Mapping[str, Callable[[ModuleType, dict[str, Any]], bytes]] = {"svg": _svg, "png": _png}
"""The kinds of pictures, by the ending of their files."""


def renderer() -> ModuleType:
    """Return the renderer's module, else raise `ExtraMissingError`."""
    try:
        return import_module("vl_convert")
    except ImportError as error:
        raise ExtraMissingError("drawing charts as pictures", extra="images") from error


def write_charts(page: Page, directory: Path, kind: str) -> tuple[Path, ...]:
    """Write each chart of a page to a numbered file.

    ``kind`` is one of `FORMATS`. Returns the files. Raises `ExtraMissingError`, and `OutputError`
    for a file that can't be written.
    """
    module = renderer()
    charts = [
        part for section in page.sections for part in section.parts if isinstance(part, Chart)
    ]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"the directory cannot be made: {error.strerror}", location=str(directory)
        ) from None
    written: list[Path] = []
    for number, chart in enumerate(charts, start=1):
        path = directory / f"{number:02d}-{file_name(chart.title)}.{kind}"
        write_file(path, FORMATS[kind](module, _for_paper(chart)))
        written.append(path)
    return tuple(written)


def file_name(title: str) -> str:
    """Return a title's first words as a file name.

    >>> file_name("What bounds the step, in ms")
    'what-bounds-the-step'
    """
    words = re.findall(r"[a-z0-9]+", title.partition(",")[0].lower())
    return "-".join(words[:6])


def _for_paper(chart: Chart) -> dict[str, Any]:
    return {
        **chart.specification,
        "width": WIDTH,
        "autosize": {"type": "pad", "contains": "padding"},
        "title": {"text": chart.title, "anchor": "start"},
        "background": "white",
        "config": {"font": _FONT, "legend": {"orient": "bottom", "columns": 4}},
    }
