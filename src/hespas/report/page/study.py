"""The page of a study: its best candidates, how they trade off, and what became of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hespas.report.page.candidates import Candidates, candidates_of
from hespas.report.page.document import Cards, Cell, Chart, Page, Section, Table
from hespas.report.page.scaling import scaling_charts
from hespas.report.page.specs import (
    PALETTE,
    Unit,
    across,
    coloured,
    large_unit,
    nominal,
    quantitative,
    specification,
    time_unit,
    tooltips,
)
from hespas.study.goal import METRICS, Direction, Goal, fronts
from hespas.study.rows import Row, Status, figure_text, pinned_text
from hespas.study.run import Studied

_MOST_BARS = 30
_MOST_LINES = 120
_OF_STATUS = {
    "compiled": PALETTE[0],
    "fused": PALETTE[2],
    "library": PALETTE[5],
    "exported": PALETTE[6],
    "screened": PALETTE[7],
}
_OF_FRONT = {"on the front": PALETTE[1], "behind it": PALETTE[7]}


def study_page(studied: Studied) -> Page:
    """Return the page of a study."""
    found = candidates_of(studied.rows)
    title = studied.study.title or "A study"
    sections = (
        Section(title="The answer", text=_best(studied, found), parts=tuple(_answer(studied))),
        Section(title="Trade-offs", parts=tuple(_trade_offs(studied, found))),
        Section(title="Scaling", parts=tuple(scaling_charts(found))),
        Section(title="All candidates", parts=(_ranked(studied, found),)),
        Section(title="What the steps consist of", parts=tuple(_bars(found))),
        Section(title="By key", parts=tuple(_parallel(studied, found))),
        Section(title="Screened and compiled", parts=tuple(_screened(found))),
        Section(title="What was left out", parts=tuple(_left_out(studied.rows))),
    )
    return Page(title=title, subtitle=f"Goal: {studied.study.goal.text}", sections=sections)


def _answer(studied: Studied) -> Iterator[Cards | Table]:
    rows = studied.rows
    counts = Counter(row.status for row in rows)
    listed = ", ".join(f"{counts[each]} {each.value}" for each in Status if counts[each])
    figures = [("Candidates", f"{len(rows)}", listed)]
    best = studied.best
    if best is not None:
        figures += [
            (_title(name), figure_text(name, value), "of the best")
            for name in _shown_figures(studied)
            if (value := best.figures.get(name)) is not None
        ]
    yield Cards(figures=tuple(figures))
    common = pinned_text(rows)
    if common:
        yield Table(
            caption="What all candidates have in common",
            columns=("Key", "Value"),
            rows=tuple(
                (Cell(text=key), Cell(text=text))
                for key, text in candidates_of(rows).pinned.items()
            ),
        )


def _best(studied: Studied, found: Candidates) -> str:
    best = studied.best
    return "" if best is None else f"Best: {found.name(best)} ({best.fidelity})."


def _shown_figures(studied: Studied) -> list[str]:
    """Return the figures of tables: those of the goal first."""
    goal = [name for name, _ in studied.study.goal.metrics]
    usual = ("step_time_s", "tokens_per_s_per_device", "mfu", "peak_memory_bytes")
    return list(dict.fromkeys((*goal, *usual)))


def _title(name: str) -> str:
    """Return a figure's name as people read it.

    >>> _title("tokens_per_s_per_device"), _title("peak_memory_bytes")
    ('tokens/s/device', 'peak memory')
    """
    words = name.removesuffix("_bytes").removesuffix("_j")
    if words.endswith("_s") and not words.endswith("per_s"):
        words = words.removesuffix("_s")
    return words.replace("_per_", "/").replace("_", " ")


def _unit(name: str, values: Sequence[float]) -> Unit:
    """Return the unit in which an axis of a figure is drawn."""
    if name.endswith("_bytes"):
        return large_unit(max(values), "B")
    if name.endswith("_s") and not name.endswith("per_s"):
        return time_unit(max(values))
    return large_unit(max(values), "")


def _with_unit(name: str, unit: Unit) -> str:
    """Return the title of an axis.

    >>> _with_unit("peak_memory_bytes", large_unit(7e10, "B")), _with_unit("mfu", large_unit(1, ""))
    ('peak memory (GB)', 'mfu')
    """
    return f"{_title(name)} ({unit.name})" if unit.name else _title(name)


def _trade_offs(studied: Studied, found: Candidates) -> Iterator[Chart]:
    """Yield the goal's two figures against each other, or the goal's and the memory."""
    names = [name for name, _ in studied.study.goal.metrics]
    names += [each for each in ("peak_memory_bytes", "step_time_s") if each not in names]
    up, along = names[:2]
    rows = [
        row
        for row in found.predicted
        if row.figures.get(up) is not None and row.figures.get(along) is not None
    ]
    if len(rows) < 2:
        return
    goal = Goal(metrics=tuple((name, METRICS[name][0]) for name in (up, along)))
    front = fronts([goal.keys(row.figures) for row in rows])
    units = {name: _unit(name, [row.figures[name] or 0.0 for row in rows]) for name in (along, up)}
    values = [
        {
            "name": found.name(row),
            "x": units[along].of(row.figures[along] or 0.0),
            "y": units[up].of(row.figures[up] or 0.0),
            "x_text": figure_text(along, row.figures[along] or 0.0),
            "y_text": figure_text(up, row.figures[up] or 0.0),
            "front": "behind it" if rank else "on the front",
            "status": row.fidelity or row.status.value,
            "link": f"#{found.anchor(row)}",
        }
        for row, rank in zip(rows, front, strict=True)
    ]
    axis = {"axis": {"labelOverlap": True, "tickCount": 8}, "scale": {"zero": False}}
    places = {
        "x": quantitative("x", _with_unit(along, units[along]), **axis),
        "y": quantitative("y", _with_unit(up, units[up]), **axis),
    }
    best = sum(not rank for rank in front)
    yield Chart(
        title=f"{_title(up)} against {_title(along)}",
        description=(
            f"{best} of {len(rows)} candidates are better than every other in one of the two: the "
            "line. Click a candidate to find it in the table."
        ),
        specification=specification(
            values,
            height=380,
            layer=[
                {
                    "transform": [{"filter": "datum.front === 'on the front'"}],
                    "mark": {"type": "line", "strokeWidth": 1.5, "color": PALETTE[1]},
                    "encoding": {**places, "order": {"field": "x"}},
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 70, "cursor": "pointer"},
                    "encoding": {
                        **places,
                        "color": coloured("front", None, _OF_FRONT),
                        "shape": nominal("status", None),
                        "href": {"field": "link"},
                        "tooltip": [
                            *tooltips(name="candidate", status="status"),
                            {"field": "y_text", "title": _title(up)},
                            {"field": "x_text", "title": _title(along)},
                        ],
                    },
                },
            ],
        ),
    )


def _ranked(studied: Studied, found: Candidates) -> Table:
    names = [
        name
        for name in _shown_figures(studied)
        if any(row.figures.get(name) is not None for row in studied.rows)
    ]
    rows = tuple(
        (
            Cell(text=f"{rank}", anchor=found.anchor(row)),
            *(_key_cell(found.value(row, key)) for key in found.keys),
            Cell(text=row.fidelity if row.status is Status.DONE else row.status.value),
            *(_figure_cell(name, row.figures.get(name)) for name in names),
            Cell(text=row.reason or ("does not fit" if row.fits is False else "")),
        )
        for rank, row in enumerate(studied.rows, start=1)
    )
    titles = [_title(name) for name in names]
    return Table(
        caption="Candidates, best first",
        columns=("Rank", *found.keys, "Status", *titles, "Remark"),
        rows=rows,
        numbers=frozenset({"Rank", *titles}),
        has_filter=True,
    )


def _key_cell(value: object) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(text=f"{value}", sort_by=value)
    return Cell(text="" if value is None else f"{value}")


def _figure_cell(name: str, value: float | None) -> Cell:
    return (
        Cell(text="", sort_by="")
        if value is None
        else Cell(text=figure_text(name, value), sort_by=value)
    )


def _bars(found: Candidates) -> Iterator[Chart]:
    """Yield the first candidates as bars of computation, exposed communication and the rest."""
    rows = [row for row in found.predicted if row.figures.get("compute_s") is not None]
    shown = rows[:_MOST_BARS]
    if not shown:
        return
    unit = time_unit(max(row.figures.get("step_time_s") or 0.0 for row in shown))
    values = [
        {
            "name": found.name(row),
            "part": part,
            "time": unit.of(time_s),
            "text": figure_text("step_time_s", time_s),
            "order": order,
        }
        for row in shown
        for order, (part, time_s) in enumerate(_parts(row).items())
        if time_s > 0
    ]
    hues = {"computation": PALETTE[0], "exposed communication": PALETTE[1], "other": PALETTE[7]}
    others = f" The first {len(shown)} of {len(rows)}." if len(rows) > len(shown) else ""
    yield Chart(
        title=f"Computation and exposed communication, in {unit.name}",
        description=f"Candidates from the best on.{others}",
        specification=specification(
            values,
            height=26 * len(shown),
            mark="bar",
            encoding={
                "y": nominal("name", None, axis={"labelLimit": 320}),
                "x": across("time", unit, stack="zero"),
                "color": coloured("part", None, hues),
                "order": {"field": "order"},
                "tooltip": tooltips(name="candidate", part="part", text="time"),
            },
        ),
    )


def _parts(row: Row) -> dict[str, float]:
    compute_s = row.figures.get("compute_s") or 0.0
    exposed_s = row.figures.get("exposed_communication_s") or 0.0
    step_s = row.figures.get("step_time_s") or 0.0
    return {
        "computation": compute_s,
        "exposed communication": exposed_s,
        "other": max(0.0, step_s - compute_s - exposed_s),
    }


def _parallel(studied: Studied, found: Candidates) -> Iterator[Chart]:
    """Yield lines through the values of keys and the goal's figure, one for each candidate."""
    name, way = studied.study.goal.metrics[0]
    rows = [row for row in found.predicted if row.figures.get(name) is not None][:_MOST_LINES]
    keys = [key for key in found.keys if len({f"{found.value(row, key)}" for row in rows}) > 1]
    if not keys:
        return
    axes = [*keys, _title(name)]
    places = {key: found.places(rows, key) for key in keys}
    lowest = min(row.figures[name] or 0.0 for row in rows)
    span = (max(row.figures[name] or 0.0 for row in rows) - lowest) or 1.0
    values: list[Mapping[str, object]] = []
    for row in rows:
        value = row.figures[name] or 0.0
        high = (value - lowest) / span
        common = {"row": row.number, "name": found.name(row), "goal": value}
        for key in keys:
            text = f"{found.value(row, key)}"
            values.append({**common, "key": key, "place": places[key][text], "text": text})
        values.append({**common, "key": axes[-1], "place": high, "text": figure_text(name, value)})
    labels = [
        {"key": key, "place": place, "text": "not given" if text == "None" else text}
        for key in keys
        for text, place in places[key].items()
    ]
    scheme = {"scheme": "viridis", "reverse": way is Direction.MINIMISE}
    position = {
        "x": {**nominal("key", None, axis={"labelAngle": 0}), "sort": axes},
        "y": quantitative("place", None, axis=None, scale={"domain": [-0.05, 1.05]}),
    }
    yield Chart(
        title=f"Which values go with which {_title(name)}",
        description=f"A line for each of the {len(rows)} best candidates.",
        specification=specification(
            values,
            height=340,
            layer=[
                {
                    "mark": {"type": "line", "opacity": 0.55, "strokeWidth": 1.5},
                    "encoding": {
                        **position,
                        "detail": {"field": "row"},
                        "color": quantitative("goal", _title(name), scale=scheme),
                        "tooltip": tooltips(name="candidate", text="value"),
                    },
                },
                {
                    "data": {"values": labels},
                    "mark": {"type": "text", "dx": 8, "align": "left", "fontSize": 12},
                    "encoding": {**position, "text": {"field": "text"}},
                },
            ],
        ),
    )


