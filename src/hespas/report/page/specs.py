"""Pieces of Vega-Lite specifications that charts share: hues, axes, units, marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hespas.report.page.document import Chart

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
"""A name, which nothing fetches."""
PALETTE = (
    "#3b78c3",
    "#d9822b",
    "#2f9e6e",
    "#b05bb5",
    "#c9463d",
    "#8a6d3b",
    "#1fa2b8",
    "#7d8790",
    "#a3a632",
    "#e07ba1",
)
"""Told apart on white and on near black, and by most who see fewer hues."""
OF_PARTS = {
    "arithmetic": PALETTE[0],
    "memory": PALETTE[2],
    "launches": PALETTE[6],
    "exposed communication": PALETTE[1],
    "waiting for stages": PALETTE[9],
    "exposed host transfers": PALETTE[5],
    "stragglers": PALETTE[4],
    "other": PALETTE[7],
}
OF_PHASES = {
    "forward": PALETTE[0],
    "recomputation": PALETTE[3],
    "backward": PALETTE[2],
    "optimiser": PALETTE[4],
    "other": PALETTE[7],
    "(no name)": PALETTE[8],
    "compute": PALETTE[5],
    "communication": PALETTE[6],
}
"""The parts and the phases of a step, each with the same colour in all charts."""
Values = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit for an axis: ``value / size`` is the number to draw."""

    name: str
    size: float

    def of(self, value: float) -> float:
        """Return a value in this unit, to six digits: a chart shows no more."""
        return float(f"{value / self.size:.6g}")


_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_LARGE = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def time_unit(longest_s: float) -> Unit:
    """Return the unit in which a time is at least 1.

    >>> time_unit(0.357).name, time_unit(2.0).name
    ('ms', 's')
    """
    found = next((each for each in _TIMES if longest_s >= each[1]), _TIMES[-1])
    return Unit(name=found[0], size=found[1])


def large_unit(largest: float, unit: str) -> Unit:
    """Return a unit with its prefix in which an amount is at least 1.

    >>> large_unit(3e12, "FLOP/s").name
    'TFLOP/s'
    """
    prefix, size = next((each for each in _LARGE if largest >= each[1]), ("", 1.0))
    return Unit(name=f"{prefix}{unit}", size=size)


def specification(values: Values, *, height: int, **rest: Any) -> dict[str, Any]:
    """Return a chart as wide as its place."""
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": list(values)},
        **rest,
    }


def quantitative(field: str, title: str | None, **more: Any) -> dict[str, Any]:
    """Return an encoding by a number."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def across(field: str, unit: Unit, **more: Any) -> dict[str, Any]:
    """Return a horizontal encoding by time, which ends where the values do."""
    scale = {"nice": False, **more.pop("scale", {})}
    return quantitative(field, f"time ({unit.name})", scale=scale, **more)


def nominal(field: str, title: str | None, **more: Any) -> dict[str, Any]:
    """Return an encoding by a name, in the order of the rows unless ``sort`` is given."""
    return {"field": field, "type": "nominal", "title": title, "sort": None, **more}


def coloured(field: str, title: str | None, colour_of: Mapping[str, str]) -> dict[str, Any]:
    """Return an encoding of names by given hues."""
    scale = {"domain": list(colour_of), "range": list(colour_of.values())}
    return nominal(field, title, scale=scale)


def palette(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each name: its own, or one of all for a name that has none.

    >>> palette(["backward", "exposed communication", "backward"])
    {'backward': '#2f9e6e', 'exposed communication': '#d9822b'}
    """
    own = OF_PARTS | OF_PHASES
    distinct = list(dict.fromkeys(names))
    return {name: own.get(name, PALETTE[at % len(PALETTE)]) for at, name in enumerate(distinct)}


def tooltips(**titles: str) -> list[dict[str, str]]:
    """Return what is shown of a mark: fields with their titles."""
    return [{"field": field, "title": title} for field, title in titles.items()]


def bar_chart(
    title: str,
    description: str,
    rows: Values,
    *,
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    tooltip: Mapping[str, str],
    height: int,
    mark: Any = "bar",
    **encoding: Any,
) -> Chart:
    """Return rows as bars, stacked by their ``order``; ``tooltip`` has fields with titles."""
    if rows and "order" in rows[0]:
        encoding["order"] = {"field": "order"}
    encoding |= {"x": x, "y": y, "tooltip": tooltips(**tooltip)}
    spec = specification(rows, height=height, mark=mark, encoding=encoding)
    return Chart(title=title, description=description, specification=spec)


def layered_chart(
    title: str, description: str, rows: Values, *, height: int, layer: Sequence[Any], **rest: Any
) -> Chart:
    """Return marks over each other; a layer may have ``data`` of its own."""
    spec = specification(rows, height=height, layer=list(layer), **rest)
    return Chart(title=title, description=description, specification=spec)


def capacity_rule(along: str, size: float, title: str = "capacity") -> dict[str, Any]:
    """Return a dashed line at a size, across the axis ``x`` or ``y``."""
    return {
        "data": {"values": [{"bytes": size, "text": title}]},
        "mark": {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 2},
        "encoding": {along: quantitative("bytes", None), "tooltip": tooltips(text="line")},
    }
