"""Scaling curves: what more devices bring, against what they would bring if none waited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hespas.base.units import format_amount
from hespas.report.page.candidates import Candidates
from hespas.report.page.document import Chart
from hespas.report.page.specs import (
    PALETTE,
    Unit,
    coloured,
    large_unit,
    palette,
    quantitative,
    specification,
    tooltips,
)
from hespas.study.rows import Row

_CHOSEN = frozenset({"cluster", "batch", "global_batch", "micro_batch", "remat"})
"""Keys of which the best value is taken at each number of devices, as of meshes."""
_RATES = {"tokens_per_s": "tokens/s", "samples_per_s": "samples/s"}


def scaling_charts(found: Candidates) -> Iterator[Chart]:
    """Yield throughput and efficiency by devices, where their number differs.

    Of the candidates with equally many devices the fastest is taken, for each model, part and
    other key by itself.
    """
    rate = next(
        (each for each in _RATES if any(row.figures.get(each) for row in found.predicted)), None
    )
    if rate is None:
        return
    series = {name: points for name, points in _series(found, rate).items() if len(points) > 1}
    if not series:
        return
    unit = large_unit(
        max(row.figures.get(rate) or 0.0 for points in series.values() for row in points),
        _RATES[rate],
    )
    values = [
        value for name, points in series.items() for value in _values(name, points, rate, unit)
    ]
    yield _throughput(values, unit, list(series))
    yield _efficiency(values, list(series))


def _series(found: Candidates, rate: str) -> dict[str, list[Row]]:
    """Return, for each series, its fastest candidate of each number of devices, in order."""
    fastest: dict[tuple[str, int], Row] = {}
    for row in found.predicted:
        devices, speed = row.figures.get("devices"), row.figures.get(rate)
        if devices is None or speed is None:
            continue
        key = _series_name(found, row), round(devices)
        known = fastest.get(key)
        if known is None or speed > (known.figures.get(rate) or 0.0):
            fastest[key] = row
    series: dict[str, list[Row]] = {}
    for (name, _), row in sorted(fastest.items(), key=lambda pair: pair[0][1]):
        series.setdefault(name, []).append(row)
    return series


def _series_name(found: Candidates, row: Row) -> str:
    parts = [
        f"{found.value(row, key)}"
        for key in found.keys
        if key not in _CHOSEN and not key.startswith("mesh.")
    ]
    cluster = f"{found.value(row, 'cluster') or found.pinned.get('cluster', '')}"
    return ", ".join([*parts, cluster.partition("x")[2] or cluster]).strip(", ") or "all"


def _values(
    name: str, points: Sequence[Row], rate: str, unit: Unit
) -> Iterator[Mapping[str, object]]:
    first = points[0]
    each = (first.figures.get(rate) or 0.0) / (first.figures.get("devices") or 1.0)
    for row in points:
        devices, speed = row.figures.get("devices") or 1.0, row.figures.get(rate) or 0.0
        yield {
            "series": name,
            "devices": devices,
            "rate": unit.of(speed),
            "ideal": unit.of(each * devices),
            "efficiency": float(f"{100 * speed / (each * devices):.4g}") if each else 0.0,
            "text": f"{format_amount(speed)} {_RATES[rate]}",
        }


def _by_devices(values: Sequence[Mapping[str, object]]) -> dict[str, object]:
    counts = sorted({float(str(value["devices"])) for value in values})
    return quantitative(
        "devices",
        "devices",
        scale={"type": "log", "base": 2, "nice": False},
        axis={"values": counts, "format": "~d", "labelOverlap": True},
    )


def _throughput(values: Sequence[Mapping[str, object]], unit: Unit, series: Sequence[str]) -> Chart:
    scale = {"type": "log"}
    hue = coloured("series", None, palette(series))
    along = _by_devices(values)
    return Chart(
        title=f"Throughput by devices, in {unit.name}",
        description="The dashed lines are what the smallest number of devices would scale to.",
        specification=specification(
            values,
            height=320,
            layer=[
                {
                    "mark": {"type": "line", "strokeDash": [4, 4], "opacity": 0.7},
                    "encoding": {
                        "x": along,
                        "y": quantitative("ideal", unit.name, scale=scale),
                        "color": hue,
                    },
                },
                {
                    "mark": {"type": "line", "point": {"filled": True, "size": 60}},
                    "encoding": {
                        "x": along,
                        "y": quantitative("rate", unit.name, scale=scale),
                        "color": hue,
                        "tooltip": tooltips(
                            series="of",
                            devices="devices",
                            text="throughput",
                            efficiency="efficiency (%)",
                        ),
                    },
                },
            ],
        ),
    )


def _efficiency(values: Sequence[Mapping[str, object]], series: Sequence[str]) -> Chart:
    ends = {"values": [{"at": 100}]}
    return Chart(
        title="Efficiency: throughput of a device against that of the smallest number, in per cent",
        description="At 100 a device does as much as it did among the fewest.",
        specification=specification(
            values,
            height=220,
            layer=[
                {
                    "data": ends,
                    "mark": {"type": "rule", "strokeDash": [4, 4], "color": PALETTE[7]},
                    "encoding": {"y": quantitative("at", None)},
                },
                {
                    "mark": {"type": "line", "point": {"filled": True, "size": 60}},
                    "encoding": {
                        "x": _by_devices(values),
                        "y": quantitative("efficiency", "efficiency (%)"),
                        "color": coloured("series", None, palette(series)),
                        "tooltip": [
                            *tooltips(series="of", devices="devices"),
                            {"field": "efficiency", "title": "efficiency (%)"},
                        ],
                    },
                },
            ],
        ),
    )
