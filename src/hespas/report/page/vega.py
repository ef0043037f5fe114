"""Pieces of Vega-Lite charts: palettes, units, axes and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hespas.base.frozen import frozen

Specification = Mapping[str, Any]
"""A Vega-Lite specification: https://vega.github.io/schema/vega-lite/v6.json."""


@frozen
class Chart:
    """A chart with its title and its description in words."""

    title: str
    description: str
    specification: Specification


WIDTH = 720
"""The width of a picture without axes, in pixels; page charts fill the window."""
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
"""A palette that most readers, colour-blind ones too, distinguish on white and near black."""
PART_HUES = {
    "arithmetic": PALETTE[0],
    "memory": PALETTE[2],
    "launches": PALETTE[6],
    "exposed communication": PALETTE[1],
    "waiting for stages": PALETTE[9],
    "exposed host transfers": PALETTE[5],
    "stragglers": PALETTE[4],
    "other": PALETTE[7],
}


PHASE_HUES = {
    "forward": PALETTE[0],
    "recomputation": PALETTE[3],
    "backward": PALETTE[2],
    "optimiser": PALETTE[4],
    "other": PALETTE[7],
    "(no name)": PALETTE[8],
    "compute": PALETTE[5],
    "communication": PALETTE[6],
}
"""The colour of each part and phase of a step, the same in all charts."""
Values = Sequence[Mapping[str, Any]]


@frozen
class Unit:
    """A unit for an axis, ``size`` in SI."""

    name: str
    size: float

    def of(self, value: float) -> float:
        """Return a value in this unit, to six digits."""
        return float(f"{value / self.size:.6g}")


_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_LARGE = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def time_unit(longest_s: float) -> Unit:
    """Return the largest unit that a time reaches.

    >>> time_unit(0.357).name, time_unit(2.0).name
    ('ms', 's')
    """
    unit = next((candidate for candidate in _TIMES if longest_s >= candidate[1]), _TIMES[-1])
    return Unit(name=unit[0], size=unit[1])


def large_unit(largest: float, unit: str) -> Unit:
    """Return the unit with the largest prefix an amount reaches.

    >>> large_unit(3e12, "FLOP/s").name
    'TFLOP/s'
    """
    prefix, size = next((candidate for candidate in _LARGE if largest >= candidate[1]), ("", 1.0))
    return Unit(name=f"{prefix}{unit}", size=size)


def drawn_chart(
    title: str, description: str, rows: Values, *, height: int, **members: Any
) -> Chart:
    """Return a chart of rows, as wide as its container.

    ``members`` of the specification are a mark and its encoding, or layers of these.
    """
    specification = {
        "$schema": SCHEMA,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": list(rows)},
        **members,
    }
    return Chart(title=title, description=description, specification=specification)


def quantitative(field: str, title: str | None, **more: Any) -> dict[str, Any]:
    """Return an encoding by a number."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def across(field: str, unit: Unit, **more: Any) -> dict[str, Any]:
    """Return a horizontal encoding by time, ending at the maximum."""
    return quantitative(field, f"time ({unit.name})", scale={"nice": False}, **more)


def nominal(field: str, title: str | None, **more: Any) -> dict[str, Any]:
    """Return an encoding by name, in row order by default."""
    return {"field": field, "type": "nominal", "title": title, "sort": None, **more}


def coloured(field: str, title: str | None, colour_of: Mapping[str, str]) -> dict[str, Any]:
    """Return an encoding of names by given hues."""
    scale = {"domain": list(colour_of), "range": list(colour_of.values())}
    return nominal(field, title, scale=scale)


def palette(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each name, fixed or of `PALETTE`.

    >>> palette(["backward", "exposed communication", "backward"])
    {'backward': '#2f9e6e', 'exposed communication': '#d9822b'}
    """
    fixed_hues = PART_HUES | PHASE_HUES
    distinct = list(dict.fromkeys(names))
    return {
        name: fixed_hues.get(name, PALETTE[number % len(PALETTE)])
        for number, name in enumerate(distinct)
    }


def tooltips(**titles: str) -> list[dict[str, str]]:
    """Return the tooltip of a mark: fields with their titles."""
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
    """Return a bar chart of rows, stacked by their ``order``.

    ``tooltip`` maps fields to their titles.
    """
    if rows and "order" in rows[0]:
        encoding["order"] = {"field": "order"}
    encoding |= {"x": x, "y": y, "tooltip": tooltips(**tooltip)}
    return drawn_chart(title, description, rows, height=height, mark=mark, encoding=encoding)


def capacity_rule(along: str, size: float) -> dict[str, Any]:
    """Return a dashed line at a size along an axis."""
    return {
        "data": {"values": [{"bytes": size, "text": "capacity"}]},
        "mark": {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 2},
        "encoding": {along: quantitative("bytes", None), "tooltip": tooltips(text="line")},
    }