def _screened(found: Candidates) -> Iterator[Chart]:
    """Yield what the model of the compiler said of candidates that were compiled."""
    rows = [
        row
        for row in found.predicted
        if row.fidelity == "compiled" and row.figures.get("screened_step_time_s")
    ]
    if len(rows) < 2:
        return
    unit = time_unit(max(row.figures.get("step_time_s") or 0.0 for row in rows))
    values = [
        {
            "name": found.name(row),
            "screened": unit.of(row.figures.get("screened_step_time_s") or 0.0),
            "compiled": unit.of(row.figures.get("step_time_s") or 0.0),
        }
        for row in rows
    ]
    ends = [float(str(each[name])) for each in values for name in ("screened", "compiled")]
    line = [{"screened": at, "compiled": at} for at in (min(ends), max(ends))]
    scale = {"scale": {"zero": False}}
    places = {
        "x": quantitative("screened", f"modelled ({unit.name})", **scale),
        "y": quantitative("compiled", f"compiled ({unit.name})", **scale),
    }
    yield Chart(
        title="Step times with the modelled and with the real compiler",
        description="On the line both are the same.",
        specification=specification(
            values,
            height=280,
            layer=[
                {
                    "data": {"values": line},
                    "mark": {"type": "line", "strokeDash": [6, 4], "color": PALETTE[7]},
                    "encoding": places,
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 70},
                    "encoding": {
                        **places,
                        "tooltip": tooltips(
                            name="candidate", screened="modelled", compiled="compiled"
                        ),
                    },
                },
            ],
        ),
    )


