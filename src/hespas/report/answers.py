"""Predictions as the Python API gives them: with their report as tables, text and HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import Any

import msgspec

from hespas.base.suggest import suggestion
from hespas.errors import ConfigError
from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.figures.pipeline import pipeline_report
from hespas.prediction.figures.schema import RunReport
from hespas.prediction.figures.step import run_report, run_summary
from hespas.prediction.result import Prediction
from hespas.report.headline import headline
from hespas.report.step_details import full_report

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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer(Prediction):
    """A prediction with its report.

    >>> import hespas
    >>> hespas.predict("examples/attention_block.mlir", "A100_SXM_40GB", "A100_SXM_40GB_4GPU",
    ...                fidelity="exported")
    attention_block.mlir: one step on 4 x A100_SXM_40GB on A100_SXM_40GB_4GPU (as exported)
    Step time                 61.31 us
    Bound by                  exposed communication 76 %, memory 24 %
    Memory                    at most 8.913 MB of 42.95 GB a device, 42.94 GB free
    .rows(TABLE)              operations, kinds, phases, layers, communication, explain, assumptions
    """

    def to_dict(self) -> dict[str, object]:
        """Return what ``hespas run --json`` writes."""
        return msgspec.to_builtins(full_report(self))

    def rows(self, table: str) -> list[dict[str, object]]:
        """Return a table of the report, a dictionary for each row, as pandas.DataFrame takes them.

        Tables are ``operations``, ``kinds``, ``phases``, ``layers``, ``communication``, ``explain``
        and ``assumptions``. Raises `ConfigError` for another name.

        >>> import hespas
        >>> prediction = hespas.predict("examples/attention_block.mlir", "A100_SXM_40GB",
        ...                             "A100_SXM_40GB_4GPU", fidelity="exported")
        >>> [row["operation"] for row in prediction.rows("operations")][:2]
        ['stablehlo.dot_general', 'stablehlo.exponential']
        """
        return table_rows(run_report(self), table)

    def __repr__(self) -> str:
        return summary_text(run_summary(self))

    def _repr_html_(self) -> str:
        return summary_html(run_summary(self))


@dataclass(frozen=True, kw_only=True, repr=False)
class PipelineAnswer(PipelinePrediction):
    """A prediction of a pipeline with its report."""

    def to_dict(self) -> dict[str, object]:
        """Return what ``hespas run --json`` writes."""
        return msgspec.to_builtins(pipeline_report(self))

    def rows(self, table: str) -> list[dict[str, object]]:
        """Return a table of the report, as `Answer.rows` does."""
        return table_rows(pipeline_report(self), table)

    def __repr__(self) -> str:
        return summary_text(pipeline_report(self))

    def _repr_html_(self) -> str:
        return summary_html(pipeline_report(self))


def answer_of(prediction: Prediction) -> Answer:
    """Return a prediction with its report."""
    return Answer(**{each.name: getattr(prediction, each.name) for each in fields(prediction)})


def pipeline_answer_of(prediction: PipelinePrediction) -> PipelineAnswer:
    """Return a prediction of a pipeline with its report."""
    values = {each.name: getattr(prediction, each.name) for each in fields(prediction)}
    return PipelineAnswer(**values)
