"""The page of a study: best candidates and trade-offs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hespas.report.page.document import Cards, Cell, Page, Section, Table
from hespas.report.page.scaling import Candidates, candidates_of, scaling_charts
from hespas.report.page.vega import (
    PALETTE,
    Chart,
    Unit,
    across,
    bar_chart,
    coloured,
    drawn_chart,
    large_unit,
    nominal,
    quantitative,
    time_unit,
    tooltips,
)
from hespas.study.goal import FIGURES, GOALS, Direction, Goal, figure_text, fronts
from hespas.study.rows import Row, Status, pinned_text
from hespas.study.run import Studied

_MOST_BARS = 30
_MOST_LINES = 120
_FRONT_HUES = {"on the front": PALETTE[1], "behind it": PALETTE[7]}
_PART_HUES = {
    "computation": PALETTE[0],
    "exposed communication": PALETTE[1],
    "waiting for stages": PALETTE[2],
    "other": PALETTE[7],
}


def study_page(studied: Studied) -> Page:
    """Return the page of a study."""
    candidates = candidates_of(studied.rows)
    best = studied.best
    answer = "" if best is None else f"Best: {candidates.name(best)} ({best.fidelity})."
    sections = (
        Section(title="The answer", text=answer, parts=tuple(_answer(studied, candidates))),
        Section(title="Trade-offs", parts=tuple(_trade_offs(studied, candidates))),
        Section(title="Scaling", parts=tuple(scaling_charts(candidates))),
        Section(title="All candidates", parts=(_ranked(studied, candidates),)),
        Section(title="What the steps consist of", parts=tuple(_bars(candidates))),
        Section(title="By key", parts=tuple(_parallel(studied, candidates))),
        Section(title="Screened and compiled", parts=tuple(_screened(candidates))),
        Section(title="What was left out", parts=tuple(_left_out(studied.rows))),
    )
    goal = f"Goal: {studied.study.goal.text}"
    return Page(title=studied.study.title or "A study", subtitle=goal, sections=sections)


def _answer(studied: Studied, candidates: Candidates) -> Iterator[Cards | Table]:
    rows, best = studied.rows, studied.best
    counts = Counter(row.status for row in rows)
    counts_text = ", ".join(
        f"{counts[status]} {status.value}" for status in Status if counts[status]
    )
    figures = [("Candidates", f"{len(rows)}", counts_text)]
    figures += [
        (_title(name), figure_text(name, value), "of the best")
        for name in _shown_figures(studied)
        if best is not None and (value := best.figures.get(name)) is not None
    ]
    yield Cards(figures=tuple(figures))
    if pinned_text(rows):
        yield Table(
            caption="What all candidates have in common",
            columns=("Key", "Value"),
            rows=list(candidates.pinned.items()),
        )


def _shown_figures(studied: Studied) -> list[str]:
    goal = [name for name, _ in studied.study.goal.metrics]
    common_figures = ("step_time_s", "tokens_per_s_per_device", "mfu", "peak_memory_bytes")
    return list(dict.fromkeys((*goal, *common_figures)))


def _title(name: str) -> str:
    """Return a figure's name in plain words.

    >>> _title("tokens_per_s_per_device"), _title("peak_memory_bytes")
    ('tokens/s/device', 'peak memory')
    """
    words = name.removesuffix("_bytes").removesuffix("_j")
    if words.endswith("_s") and not words.endswith("per_s"):
        words = words.removesuffix("_s")
    return words.replace("_per_", "/").replace("_", " ")


def _unit(name: str, values: Sequence[float]) -> Unit:
    unit = FIGURES[name].unit
    if unit == "s":
        return time_unit(max(values))
    return large_unit(max(values), unit if unit == "B" else "")


def _with_unit(name: str, unit: Unit) -> str:
    """Return the title of an axis.

    >>> _with_unit("peak_memory_bytes", large_unit(7e10, "B")), _with_unit("mfu", large_unit(1, ""))
    ('peak memory (GB)', 'mfu')
    """
    return f"{_title(name)} ({unit.name})" if unit.name else _title(name)


def _trade_offs(studied: Studied, candidates: Candidates) -> Iterator[Chart]:
    names = [name for name, _ in studied.study.goal.metrics]
    names += [name for name in ("peak_memory_bytes", "step_time_s") if name not in names]
    y_name, x_name = names[:2]
    points = [
        (row, y, x)
        for row in candidates.predicted
        if (y := row.figures.get(y_name)) is not None and (x := row.figures.get(x_name)) is not None
    ]
    if len(points) < 2:
        return
    goal = Goal(metrics=tuple((name, GOALS[name]) for name in (y_name, x_name)))
    front = fronts([goal.keys(row.figures) for row, _, _ in points])
    y_unit = _unit(y_name, [y for _, y, _ in points])
    x_unit = _unit(x_name, [x for _, _, x in points])
    values = [
        {
            "name": candidates.name(row),
            "x": x_unit.of(x),
            "y": y_unit.of(y),
            "x_text": figure_text(x_name, x),
            "y_text": figure_text(y_name, y),
            "front": "behind it" if rank else "on the front",
            "status": row.fidelity or row.status.value,
            "link": f"#{_anchor(row)}",
        }
        for (row, y, x), rank in zip(points, front, strict=True)
    ]
    axis = {"axis": {"labelOverlap": True, "tickCount": 8}, "scale": {"zero": False}}
    places = {
        "x": quantitative("x", _with_unit(x_name, x_unit), **axis),
        "y": quantitative("y", _with_unit(y_name, y_unit), **axis),
    }
    line = {
        "transform": [{"filter": "datum.front === 'on the front'"}],
        "mark": {"type": "line", "strokeWidth": 1.5, "color": PALETTE[1]},
        "encoding": {**places, "order": {"field": "x"}},
    }
    fields = {"name": "candidate", "status": "status"}
    fields |= {"y_text": _title(y_name), "x_text": _title(x_name)}
    circles = {
        "mark": {"type": "point", "filled": True, "size": 70, "cursor": "pointer"},
        "encoding": {
            **places,
            "color": coloured("front", None, _FRONT_HUES),
            "shape": nominal("status", None),
            "href": {"field": "link"},
            "tooltip": tooltips(**fields),
        },
    }
    best = sum(not rank for rank in front)
    yield drawn_chart(
        f"{_title(y_name)} against {_title(x_name)}",
        f"{best} of {len(points)} candidates are better than every other in one of the two: the "
        "line. Click a candidate to find it in the table.",
        values,
        height=380,
        layer=[line, circles],
    )


def _anchor(row: Row) -> str:
    return f"candidate-{row.number}"


def _ranked(studied: Studied, candidates: Candidates) -> Table:
    names = [
        name
        for name in _shown_figures(studied)
        if any(row.figures.get(name) is not None for row in studied.rows)
    ]
    titles = [_title(name) for name in names]
    return Table(
        caption="Candidates, best first",
        columns=("Rank", *candidates.keys, "Status", *titles, "Remark"),
        rows=[
            (
                Cell(text=f"{rank}", anchor=_anchor(row)),
                *(_key_cell(candidates.value(row, key)) for key in candidates.keys),
                row.fidelity if row.status is Status.DONE else row.status.value,
                *(_figure_cell(name, row.figures.get(name)) for name in names),
                row.reason or ("does not fit" if row.fits is False else ""),
            )
            for rank, row in enumerate(studied.rows, start=1)
        ],
        numbers=("Rank", *titles),
        has_filter=True,
    )


def _key_cell(value: object) -> Cell | str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(text=f"{value}", sort_by=value)
    return "" if value is None else f"{value}"


def _figure_cell(name: str, value: float | None) -> Cell:
    if value is None:
        return Cell(text="", sort_by="")
    return Cell(text=figure_text(name, value), sort_by=value)


def _bars(candidates: Candidates) -> Iterator[Chart]:
    rows = [row for row in candidates.predicted if row.figures.get("compute_s") is not None]
    shown_rows = rows[:_MOST_BARS]
    if not shown_rows:
        return
    unit = time_unit(max(row.figures.get("step_time_s") or 0.0 for row in shown_rows))
    note = f" The first {len(shown_rows)} of {len(rows)}." if len(rows) > len(shown_rows) else ""
    yield bar_chart(
        f"Computation and exposed communication, in {unit.name}",
        f"Candidates from the best on.{note}",
        [
            {
                "name": candidates.name(row),
                "part": part,
                "time": unit.of(time_s),
                "text": figure_text("step_time_s", time_s),
                "order": order,
            }
            for row in shown_rows
            for order, (part, time_s) in enumerate(_parts(row).items())
            if time_s > 0
        ],
        x=across("time", unit, stack="zero"),
        y=nominal("name", None, axis={"labelLimit": 320}),
        color=coloured("part", None, _PART_HUES),
        tooltip={"name": "candidate", "part": "part", "text": "time"},
        height=26 * len(shown_rows),
    )


def _parts(row: Row) -> dict[str, float]:
    names = ("compute_s", "exposed_communication_s", "stage_wait_s", "step_time_s")
    *parts_s, step_s = (row.figures.get(name) or 0.0 for name in names)
    return dict(zip(_PART_HUES, (*parts_s, max(0.0, step_s - sum(parts_s))), strict=True))


def _parallel(studied: Studied, candidates: Candidates) -> Iterator[Chart]:
    name, way = studied.study.goal.metrics[0]
    goals = {row.number: row.figures.get(name) for row in candidates.predicted}
    rows = [row for row in candidates.predicted if goals[row.number] is not None][:_MOST_LINES]
    places = {key: candidates.places(rows, key) for key in candidates.keys} if rows else {}
    places = {key: of_values for key, of_values in places.items() if len(of_values) > 1}
    if not places:
        return
    title = _title(name)
    lowest = min(goals[row.number] or 0.0 for row in rows)
    span = (max(goals[row.number] or 0.0 for row in rows) - lowest) or 1.0
    values: list[Mapping[str, object]] = []
    for row in rows:
        value = goals[row.number] or 0.0
        line = {"row": row.number, "name": candidates.name(row), "goal": value}
        for key, of_values in places.items():
            text = f"{candidates.value(row, key)}"
            values.append({**line, "key": key, "place": of_values[text], "text": text})
        high, text = (value - lowest) / span, figure_text(name, value)
        values.append({**line, "key": title, "place": high, "text": text})
    labels = [
        {"key": key, "place": place, "text": "not given" if text == "None" else text}
        for key, of_values in places.items()
        for text, place in of_values.items()
    ]
    scheme = {"scheme": "viridis", "reverse": way is Direction.MINIMISE}
    position = {
        "x": nominal("key", None, axis={"labelAngle": 0}, sort=[*places, title]),
        "y": quantitative("place", None, axis=None, scale={"domain": [-0.05, 1.05]}),
    }
    lines = {
        "mark": {"type": "line", "opacity": 0.55, "strokeWidth": 1.5},
        "encoding": {
            **position,
            "detail": {"field": "row"},
            "color": quantitative("goal", title, scale=scheme),
            "tooltip": tooltips(name="candidate", text="value"),
        },
    }
    texts = {
        "data": {"values": labels},
        "mark": {"type": "text", "dx": 8, "align": "left", "fontSize": 12},
        "encoding": {**position, "text": {"field": "text"}},
    }
    yield drawn_chart(
        f"Which values go with which {title}",
        f"A line for each of the {len(rows)} best candidates.",
        values,
        height=340,
        layer=[lines, texts],
    )


def _screened(candidates: Candidates) -> Iterator[Chart]:
    rows = [
        (row, screened_s, row.figures.get("step_time_s") or 0.0)
        for row in candidates.predicted
        if row.fidelity == "compiled" and (screened_s := row.figures.get("screened_step_time_s"))
    ]
    if len(rows) < 2:
        return
    unit = time_unit(max(compiled_s for _, _, compiled_s in rows))
    values = [
        {
            "name": candidates.name(row),
            "screened": unit.of(screened_s),
            "compiled": unit.of(compiled_s),
        }
        for row, screened_s, compiled_s in rows
    ]
    ends = [unit.of(time_s) for _, *times in rows for time_s in times]
    scale = {"scale": {"zero": False}}
    places = {
        "x": quantitative("screened", f"modelled ({unit.name})", **scale),
        "y": quantitative("compiled", f"compiled ({unit.name})", **scale),
    }
    line = {
        "data": {"values": [{"screened": end, "compiled": end} for end in (min(ends), max(ends))]},
        "mark": {"type": "line", "strokeDash": [6, 4], "color": PALETTE[7]},
        "encoding": places,
    }
    tooltip = tooltips(name="candidate", screened="modelled", compiled="compiled")
    circles = {
        "mark": {"type": "point", "filled": True, "size": 70},
        "encoding": {**places, "tooltip": tooltip},
    }
    yield drawn_chart(
        "Step times with the modelled and with the real compiler",
        "On the line both are the same.",
        values,
        height=280,
        layer=[line, circles],
    )


def _left_out(rows: Sequence[Row]) -> Iterator[Chart]:
    left_rows = [row for row in rows if row.status in (Status.PRUNED, Status.FAILED)]
    counts = Counter((row.status.value, _without_figures(row.reason)) for row in left_rows)
    values = [
        {"reason": reason, "status": status, "count": count}
        for (status, reason), count in counts.most_common()
    ]
    if values:
        yield bar_chart(
            "Pruned and failed, by reason",
            "; ".join(f"{row['reason']}: {row['count']}" for row in values) + ".",
            values,
            x=quantitative("count", "candidates", axis={"tickMinStep": 1}),
            y=nominal("reason", None, axis={"labelLimit": 420}),
            color=coloured("status", None, {"pruned": PALETTE[7], "failed": PALETTE[4]}),
            tooltip={"reason": "reason", "count": "candidates"},
            height=30 * len({row["reason"] for row in values}),
        )


def _without_figures(reason: str) -> str:
    """Return a reason without figures, to count similar ones together.

    >>> _without_figures("needs 91.2 GB of 80 GB")
    'needs .. GB of .. GB'
    """
    words = [".." if any(letter.isdigit() for letter in word) else word for word in reason.split()]
    return " ".join(words) or "no reason"
