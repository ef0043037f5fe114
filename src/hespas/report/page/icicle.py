"""A step by phase and module as blocks under blocks, each as wide as it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hespas.base.units import format_time
from hespas.prediction.figures.breakdown import NO_NAME_ROW
from hespas.prediction.figures.schema import RunReport
from hespas.report.headline import waiting_s
from hespas.report.page.document import Chart
from hespas.report.page.specs import (
    PALETTE,
    nominal,
    palette,
    quantitative,
    specification,
    time_unit,
    tooltips,
)

_LETTER_PIXELS = 7
"""Blocks that are narrower than their names have no label."""


@dataclass(slots=True, kw_only=True)
class Block:
    """A named time, divided into others; what they leave over is its own."""

    name: str
    time_s: float = 0.0
    inside: dict[str, Block] = field(default_factory=dict[str, "Block"])

    def add(self, path: tuple[str, ...], time_s: float) -> None:
        """Add a time to this block and to those on the path under it."""
        self.time_s += time_s
        if path:
            inner = self.inside.setdefault(path[0], Block(name=path[0]))
            inner.add(path[1:], time_s)


def step_blocks(report: RunReport) -> Block:
    """Return a step: its phases with their modules, and what is no computation; they add to it.

    Modules whose phase has no name stand under ``(no name)``.
    """
    step = Block(name="step")
    for row in report.layers:
        named_s = sum(row.phases.values())
        modules = tuple(row.path.split("/"))
        for phase, time_s in row.phases.items():
            step.add((phase, *modules), time_s)
        if row.time_s > named_s:
            step.add((NO_NAME_ROW, *modules), row.time_s - named_s)
    waits_s = waiting_s(report)
    others = {
        "exposed communication": report.exposed_communication_s - waits_s,
        "waiting for stages": waits_s,
        "exposed host transfers": report.exposed_host_transfer_s,
        "stragglers": max(0.0, report.straggler_s),
    }
    for name, time_s in others.items():
        if time_s > 0:
            step.add((name,), time_s)
    return step


def icicle_chart(report: RunReport) -> Chart:
    """Return the step as an icicle: a click makes a block as wide as the chart."""
    step = step_blocks(report)
    unit = time_unit(step.time_s)
    rows = [
        {**row, "x0": unit.of(float(str(row["x0"]))), "x1": unit.of(float(str(row["x1"])))}
        for row in _rectangles(step, 0.0, step.time_s)
    ]
    span = {"domain": [{"expr": "low"}, {"expr": "high"}], "nice": False, "zero": False}
    tops = [str(row["top"]) for row in rows if row["level"]]
    hues = {step.name: PALETTE[7], **palette(tops)}
    wide = (
        "width * (min(datum.x1, high) - max(datum.x0, low)) / (high - low) "
        f"> {_LETTER_PIXELS} * (length(datum.name) + 1)"
    )
    place = quantitative("x0", f"time ({unit.name})", scale=span)
    down = nominal("level", None, axis=None, scale={"paddingInner": 0.04})
    middle = {"calculate": "(max(datum.x0, low) + min(datum.x1, high)) / 2", "as": "middle"}
    layers = [
        {
            "mark": {
                "type": "bar",
                "clip": True,
                "cursor": "pointer",
                "stroke": "white",
                "strokeWidth": 0.5,
                "height": {"band": 1},
            },
            "encoding": {
                "x": place,
                "x2": {"field": "x1"},
                "y": down,
                "color": nominal(
                    "top",
                    None,
                    scale={"domain": list(hues), "range": list(hues.values())},
                    legend={"values": list(hues)[1:]},
                ),
                "tooltip": tooltips(name="what", text="time", share="of the step", path="in"),
            },
        },
        {
            "transform": [{"filter": wide}, middle],
            "mark": {
                "type": "text",
                "clip": True,
                "fontSize": 12,
                "color": "black",
                "tooltip": None,
            },
            "encoding": {
                "x": quantitative("middle", None, scale=span),
                "y": down,
                "text": {"field": "name"},
            },
        },
    ]
    return Chart(
        title=f"By phase and module, in {unit.name}",
        description=(
            "From top to bottom: the step, its phases, and the modules of each. "
            "Click a block to see what is inside of it."
        ),
        specification=specification(
            rows,
            height=30 * (1 + max(int(str(row["level"])) for row in rows)),
            params=[{"name": "low", "value": 0}, {"name": "high", "value": unit.of(step.time_s)}],
            layer=layers,
            usermeta={"drill": True},
        ),
    )


def _rectangles(
    block: Block, start_s: float, step_s: float, above: tuple[str, ...] = ()
) -> Iterator[dict[str, object]]:
    if block.time_s <= 0:
        return
    yield {
        "name": block.name,
        "path": " / ".join(above),
        "level": len(above),
        "top": above[1] if len(above) > 1 else block.name,
        "x0": start_s,
        "x1": start_s + block.time_s,
        "text": format_time(block.time_s),
        "share": f"{100 * block.time_s / step_s:.1f} %",
    }
    inside = list(block.inside.values())
    if above:
        inside.sort(key=lambda each: -each.time_s)
    at = start_s
    for inner in inside:
        yield from _rectangles(inner, at, step_s, (*above, block.name))
        at += inner.time_s
