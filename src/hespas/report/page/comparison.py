"""The page of two or more predictions: what each consists of, and where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hespas.base.units import format_amount, format_quantity, format_time
from hespas.prediction.figures.schema import RunReport
from hespas.report.compare import Comparison, RunResult, TimeRow, compared, signed_time
from hespas.report.headline import peak_text
from hespas.report.page.document import Cell, Chart, Page, Part, Section, Table
from hespas.report.page.specs import (
    OF_PARTS,
    PALETTE,
    Unit,
    across,
    coloured,
    nominal,
    quantitative,
    specification,
    time_unit,
    tooltips,
)
from hespas.report.page.step import part_rows

_MOST_STEPS = 12
"""Of a waterfall: those that change least are one."""
_PALETTE = {"total": PALETTE[7], "longer": PALETTE[4], "shorter": PALETTE[2]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A prediction, under the name of its file."""

    name: str
    report: RunReport
    result: RunResult


def comparison_page(runs: Sequence[Named]) -> Page:
    """Return the page of two or more predictions; each is compared with the first."""
    first, *others = runs
    sections = [
        Section(title="Side by side", parts=(_bars(runs), _figures(runs))),
        *(_difference(first, each) for each in others),
    ]
    return Page(
        title=f"{len(runs)} predictions compared",
        subtitle=f"Each with the first, {first.name}",
        sections=tuple(sections),
    )


def _bars(runs: Sequence[Named]) -> Chart:
    unit = time_unit(max(run.report.step_time_s for run in runs))
    rows = [
        {**row, "run": run.name, "time": unit.of(float(str(row["time_s"])))}
        for run in runs
        for row in part_rows(run.report)
    ]
    named = {str(row["part"]) for row in rows}
    hues = {name: colour for name, colour in OF_PARTS.items() if name in named}
    steps = "; ".join(f"{run.name} {format_time(run.report.step_time_s)}" for run in runs)
    return Chart(
        title=f"What bounds the steps, in {unit.name}",
        description=f"{steps}.",
        specification=specification(
            rows,
            height=40 * len(runs),
            mark="bar",
            encoding={
                "x": across("time", unit, stack="zero"),
                "y": nominal("run", None),
                "color": coloured("part", None, hues),
                "order": {"field": "order"},
                "tooltip": tooltips(run="of", part="part", text="time"),
            },
        ),
    )


def _figures(runs: Sequence[Named]) -> Table:
    rows = (
        ("Program", [run.report.program for run in runs]),
        ("System", [run.report.system or run.report.node for run in runs]),
        ("Fidelity", [run.report.fidelity for run in runs]),
        ("Devices", [f"{run.report.devices}" for run in runs]),
        ("Step time", [format_time(run.report.step_time_s) for run in runs]),
        ("Tokens/s a device", [_amount(run.report.tokens_per_s_per_device) for run in runs]),
        ("Model FLOPs utilisation (MFU)", [_share(run.report.mfu) for run in runs]),
        ("Hardware utilisation", [_share(run.report.hardware_utilisation) for run in runs]),
        ("Peak that they divide by", [peak_text(run.report) for run in runs]),
        ("Memory a device", [format_quantity(run.report.peak_memory_bytes, "B") for run in runs]),
        ("Computation", [format_time(run.report.compute_s) for run in runs]),
        ("Exposed communication", [format_time(_exposed_s(run)) for run in runs]),
    )
    return Table(
        caption="Figures",
        columns=("", *(run.name for run in runs)),
        rows=tuple(
            (Cell(text=name), *(Cell(text=text) for text in texts))
            for name, texts in rows
            if any(texts)
        ),
        numbers=frozenset(run.name for run in runs),
    )


def _exposed_s(run: Named) -> float:
    return run.report.exposed_communication_s


