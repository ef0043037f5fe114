"""A prediction in Python: a few lines of text or HTML, and its tables as rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import msgspec

from hespas.base.suggest import suggestion
from hespas.errors import ConfigError
from hespas.report.headline import headline
from hespas.report.schema import RunReport

_SHOWN = ("Step time", "Bound by", "Memory")


def _operations(report: RunReport) -> list[dict[str, Any]]:
    rows = [{"operation": kind, **msgspec.structs.asdict(op)} for kind, op in report.per_op.items()]
    return sorted(rows, key=lambda row: (-row["time_s"], row["operation"]))


def _structs(rows: Sequence[msgspec.Struct]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(row) for row in rows]


TABLES: dict[str, Callable[[RunReport], list[dict[str, Any]]]] = {
    "operations": _operations,
    "kinds": lambda report: _structs(report.kinds),
    "phases": lambda report: _structs(report.phases),
    "layers": lambda report: _structs(report.layers),
    "communication": lambda report: _structs(report.communication),
    "explain": lambda report: _structs(report.explain),
    "assumptions": lambda report: _structs(report.assumption_groups),
}
"""The tables of a report by name, each a function that makes its rows."""


def table_rows(report: RunReport, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table; `ConfigError` for a name that is none of `TABLES`."""
    if table not in TABLES:
        raise ConfigError(f"there is no table {table!r}", hint=suggestion(table, TABLES))
    return TABLES[table](report)


def summary_text(report: RunReport) -> str:
    """Return a prediction in five lines."""
    head = headline(report)
    rows = [f"{name:<26}{text}".rstrip() for name, text in head.rows if name in _SHOWN]
    last = f"{'.rows(TABLE)':<26}{', '.join(TABLES)}"
    return "\n".join([head.title, *rows, last])


def summary_html(report: RunReport) -> str:
    """Return the first lines of the report as an HTML table, its texts escaped."""
    head = headline(report)
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name.strip())}</th>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in head.rows
    )
    return f"<table><caption>{escape(head.title)}</caption>{rows}</table>"
