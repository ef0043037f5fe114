"""Predictions for Python: tables, text, HTML and chart data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from html import escape
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from hespas.base.suggest import suggestion
from hespas.base.units import PS_PER_S
from hespas.errors import ConfigError
from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.figures.breakdown import Amount, amounts_of
from hespas.prediction.figures.schema import (
    HeldRow,
    KernelTimeRow,
    MemoryDetails,
    MemoryPoint,
    Peaks,
    RunReport,
    TimelineRow,
)
from hespas.prediction.figures.step import run_report
from hespas.prediction.result import Prediction
from hespas.price.estimate import Estimate
from hespas.price.kernel import kind_of
from hespas.program.program import Op
from hespas.program.scopes import merged_layers
from hespas.report.text import headline, others_text, plain_number, short_place
from hespas.report.timeline.step import prediction_chart
from hespas.report.timeline.write import Counter, Process, Slice
from hespas.split.names import operation_names

if TYPE_CHECKING:
    from hespas.report.plot import Plot

_SHOWN = ("Step time", "Bound by", "Memory")


TABLES = {
    "operations": "per_op",
    "kinds": "kinds",
    "phases": "phases",
    "layers": "layers",
    "communication": "communication",
    "explain": "explain",
    "assumptions": "assumption_groups",
}
"""The tables of a report by name, with the field that has their rows."""


def table_rows(report: RunReport, table: str) -> list[dict[str, Any]]:
    """Return a table's rows; raise `ConfigError` if unknown."""
    if table not in TABLES:
        raise ConfigError(f"there is no table {table!r}", hint=suggestion(table, TABLES))
    rows: Any = msgspec.to_builtins(getattr(report, TABLES[table]))
    if table == "operations":
        operations = [{"operation": kind, **row} for kind, row in rows.items()]
        return sorted(operations, key=lambda row: (-row["time_s"], row["operation"]))
    return rows


def table_frame(report: RunReport, table: str) -> Any:
    """Return a table as a ``pandas.DataFrame``; raise `ToolError` without pandas."""
    from hespas.report.plot import frame  # noqa: PLC0415 - few are drawn

    return frame(table_rows(report, table))


def summary_text(report: RunReport) -> str:
    """Summarize a prediction in five lines."""
    head = headline(report)
    rows = [f"{name:<26}{text}".rstrip() for name, text in head.rows if name in _SHOWN]
    last = f"{'.rows(TABLE)':<26}{', '.join(TABLES)}"
    return "\n".join([head.title, *rows, last])


def summary_html(report: RunReport) -> str:
    """Return the headline figures as an HTML table."""
    head = headline(report)
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name.strip())}</th>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in head.rows
    )
    return f"<table><caption>{escape(head.title)}</caption>{rows}</table>"


Predicted: TypeAlias = Prediction | PipelinePrediction


def step_plot(prediction: Predicted, name: str) -> Plot:
    """Return charts for a notebook: one of `hespas.report.plot.STEP_PLOTS`."""
    from hespas.report.plot import plot_step  # noqa: PLC0415 - few are drawn

    return plot_step(full_report(prediction), name)


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
        """Return the object that ``hespas run --json`` writes."""
        return msgspec.to_builtins(full_report(self))

    def rows(self, table: str) -> list[dict[str, object]]:
        """Return the rows of a table as dictionaries, for pandas.DataFrame.

        Tables are ``operations``, ``kinds``, ``phases``, ``layers``, ``communication``, ``explain``
        and ``assumptions``. Raises `ConfigError` for another name.

        >>> import hespas
        >>> prediction = hespas.predict("examples/attention_block.mlir", "A100_SXM_40GB",
        ...                             "A100_SXM_40GB_4GPU", fidelity="exported")
        >>> [row["operation"] for row in prediction.rows("operations")][:2]
        ['stablehlo.dot_general', 'stablehlo.exponential']
        """
        return table_rows(run_report(self), table)

    def to_frame(self, table: str = "operations") -> Any:
        """Return a table as a ``pandas.DataFrame``, else raise `ToolError`."""
        return table_frame(run_report(self), table)

    def plot(self, what: str = "step") -> Plot:
        """Return charts for a notebook: one of `hespas.report.plot.STEP_PLOTS`."""
        return step_plot(self, what)

    def __repr__(self) -> str:
        return summary_text(run_report(self, with_tables=False))

    def _repr_html_(self) -> str:
        return summary_html(run_report(self, with_tables=False))


