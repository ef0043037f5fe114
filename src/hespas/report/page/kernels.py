"""Kernels on the roofline, by the bandwidth that they reach, and as a table."""

from __future__ import annotations

from collections.abc import Iterator

from hespas.base.units import format_quantity, format_time
from hespas.prediction.figures.schema import KernelTimeRow, Peaks, RunReport
from hespas.report.page.document import Cell, Chart, Section, Table
from hespas.report.page.specs import (
    PALETTE,
    coloured,
    large_unit,
    quantitative,
    specification,
    tooltips,
)

_LIMITS = {"compute": PALETTE[0], "memory": PALETTE[2], "launch": PALETTE[6], "other": PALETTE[7]}
_LEAST_INTENSITY = 0.01
"""FLOPs a byte, below which a kernel only moves data."""


def kernel_sections(report: RunReport) -> Iterator[Section]:
    """Yield what is known of kernels; nothing of a report without them."""
    named = [row for row in report.kernels if row.kind != "others"]
    single = [row for row in named if row.time_s > 0 and row.count > 0]
    if not single:
        return
    parts: list[Chart | Table] = []
    if report.peaks is not None:
        arithmetic = [
            row for row in single if row.bytes > 0 and row.flops / row.bytes >= _LEAST_INTENSITY
        ]
        if arithmetic:
            parts.append(_roofline(arithmetic, report.peaks))
        moving = [row for row in single if row.bytes > 0]
        if moving:
            parts.append(_bandwidths(moving, report.peaks))
    parts.append(_table(report))
    yield Section(title="Kernels", parts=tuple(parts))


def _common(row: KernelTimeRow) -> dict[str, object]:
    return {
        "name": row.name,
        "kind": row.kind,
        "path": row.path,
        "limit": row.limit,
        "time": row.time_s,
        "text": f"{format_time(row.time_s)} in {row.count:.6g}",
    }


def _encoding(size: str = "time") -> dict[str, object]:
    return {
        "size": quantitative(size, None, legend=None, scale={"range": [12, 900]}),
        "color": coloured("limit", "limited by", _LIMITS),
        "tooltip": tooltips(
            name="kernel", kind="kind", path="module", text="time", limit="limited by", rate="rate"
        ),
    }


def _roofline(kernels: list[KernelTimeRow], peaks: Peaks) -> Chart:
    rows = [
        {
            **_common(row),
            "intensity": _digits(row.flops / row.bytes),
            "flops": _digits(row.flops / row.time_s),
            "rate": format_quantity(row.flops / row.time_s, "FLOP/s"),
        }
        for row in kernels
    ]
    intensities = [row.flops / row.bytes for row in kernels]
    low, high = min(*intensities, 0.1), max(*intensities, 1e3)
    roofs = [
        {
            "type": name,
            "intensity": _digits(at),
            "flops": _digits(min(at * peaks.bytes_per_s, rate)),
        }
        for name, rate in _distinct(peaks).items()
        for at in (low, rate / peaks.bytes_per_s, high)
    ]
    axis = {"scale": {"type": "log"}, "axis": {"format": "~s"}}
    across = quantitative("intensity", "arithmetic intensity (FLOP/B)", **axis)
    up = quantitative("flops", "rate (FLOP/s)", **axis)
    return Chart(
        title="Kernels on the roofline",
        description=(
            "Each circle is a group of equal kernels, its area the time that they take together. "
            "The lines are what memory and the peak rate of each type allow. Kernels that only "
            "move data are in the next chart."
        ),
        specification=specification(
            rows,
            height=360,
            layer=[
                {
                    "data": {"values": roofs},
                    "mark": {"type": "line", "strokeWidth": 2},
                    "encoding": {
                        "x": across,
                        "y": up,
                        "strokeDash": {"field": "type", "type": "nominal", "title": "peak of"},
                        "stroke": {"value": PALETTE[7]},
                    },
                },
                {
                    "mark": {"type": "point", "filled": True, "opacity": 0.75},
                    "encoding": {"x": across, "y": up, **_encoding()},
                },
            ],
        ),
    )


def _distinct(peaks: Peaks) -> dict[str, float]:
    """Return the peaks with types of the same rate as one."""
    names: dict[float, list[str]] = {}
    for name, rate in peaks.flops_per_s.items():
        names.setdefault(rate, []).append(name)
    return {", ".join(each): rate for rate, each in sorted(names.items(), reverse=True)}


def _bandwidths(kernels: list[KernelTimeRow], peaks: Peaks) -> Chart:
    unit = large_unit(peaks.bytes_per_s, "B/s")
    rows = [
        {
            **_common(row),
            "bytes": _digits(row.bytes / row.count),
            "reached": unit.of(row.bytes / row.time_s),
            "rate": format_quantity(row.bytes / row.time_s, "B/s"),
        }
        for row in kernels
    ]
    return Chart(
        title="Memory bandwidth that kernels reach",
        description=(
            "By what one launch reads and writes; areas are times. The dashed line is the "
            f"memory's peak, {format_quantity(peaks.bytes_per_s, 'B/s')}; what lies above it is "
            "served by caches."
        ),
        specification=specification(
            rows,
            height=300,
            layer=[
                {
                    "data": {"values": [{"reached": unit.of(peaks.bytes_per_s)}]},
                    "mark": {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 2},
                    "encoding": {"y": quantitative("reached", None)},
                },
                {
                    "mark": {"type": "point", "filled": True, "opacity": 0.75},
                    "encoding": {
                        "x": quantitative(
                            "bytes",
                            "bytes of one launch",
                            scale={"type": "log"},
                            axis={"format": "~s"},
                        ),
                        "y": quantitative("reached", f"bandwidth ({unit.name})"),
                        **_encoding(),
                    },
                },
            ],
        ),
    )


def _digits(value: float) -> float:
    return float(f"{value:.5g}")


def _table(report: RunReport) -> Table:
    rows = [
        (
            Cell(text=row.name),
            Cell(text=row.kind),
            Cell(text=row.path),
            Cell(text=f"{row.count:.6g}"),
            Cell(text=format_time(row.time_s), sort_by=row.time_s),
            Cell(
                text=f"{100 * row.time_s / report.compute_s:.1f} %" if report.compute_s else "",
                sort_by=row.time_s,
            ),
            _rate(row.flops, row.time_s, "FLOP/s"),
            _rate(row.bytes, row.time_s, "B/s"),
            Cell(text=row.limit),
        )
        for row in report.kernels
    ]
    return Table(
        caption="Kernels, longest first",
        columns=(
            *("Kernel", "Kind", "Module", "Launches", "Time", "Share"),
            *("Arithmetic", "Memory", "Limited by"),
        ),
        rows=tuple(rows),
        numbers=frozenset({"Launches", "Time", "Share", "Arithmetic", "Memory"}),
        has_filter=True,
    )


def _rate(amount: float, time_s: float, unit: str) -> Cell:
    if time_s <= 0 or amount <= 0:
        return Cell(text="", sort_by="")
    return Cell(text=format_quantity(amount / time_s, unit), sort_by=amount / time_s)