def _left_out(rows: Sequence[Row]) -> Iterator[Chart | Table]:
    left = [row for row in rows if row.status in (Status.PRUNED, Status.FAILED)]
    if not left:
        return
    counts = Counter((row.status.value, _general(row.reason)) for row in left)
    values = [
        {"reason": reason, "status": status, "count": count}
        for (status, reason), count in counts.most_common()
    ]
    yield Chart(
        title="Pruned and failed, by reason",
        description="; ".join(f"{row['reason']}: {row['count']}" for row in values) + ".",
        specification=specification(
            values,
            height=30 * len({row["reason"] for row in values}),
            mark="bar",
            encoding={
                "y": nominal("reason", None, axis={"labelLimit": 420}),
                "x": quantitative("count", "candidates", axis={"tickMinStep": 1}),
                "color": coloured("status", None, {"pruned": PALETTE[7], "failed": PALETTE[4]}),
                "tooltip": tooltips(reason="reason", count="candidates"),
            },
        ),
    )


def _general(reason: str) -> str:
    """Return a reason without its figures, so that those that are alike count as one.

    >>> _general("needs 91.2 GB of 80 GB")
    'needs .. GB of .. GB'
    """
    words = [".." if any(each.isdigit() for each in word) else word for word in reason.split()]
    return " ".join(words) or "no reason"