@dataclass(frozen=True, kw_only=True, repr=False)
class PipelineAnswer(PipelinePrediction):
    """A prediction of a pipeline with its report."""

    def to_dict(self) -> dict[str, object]:
        """Return the object that ``hespas run --json`` writes."""
        return msgspec.to_builtins(full_report(self))

    def rows(self, table: str) -> list[dict[str, object]]:
        """Return the rows of a table, as `Answer.rows` does."""
        return table_rows(run_report(self), table)

    def to_frame(self, table: str = "operations") -> Any:
        """Return a table as a ``pandas.DataFrame``, as `Answer.to_frame` does."""
        return table_frame(run_report(self), table)

    def plot(self, what: str = "step") -> Plot:
        """Return charts for a notebook, as `Answer.plot` does."""
        return step_plot(self, what)

    def __repr__(self) -> str:
        return summary_text(run_report(self, with_tables=False))

    def _repr_html_(self) -> str:
        return summary_html(run_report(self, with_tables=False))


def answer_of(prediction: Prediction) -> Answer:
    """Return a prediction with its report."""
    return Answer(**_field_values(prediction))


def pipeline_answer_of(prediction: PipelinePrediction) -> PipelineAnswer:
    """Return a prediction of a pipeline with its report."""
    return PipelineAnswer(**_field_values(prediction))


def _field_values(prediction: Predicted) -> dict[str, Any]:
    return {field.name: getattr(prediction, field.name) for field in fields(prediction)}


MOST_KERNELS = 300
FINEST = 1000
"""The timeline distinguishes slices that last this part of the step."""
MOST_POINTS = 400
MOST_HELD = 20
OTHERS = "others"
_NOT_SHOWN = frozenset({"layers", "loops", "waiting"})
"""Tracks that repeat other tracks, or are too long for the page."""
_Limit = Literal["compute", "memory", "launch", "other"]


def full_report(prediction: Predicted) -> RunReport:
    """Return a prediction's report with the data of charts."""
    return with_chart_data(run_report(prediction), prediction)


