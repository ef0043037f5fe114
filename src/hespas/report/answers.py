"""Predictions as the Python API gives them: with their report as tables, text and HTML."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.result import Prediction
from hespas.report.pipeline import pipeline_report
from hespas.report.run import run_json, run_report, run_summary
from hespas.report.step_details import full_report
from hespas.report.tables import summary_html, summary_text, table_rows


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
        """Return what ``hespas run --json`` writes; `hespas.report.schema` describes it."""
        return run_json(full_report(self))

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
        """Return the first lines of the report as notebooks show them."""
        return summary_html(run_summary(self))


@dataclass(frozen=True, kw_only=True, repr=False)
class PipelineAnswer(PipelinePrediction):
    """A prediction of a pipeline with its report."""

    def to_dict(self) -> dict[str, object]:
        """Return what ``hespas run --json`` writes; `hespas.report.schema` describes it."""
        return run_json(pipeline_report(self))

    def rows(self, table: str) -> list[dict[str, object]]:
        """Return a table of the report, as `Answer.rows` does."""
        return table_rows(pipeline_report(self), table)

    def __repr__(self) -> str:
        return summary_text(pipeline_report(self))

    def _repr_html_(self) -> str:
        """Return the first lines of the report as notebooks show them."""
        return summary_html(pipeline_report(self))


def answer_of(prediction: Prediction) -> Answer:
    """Return a prediction with its report."""
    return Answer(**{each.name: getattr(prediction, each.name) for each in fields(prediction)})


def pipeline_answer_of(prediction: PipelinePrediction) -> PipelineAnswer:
    """Return a prediction of a pipeline with its report."""
    values = {each.name: getattr(prediction, each.name) for each in fields(prediction)}
    return PipelineAnswer(**values)
