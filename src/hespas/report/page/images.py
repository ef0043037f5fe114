"""The charts of a page as pictures, for papers and slides.

Rendered by vl-convert (BSD-3-Clause), which needs no browser: the extra ``images``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from hespas.base.files import write_file
from hespas.errors import ExtraMissingError, OutputError
from hespas.report.page.document import Chart, Page

WIDTH = 720
"""Of a picture without its axes, in pixels; on a page a chart is as wide as the window."""
_SCALE = 2.0
_VEGA_LITE = "6.4"
_FONT = "sans-serif"
_CLIP = re.compile(r'((?:id="|url\(#)clip)(\d+)')


def _svg(module: ModuleType, specification: dict[str, Any]) -> bytes:
    made = cast("str", module.vegalite_to_svg(specification, vl_version=_VEGA_LITE))
    numbers: dict[str, int] = {}
    # They are counted on from picture to picture.
    return _CLIP.sub(
        lambda match: f"{match[1]}{numbers.setdefault(match[2], len(numbers))}", made
    ).encode()


def _png(module: ModuleType, specification: dict[str, Any]) -> bytes:
    made = module.vegalite_to_png(specification, vl_version=_VEGA_LITE, scale=_SCALE)
    return cast("bytes", made)


FORMATS: Mapping[str, Callable[[ModuleType, dict[str, Any]], bytes]] = {"svg": _svg, "png": _png}
"""The kinds of pictures, by the ending of their files."""


def renderer() -> ModuleType:
    """Return what renders; `ExtraMissingError` where it is not installed."""
    try:
        return import_module("vl_convert")
    except ImportError as error:
        raise ExtraMissingError("drawing charts as pictures", extra="images") from error


def write_charts(page: Page, directory: Path, kind: str) -> tuple[Path, ...]:
    """Write each chart of a page to a file of one of `FORMATS`, and return the files.

    They are numbered in the order of the page and named by their titles. Raises
    `ExtraMissingError`, and `hespas.errors.OutputError` for a file that can't be written.
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
    """Return the first words of a title as the name of a file.

    >>> file_name("What bounds the step, in ms")
    'what-bounds-the-step'
    """
    words = re.findall(r"[a-z0-9]+", title.partition(",")[0].lower())
    return "-".join(words[:6])


def _for_paper(chart: Chart) -> dict[str, Any]:
    """Return a chart of a fixed width with its title, dark on white."""
    return {
        **chart.specification,
        "width": WIDTH,
        "autosize": {"type": "pad", "contains": "padding"},
        "title": {"text": chart.title, "anchor": "start"},
        "background": "white",
        "config": {"font": _FONT, "legend": {"orient": "bottom", "columns": 4}},
    }
