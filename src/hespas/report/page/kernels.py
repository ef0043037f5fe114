"""Where the time of a step goes: an icicle of its modules, and its kernels on the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hespas.base.units import format_quantity, format_time
from hespas.prediction.figures.breakdown import NO_NAME_ROW
from hespas.prediction.figures.schema import KernelTimeRow, Peaks, RunReport
from hespas.report.headline import waiting_s
from hespas.report.page.document import (
    Cell,
    Chart,
    Section,
    Table,
    quantity_cell,
    share_cell,
    time_cell,
)
from hespas.report.page.specs import (
    PALETTE,
    coloured,
    large_unit,
    layered_chart,
    nominal,
    palette,
    quantitative,
    time_unit,
    tooltips,
)

_LETTER_PIXELS = 7
"""Blocks that are narrower than their names have no label."""
_LIMITS = {"compute": PALETTE[0], "memory": PALETTE[2], "launch": PALETTE[6], "other": PALETTE[7]}
_LEAST_INTENSITY = 0.01
"""FLOPs a byte, below which a kernel only moves data."""


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
    """Return a step as phases with their modules, and what is no computation; they add to it."""
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
        {**row, "x0": unit.of(start_s), "x1": unit.of(end_s)}
        for row, start_s, end_s in _rectangles(step, 0.0, step.time_s)
    ]
    hues = {step.name: PALETTE[7], **palette([str(row["top"]) for row in rows if row["level"]])}
    span = {"domain": [{"expr": "low"}, {"expr": "high"}], "nice": False, "zero": False}
    down = nominal("level", None, axis=None, scale={"paddingInner": 0.04})
    wide = (
        "width * (min(datum.x1, high) - max(datum.x0, low)) / (high - low) "
        f"> {_LETTER_PIXELS} * (length(datum.name) + 1)"
    )
    middle = {"calculate": "(max(datum.x0, low) + min(datum.x1, high)) / 2", "as": "middle"}
    block = {"type": "bar", "clip": True, "cursor": "pointer", "stroke": "white"}
    blocks = {
        "mark": {**block, "strokeWidth": 0.5, "height": {"band": 1}},
        "encoding": {
            "x": quantitative("x0", f"time ({unit.name})", scale=span),
            "x2": {"field": "x1"},
            "y": down,
            "color": {**coloured("top", None, hues), "legend": {"values": list(hues)[1:]}},
            "tooltip": tooltips(name="what", text="time", share="of the step", path="in"),
        },
    }
    names = {
        "transform": [{"filter": wide}, middle],
        "mark": {"type": "text", "clip": True, "fontSize": 12, "color": "black", "tooltip": None},
        "encoding": {
            "x": quantitative("middle", None, scale=span),
            "y": down,
            "text": {"field": "name"},
        },
    }
    return layered_chart(
        f"By phase and module, in {unit.name}",
        "From top to bottom: the step, its phases, and the modules of each. "
        "Click a block to see what is inside of it.",
        rows,
        height=30 * (1 + max(int(str(row["level"])) for row in rows)),
        layer=[blocks, names],
        params=[{"name": "low", "value": 0}, {"name": "high", "value": unit.of(step.time_s)}],
        usermeta={"drill": True},
    )


def _rectangles(
    block: Block, start_s: float, step_s: float, above: tuple[str, ...] = ()
) -> Iterator[tuple[dict[str, object], float, float]]:
    if block.time_s <= 0:
        return
    row: dict[str, object] = {
        "name": block.name,
        "path": " / ".join(above),
        "level": len(above),
        "top": above[1] if len(above) > 1 else block.name,
        "text": format_time(block.time_s),
        "share": f"{100 * block.time_s / step_s:.1f} %",
    }
    yield row, start_s, start_s + block.time_s
    inside = list(block.inside.values())
    if above:
        inside.sort(key=lambda inner: -inner.time_s)
    for inner in inside:
        yield from _rectangles(inner, start_s, step_s, (*above, block.name))
        start_s += inner.time_s


def kernel_sections(report: RunReport) -> Iterator[Section]:
    """Yield what is known of kernels; nothing of a report without them."""
    single = [
        row for row in report.kernels if row.kind != "others" and row.time_s > 0 and row.count > 0
    ]
    if not single:
        return
    parts: list[Chart | Table] = []
    moving = [row for row in single if row.bytes > 0]
    arithmetic = [row for row in moving if row.flops / row.bytes >= _LEAST_INTENSITY]
    if report.peaks is not None and arithmetic:
        parts.append(_roofline(arithmetic, report.peaks))
    if report.peaks is not None and moving:
        parts.append(_bandwidths(moving, report.peaks))
    yield Section(title="Kernels", parts=(*parts, _table(report)))


def _point(row: KernelTimeRow, **more: object) -> dict[str, object]:
    return {
        "name": row.name,
        "kind": row.kind,
        "path": row.path,
        "limit": row.limit,
        "time": row.time_s,
        "text": f"{format_time(row.time_s)} in {row.count:.6g}",
        **more,
    }


def _circles(x: object, y: object) -> dict[str, object]:
    return {
        "mark": {"type": "point", "filled": True, "opacity": 0.75},
        "encoding": {
            "x": x,
            "y": y,
            "size": quantitative("time", None, legend=None, scale={"range": [12, 900]}),
            "color": coloured("limit", "limited by", _LIMITS),
            "tooltip": tooltips(
                name="kernel",
                kind="kind",
                path="module",
                text="time",
                limit="limited by",
                rate="rate",
            ),
        },
    }


def _roofline(kernels: Sequence[KernelTimeRow], peaks: Peaks) -> Chart:
    rows = [
        _point(
            row,
            intensity=_digits(row.flops / row.bytes),
            flops=_digits(row.flops / row.time_s),
            rate=format_quantity(row.flops / row.time_s, "FLOP/s"),
        )
        for row in kernels
    ]
    intensities = [row.flops / row.bytes for row in kernels]
    low, high = min(*intensities, 0.1), max(*intensities, 1e3)
    types: dict[float, list[str]] = {}
    for name, rate in peaks.flops_per_s.items():
        types.setdefault(rate, []).append(name)
    roofs = [
        {
            "type": ", ".join(names),
            "intensity": _digits(at),
            "flops": _digits(min(at * peaks.bytes_per_s, rate)),
        }
        for rate, names in sorted(types.items(), reverse=True)
        for at in (low, rate / peaks.bytes_per_s, high)
    ]
    axis = {"scale": {"type": "log"}, "axis": {"format": "~s"}}
    across = quantitative("intensity", "arithmetic intensity (FLOP/B)", **axis)
    up = quantitative("flops", "rate (FLOP/s)", **axis)
    lines = {
        "data": {"values": roofs},
        "mark": {"type": "line", "strokeWidth": 2},
        "encoding": {
            "x": across,
            "y": up,
            "strokeDash": {"field": "type", "type": "nominal", "title": "peak of"},
            "stroke": {"value": PALETTE[7]},
        },
    }
    return layered_chart(
        "Kernels on the roofline",
        "Each circle is a group of equal kernels, its area the time that they take together. "
        "The lines are what memory and the peak rate of each type allow. Kernels that only "
        "move data are in the next chart.",
        rows,
        height=360,
        layer=[lines, _circles(across, up)],
    )


def _bandwidths(kernels: Sequence[KernelTimeRow], peaks: Peaks) -> Chart:
    unit = large_unit(peaks.bytes_per_s, "B/s")
    rows = [
        _point(
            row,
            bytes=_digits(row.bytes / row.count),
            reached=unit.of(row.bytes / row.time_s),
            rate=format_quantity(row.bytes / row.time_s, "B/s"),
        )
        for row in kernels
    ]
    peak = {
        "data": {"values": [{"reached": unit.of(peaks.bytes_per_s)}]},
        "mark": {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 2},
        "encoding": {"y": quantitative("reached", None)},
    }
    axis = {"scale": {"type": "log"}, "axis": {"format": "~s"}}
    across = quantitative("bytes", "bytes of one launch", **axis)
    up = quantitative("reached", f"bandwidth ({unit.name})")
    return layered_chart(
        "Memory bandwidth that kernels reach",
        "By what one launch reads and writes; areas are times. The dashed line is the "
        f"memory's peak, {format_quantity(peaks.bytes_per_s, 'B/s')}; what lies above it is "
        "served by caches.",
        rows,
        height=300,
        layer=[peak, _circles(across, up)],
    )


def _digits(value: float) -> float:
    return float(f"{value:.5g}")


def _table(report: RunReport) -> Table:
    numbers = ("Launches", "Time", "Share", "Arithmetic", "Memory")
    rows = [
        (
            *(row.name, row.kind, row.path, f"{row.count:.6g}"),
            time_cell(row.time_s),
            share_cell(row.time_s / report.compute_s if report.compute_s else None),
            _rate(row.flops, row.time_s, "FLOP/s"),
            _rate(row.bytes, row.time_s, "B/s"),
            row.limit,
        )
        for row in report.kernels
    ]
    return Table(
        caption="Kernels, longest first",
        columns=("Kernel", "Kind", "Module", *numbers, "Limited by"),
        rows=rows,
        numbers=numbers,
        has_filter=True,
    )


def _rate(amount: float, time_s: float, unit: str) -> Cell:
    rate = amount / time_s if time_s > 0 and amount > 0 else None
    return quantity_cell(rate, unit, unknown="")
