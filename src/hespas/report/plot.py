"""Charts for notebooks, and tables for pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from hespas.base.files import write_file
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, ToolError
from hespas.prediction.figures.schema import RunReport
from hespas.report.page.document import Page, page_html
from hespas.report.page.step import step_page
from hespas.report.page.study import study_page
from hespas.study.run import Studied

STEP_PLOTS: Mapping[str, tuple[str, ...]] = {
    "step": ("The answer", "Where the step goes"),
    "stages": ("Stages",),
    "timeline": ("Over time",),
    "kernels": ("Kernels",),
    "communication": ("Communication",),
    "memory": ("Memory",),
    "changes": ("What would change it",),
}
"""The charts of a prediction by name, with the beginnings of their sections' titles."""
STUDY_PLOTS: Mapping[str, tuple[str, ...]] = {
    "trade-offs": ("Trade-offs",),
    "scaling": ("Scaling",),
    "steps": ("What the steps consist of",),
    "keys": ("By key",),
    "table": ("All candidates",),
}
_HEIGHT_PX = 640


@frozen
class Plot:
    """Charts for a notebook; `save` writes them as a page."""

    page: Page

    @property
    def html(self) -> str:
        """The page, with everything that a browser needs inside."""
        return page_html(self.page)

    def save(self, path: str | Path) -> None:
        """Write the page to a file, else raise `OutputError`."""
        write_file(Path(path), self.html.encode())

    def _repr_html_(self) -> str:
        # In a frame of its own the notebook's styles and scripts don't meet those of the page.
        title, content = escape(self.page.title, quote=True), escape(self.html, quote=True)
        return (
            f'<iframe title="{title}" sandbox="allow-scripts" srcdoc="{content}" '
            f'style="width: 100%; height: {_HEIGHT_PX}px; border: 0"></iframe>'
        )

    def __repr__(self) -> str:
        sections = ", ".join(section.title for section in self.page.sections)
        return f"{self.page.title}: {sections} (.save(FILE.html) writes it)"


def _plot(page: Page, name: str, plots: Mapping[str, tuple[str, ...]]) -> Plot:
    if name not in plots:
        raise ConfigError(f"there is no plot {name!r}", hint=suggestion(name, plots))
    sections = tuple(
        section
        for section in page.sections
        if section.parts and section.title.startswith(plots[name])
    )
    if not sections:
        raise ConfigError(
            f"there is nothing to draw of {name}", location=page.title, hint="see the other plots"
        )
    return Plot(page=replace(page, sections=sections))


def plot_step(report: RunReport, name: str) -> Plot:
    """Return charts of a prediction: one of `STEP_PLOTS`, else `ConfigError`."""
    return _plot(step_page(report), name, STEP_PLOTS)


def plot_study(studied: Studied, name: str) -> Plot:
    """Return charts of a study: one of `STUDY_PLOTS`, else `ConfigError`."""
    return _plot(study_page(studied), name, STUDY_PLOTS)


def frame(rows: Sequence[Mapping[str, object]]) -> Any:
    """Return rows as a ``pandas.DataFrame``; raise `ToolError` without pandas."""
    try:
        pandas: Any = import_module("pandas")
    except ImportError as error:
        raise ToolError("pandas is not installed", hint="pip install pandas") from error
    return pandas.DataFrame(list(rows))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StudyAnswer(Studied):
    """A study with its rows, and charts of them."""

    def to_frame(self) -> Any:
        """Return all candidates as a ``pandas.DataFrame``; raise `ToolError` without pandas."""
        return frame(self.table())

    def plot(self, what: str = "trade-offs") -> Plot:
        """Return charts for a notebook: one of `hespas.report.plot.STUDY_PLOTS`."""
        return plot_study(self, what)


def study_answer_of(studied: Studied) -> StudyAnswer:
    """Return a study with its charts."""
    return StudyAnswer(study=studied.study, rows=studied.rows)
