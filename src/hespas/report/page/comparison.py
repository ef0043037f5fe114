"""The page of two or more predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hespas.base.frozen import frozen
from hespas.base.units import format_amount, format_quantity, format_time
from hespas.prediction.figures.schema import RunReport
from hespas.report.compare import Comparison, TimeRow, compared, signed_time
from hespas.report.page.document import Cell, Notes, Page, Part, Section, Table, time_cell
from hespas.report.page.step import part_rows
from hespas.report.page.vega import (
    PALETTE,
    PART_HUES,
    Chart,
    Unit,
    across,
    bar_chart,
    coloured,
    nominal,
    quantitative,
    time_unit,
)
from hespas.report.text import others_text, peak_text

_MOST_STEPS = 12
"""The most bars of a waterfall: the smallest changes are joined into one."""
_PALETTE = {"total": PALETTE[7], "longer": PALETTE[4], "shorter": PALETTE[2]}


@frozen
class NamedReport:
    """A prediction with the name of its file."""

    name: str
    report: RunReport


def comparison_page(runs: Sequence[NamedReport]) -> Page:
    """Return the page that compares predictions with the first."""
    first, *later = runs
    sections = [
        Section(title="Side by side", parts=(_bars(runs), _figures(runs))),
        *(_difference(first, run) for run in later),
    ]
    return Page(
        title=f"{len(runs)} predictions compared",
        subtitle=f"Each with the first, {first.name}",
        sections=tuple(sections),
    )


def _bars(runs: Sequence[NamedReport]) -> Chart:
    unit = time_unit(max(run.report.step_time_s for run in runs))
    rows = [
        {**row, "run": run.name, "time": unit.of(float(str(row["time_s"])))}
        for run in runs
        for row in part_rows(run.report)
    ]
    shown_parts = {str(row["part"]) for row in rows}
    hues = {name: hue for name, hue in PART_HUES.items() if name in shown_parts}
    steps = "; ".join(f"{run.name} {format_time(run.report.step_time_s)}" for run in runs)
    return bar_chart(
        f"What bounds the steps, in {unit.name}",
        f"{steps}.",
        rows,
        x=across("time", unit, stack="zero"),
        y=nominal("run", None),
        color=coloured("part", None, hues),
        tooltip={"run": "of", "part": "part", "text": "time"},
        height=40 * len(runs),
    )


def _figures(runs: Sequence[NamedReport]) -> Table:
    reports = [run.report for run in runs]
    rates = [report.tokens_per_s_per_device for report in reports]
    rows = {
        "Program": [report.program for report in reports],
        "System": [report.system or report.node for report in reports],
        "Fidelity": [report.fidelity for report in reports],
        "Devices": [f"{report.devices}" for report in reports],
        "Step time": [format_time(report.step_time_s) for report in reports],
        "Tokens/s a device": ["" if rate is None else format_amount(rate) for rate in rates],
        "Model FLOPs utilisation (MFU)": [_share(report.mfu) for report in reports],
        "Hardware utilisation": [_share(report.hardware_utilisation) for report in reports],
        "Peak that they divide by": [peak_text(report) for report in reports],
        "Memory a device": [format_quantity(report.peak_memory_bytes, "B") for report in reports],
        "Computation": [format_time(report.compute_s) for report in reports],
        "Exposed communication": [
            format_time(report.exposed_communication_s) for report in reports
        ],
        "Waiting for stages": [
            format_time(report.stage_wait_s) if report.stage_wait_s else "" for report in reports
        ],
    }
    names = [run.name for run in runs]
    return Table(
        caption="Figures",
        columns=("", *names),
        rows=[(name, *texts) for name, texts in rows.items() if any(texts)],
        numbers=names,
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _difference(first: NamedReport, run: NamedReport) -> Section:
    comparison = compared(first.report, run.report, names=(first.name, run.name))
    step = comparison.step
    return Section(
        title=f"{first.name} to {run.name}",
        text=(
            f"{format_time(step.a_s)} to {format_time(step.b_s)}, {signed_time(step.difference_s)}."
        ),
        parts=tuple(_parts(comparison)),
    )


def _parts(comparison: Comparison) -> Iterator[Part]:
    if comparison.work:
        names = f"a is {comparison.a}, and b {comparison.b}"
        yield Notes(texts=(f"{comparison.work}; {names}",), is_warning=True)
    unit = time_unit(max(comparison.step.a_s, comparison.step.b_s))
    yield _waterfall("By cause", comparison.step, comparison.parts, comparison, unit)
    compute = next((row for row in comparison.parts if row.name == "compute"), None)
    for title, rows in (("by module", comparison.layers), ("by kind of kernel", comparison.kinds)):
        if rows and compute is not None:
            yield _waterfall(f"The computation, {title}", compute, rows, comparison, unit)
    names = (comparison.a, comparison.b)
    if comparison.communication:
        yield Table(
            caption="Exposed communication",
            columns=("", *names, "Difference"),
            rows=[
                (
                    row.name,
                    time_cell(row.a_s),
                    time_cell(row.b_s),
                    Cell(text=signed_time(row.difference_s), sort_by=row.difference_s),
                )
                for row in comparison.communication
            ],
            numbers=(*names, "Difference"),
            has_filter=len(comparison.communication) > 12,
        )
    if comparison.settings:
        yield Table(
            caption="What was asked for differently",
            columns=("Name", *names),
            rows=[
                (row.name, *("" if value is None else f"{value}" for value in (row.a, row.b)))
                for row in comparison.settings
            ],
        )


def _waterfall(
    title: str, total: TimeRow, rows: Sequence[TimeRow], comparison: Comparison, unit: Unit
) -> Chart:
    changed = [row for row in rows if row.difference_s]
    shown_rows, other_rows = changed[:_MOST_STEPS], changed[_MOST_STEPS:]
    steps = [(row.name, row.difference_s) for row in shown_rows]
    if other_rows:
        steps.append((others_text(len(other_rows)), sum(row.difference_s for row in other_rows)))
    bars = [_bar(f"{comparison.a} (all)", 0.0, total.a_s, "total", unit)]
    reached_s = total.a_s
    for name, difference_s in steps:
        kind = "longer" if difference_s > 0 else "shorter"
        bars.append(_bar(name, reached_s, reached_s + difference_s, kind, unit))
        reached_s += difference_s
    bars.append(_bar(f"{comparison.b} (all)", 0.0, total.b_s, "total", unit))
    steps_text = "; ".join(f"{name} {signed_time(difference_s)}" for name, difference_s in steps)
    return bar_chart(
        f"{title}, in {unit.name}",
        f"{steps_text}." if steps_text else "Nothing differs.",
        bars,
        x=quantitative("start", f"time ({unit.name})", scale={"nice": False}),
        x2={"field": "end"},
        y=nominal("name", None),
        color=coloured("kind", None, _PALETTE),
        tooltip={"name": "what", "text": "time"},
        height=28 * len(bars),
    )


def _bar(name: str, start_s: float, end_s: float, kind: str, unit: Unit) -> dict[str, object]:
    text = format_time(end_s) if kind == "total" else signed_time(end_s - start_s)
    ends = {"start": unit.of(start_s), "end": unit.of(end_s)}
    return {"name": name, **ends, "kind": kind, "text": text}