def _amount(value: float | None) -> str:
    return "" if value is None else format_amount(value)


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _difference(first: Named, other: Named) -> Section:
    comparison = compared(first.result, other.result, names=(first.name, other.name))
    return Section(
        title=f"{first.name} to {other.name}",
        text=(
            f"{format_time(comparison.step.a_s)} to {format_time(comparison.step.b_s)}, "
            f"{signed_time(comparison.step.difference_s)}."
        ),
        parts=tuple(_parts(comparison)),
    )


def _parts(comparison: Comparison) -> Iterator[Part]:
    unit = time_unit(max(comparison.step.a_s, comparison.step.b_s))
    yield _waterfall("By cause", comparison.step, comparison.parts, comparison, unit)
    compute = next((row for row in comparison.parts if row.name == "compute"), None)
    for title, rows in (("by module", comparison.layers), ("by kind of kernel", comparison.kinds)):
        if rows and compute is not None:
            yield _waterfall(f"The computation, {title}", compute, rows, comparison, unit)
    if comparison.communication:
        yield _table("Exposed communication", comparison.communication, comparison)
    if comparison.settings:
        yield Table(
            caption="What was asked for differently",
            columns=("Name", comparison.a, comparison.b),
            rows=tuple(
                (Cell(text=row.name), Cell(text=_text(row.a)), Cell(text=_text(row.b)))
                for row in comparison.settings
            ),
        )


def _text(value: object) -> str:
    return "" if value is None else f"{value}"


def _waterfall(
    title: str, whole: TimeRow, rows: Sequence[TimeRow], comparison: Comparison, unit: Unit
) -> Chart:
    """Return what adds to and takes from a time, from the first to the second."""
    changed = [row for row in rows if row.difference_s]
    shown, rest = changed[:_MOST_STEPS], changed[_MOST_STEPS:]
    steps = [(row.name, row.difference_s) for row in shown]
    if rest:
        steps.append((f"{len(rest)} others", sum(row.difference_s for row in rest)))
    bars = [_bar(f"{comparison.a} (all)", 0.0, whole.a_s, "total", unit)]
    at = whole.a_s
    for name, difference_s in steps:
        kind = "longer" if difference_s > 0 else "shorter"
        bars.append(_bar(name, at, at + difference_s, kind, unit))
        at += difference_s
    bars.append(_bar(f"{comparison.b} (all)", 0.0, whole.b_s, "total", unit))
    listed = "; ".join(f"{name} {signed_time(difference_s)}" for name, difference_s in steps)
    return Chart(
        title=f"{title}, in {unit.name}",
        description=f"{listed}." if listed else "Nothing differs.",
        specification=specification(
            bars,
            height=28 * len(bars),
            mark="bar",
            encoding={
                "y": nominal("name", None),
                "x": quantitative("start", f"time ({unit.name})", scale={"nice": False}),
                "x2": {"field": "end"},
                "color": coloured("kind", None, _PALETTE),
                "tooltip": tooltips(name="what", text="time"),
            },
        ),
    )


def _bar(name: str, start_s: float, end_s: float, kind: str, unit: Unit) -> dict[str, object]:
    text = format_time(end_s) if kind == "total" else signed_time(end_s - start_s)
    return {
        "name": name,
        "start": unit.of(start_s),
        "end": unit.of(end_s),
        "kind": kind,
        "text": text,
    }


def _table(caption: str, rows: Sequence[TimeRow], comparison: Comparison) -> Table:
    cells = [
        (
            Cell(text=row.name),
            Cell(text=format_time(row.a_s), sort_by=row.a_s),
            Cell(text=format_time(row.b_s), sort_by=row.b_s),
            Cell(text=signed_time(row.difference_s), sort_by=row.difference_s),
        )
        for row in rows
    ]
    columns = ("", comparison.a, comparison.b, "Difference")
    return Table(
        caption=caption,
        columns=columns,
        rows=tuple(cells),
        numbers=frozenset(columns[1:]),
        has_filter=len(rows) > 12,
    )