def with_chart_data(report: RunReport, prediction: Predicted) -> RunReport:
    """Add chart data to a report; folded steps have none."""
    if not isinstance(prediction, Prediction) or prediction.graph.is_folded:
        return report
    process = max(prediction_chart(prediction).processes, key=_end_ps)
    return msgspec.structs.replace(
        report,
        kernels=kernel_rows(prediction),
        memory=memory_details(prediction, process.counters),
        timeline=list(_timeline_rows(process, _end_ps(process) // FINEST)),
        peaks=_peaks(prediction),
    )


def kernel_rows(prediction: Prediction) -> list[KernelTimeRow]:
    """Return the kernels of a step, longest first.

    They add up to the computation.
    """
    names = operation_names(prediction.graph)
    equal_rows: dict[tuple[object, ...], Amount] = defaultdict(Amount)
    first: dict[tuple[object, ...], str] = {}
    labels: dict[Op, tuple[str, str]] = {}
    for op, amount, times in amounts_of(prediction):
        if op not in labels:
            labels[op] = kind_of(op), "/".join(merged_layers(names.of(op).path))
        key = (*labels[op], amount.time_s, amount.flops, amount.bytes_moved)
        equal_rows[key].add(amount, times)
        first.setdefault(key, op.instruction or op.kind)
    rows = [
        _kernel(amount, name=first[key], kind=str(key[0]), path=str(key[1]))
        for key, amount in equal_rows.items()
    ]
    rows.sort(key=lambda row: (-row.time_s, row.name))
    longest, shorter = rows[:MOST_KERNELS], rows[MOST_KERNELS:]
    return [*longest, _join_rows(shorter)] if shorter else longest


def _kernel(amount: Amount, *, name: str, kind: str, path: str) -> KernelTimeRow:
    return KernelTimeRow(
        name=name,
        kind=kind,
        path=path,
        count=plain_number(amount.count),
        time_s=amount.time_s,
        flops=amount.flops,
        bytes=amount.bytes_moved,
        limit=_limit(amount),
    )


def _limit(amount: Amount) -> _Limit:
    """Return the limit of most of a kernel's time.

    >>> _limit(Amount(time_s=3.0, memory_s=2.0, launch_s=1.0)), _limit(Amount(time_s=3.0))
    ('memory', 'other')
    """
    limits_s: dict[_Limit, float] = {
        "compute": amount.arithmetic_s,
        "memory": amount.memory_s,
        "launch": amount.launch_s,
        "other": amount.time_s - (amount.arithmetic_s + amount.memory_s + amount.launch_s),
    }
    return max(limits_s, key=lambda limit: limits_s[limit])


def _join_rows(rows: list[KernelTimeRow]) -> KernelTimeRow:
    return KernelTimeRow(
        name=others_text(len(rows)),
        kind=OTHERS,
        path="",
        count=sum(row.count for row in rows),
        time_s=sum(row.time_s for row in rows),
        flops=sum(row.flops for row in rows),
        bytes=sum(row.bytes for row in rows),
        limit="other",
    )


def memory_details(prediction: Prediction, counters: tuple[Counter, ...]) -> MemoryDetails:
    """Return the memory of a device over the ``counters`` of a step."""
    use, source = prediction.memory, prediction.graph.program.source
    points = counters[0].points if counters else ()
    return MemoryDetails(
        argument_bytes=use.argument_bytes,
        output_bytes=use.output_bytes,
        alias_bytes=use.alias_bytes,
        temporary_bytes=use.temporary_bytes,
        peak_place=short_place(use.peak_location, source),
        points=[
            MemoryPoint(time_s=time_ps / PS_PER_S, bytes=size)
            for time_ps, size in _highest_points(points)
        ],
        held=[
            HeldRow(
                bytes=buffer.size_bytes,
                type=buffer.type,
                role=buffer.role,
                place=short_place(buffer.location, source),
            )
            for buffer in use.held[:MOST_HELD]
        ],
    )


def _highest_points(points: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int]]:
    """Yield the highest point of each group.

    >>> list(_highest_points(((0, 5), (10, 7))))
    [(0, 5), (10, 7)]
    """
    group = max(1, -(-len(points) // MOST_POINTS))
    for start in range(0, len(points), group):
        yield max(points[start : start + group], key=lambda point: point[1])


def _timeline_rows(process: Process, finest_ps: int) -> Iterator[TimelineRow]:
    for track in process.tracks:
        if track.name in _NOT_SHOWN:
            continue
        for name, start_ps, end_ps in _merge_slices(track.slices, finest_ps):
            yield TimelineRow(
                track=track.name, name=name, start_s=start_ps / PS_PER_S, end_s=end_ps / PS_PER_S
            )


def _merge_slices(slices: Iterable[Slice], finest_ps: int) -> Iterator[tuple[str, int, int]]:
    """Yield outermost slices, with consecutive short ones merged.

    A slice within ``finest_ps`` of the one before is joined to it if it has the same name, or if
    both are shorter than that, under the name of the longest.
    """
    name, start_ps, end_ps, longest_ps = "", -1, -1, -1
    for item in slices:
        if item.start_ps < end_ps:
            continue
        lasts_ps = item.end_ps - item.start_ps
        is_near = start_ps >= 0 and item.start_ps - end_ps <= finest_ps
        is_short = lasts_ps < finest_ps and longest_ps < finest_ps
        if is_near and (item.name == name or is_short):
            name = item.name if lasts_ps > longest_ps else name
            end_ps, longest_ps = item.end_ps, max(longest_ps, lasts_ps)
            continue
        if start_ps >= 0:
            yield name, start_ps, end_ps
        name, start_ps, end_ps, longest_ps = item.name, item.start_ps, item.end_ps, lasts_ps
    if start_ps >= 0:
        yield name, start_ps, end_ps


def _end_ps(process: Process) -> int:
    return max((item.end_ps for track in process.tracks for item in track.slices), default=0)


def _peaks(prediction: Prediction) -> Peaks | None:
    device = prediction.device
    if device is None:
        return None
    total: Estimate = prediction.estimates.total
    kinds = [kind for kind, amount in total.total.per_type.items() if amount.flops]
    return Peaks(
        flops_per_s={kind: device.rate(kind) for kind in sorted(kinds)},
        bytes_per_s=device.memory_bandwidth_bytes_per_s,
    )
