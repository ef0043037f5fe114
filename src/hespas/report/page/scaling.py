"""Chart how a study's candidates scale with devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from hespas.base.frozen import frozen
from hespas.base.units import format_amount
from hespas.report.page.vega import (
    PALETTE,
    Chart,
    Unit,
    coloured,
    drawn_chart,
    large_unit,
    palette,
    quantitative,
    tooltips,
)
from hespas.study.keys import scalar_text
from hespas.study.rows import Row, Status, flat

_PREFIX = "candidate."
_CHOSEN = frozenset({"cluster", "batch", "global_batch", "micro_batch", "remat"})
"""Keys, as of meshes, whose best value is chosen at each number of devices."""
_RATES = {"tokens_per_s": "tokens/s", "samples_per_s": "samples/s"}


@frozen
class Candidates:
    """Predicted rows, best first, with varying and pinned keys."""

    predicted: tuple[Row, ...]
    keys: tuple[str, ...]
    pinned: Mapping[str, str]
    values: Mapping[int, Mapping[str, object]]

    def value(self, row: Row, key: str) -> object:
        """Return a candidate's value of a key, if any."""
        return self.values[row.number].get(key)

    def name(self, row: Row) -> str:
        """Return a candidate's distinguishing text, without axes of size 1."""
        texts = [
            f"{key.rsplit('.', maxsplit=1)[-1]}={_text(value)}" if "." in key else _text(value)
            for key in self.keys
            if (value := self.value(row, key)) is not None
            and not (key.startswith("mesh.") and value == 1)
        ]
        return ", ".join(texts) or f"candidate {row.number}"

    def places(self, rows: Sequence[Row], key: str) -> dict[str, float]:
        """Place a key's sorted values on a unit axis."""
        ordered = sorted({self.value(row, key) for row in rows}, key=_order)
        if len(ordered) == 1:
            return {f"{ordered[0]}": 0.5}
        return {f"{value}": place / (len(ordered) - 1) for place, value in enumerate(ordered)}


def candidates_of(rows: Sequence[Row]) -> Candidates:
    """Return the candidates of a study's table."""
    values = {
        row.number: {
            name.removeprefix(_PREFIX): value
            for name, value in flat(row).items()
            if name.startswith(_PREFIX)
        }
        for row in rows
    }
    keys = dict.fromkeys(key for keyed in values.values() for key in keyed)
    differs = {key: len({f"{keyed.get(key)}" for keyed in values.values()}) > 1 for key in keys}
    first = values[rows[0].number] if rows else dict[str, object]()
    return Candidates(
        predicted=tuple(row for row in rows if row.status in (Status.DONE, Status.SCREENED)),
        keys=tuple(key for key in keys if differs[key]),
        pinned={key: _text(first.get(key)) for key in keys if not differs[key]},
        values=values,
    )


def _text(value: object) -> str:
    return scalar_text(value) if isinstance(value, bool) else f"{value}"


def _order(value: object) -> tuple[float, str]:
    """Return a value's sort key: its leading number.

    >>> sorted(["16xH100", "8xH100", "none", 4], key=_order)
    [4, '8xH100', '16xH100', 'none']
    """
    text = f"{value}"
    digits = text[: len(text) - len(text.lstrip("0123456789."))].strip(".")
    return float(digits) if digits else inf, text


def scaling_charts(candidates: Candidates) -> Iterator[Chart]:
    """Yield charts of throughput and efficiency by device count.

    The fastest candidate of a count stands for it.
    """
    rows = candidates.predicted
    rate = next((name for name in _RATES if any(row.figures.get(name) for row in rows)), None)
    if rate is None:
        return
    series = {name: points for name, points in _series(candidates, rate).items() if len(points) > 1}
    if not series:
        return
    fastest = max(row.figures.get(rate) or 0.0 for points in series.values() for row in points)
    unit = large_unit(fastest, _RATES[rate])
    values = [
        value for name, points in series.items() for value in _values(name, points, rate, unit)
    ]
    counts = sorted({float(str(value["devices"])) for value in values})
    devices_axis = quantitative(
        "devices",
        "devices",
        scale={"type": "log", "base": 2, "nice": False},
        axis={"values": counts, "format": "~d", "labelOverlap": True},
    )
    hue = coloured("series", None, palette(list(series)))
    yield _throughput(values, unit, devices_axis, hue)
    yield _efficiency(values, devices_axis, hue)


def _series(candidates: Candidates, rate: str) -> dict[str, list[Row]]:
    fastest: dict[tuple[str, int], Row] = {}
    for row in candidates.predicted:
        devices, speed = row.figures.get("devices"), row.figures.get(rate)
        if devices is None or speed is None:
            continue
        key = _series_name(candidates, row), round(devices)
        if key not in fastest or speed > (fastest[key].figures.get(rate) or 0.0):
            fastest[key] = row
    series: dict[str, list[Row]] = {}
    for (name, _), row in sorted(fastest.items(), key=lambda pair: pair[0][1]):
        series.setdefault(name, []).append(row)
    return series


def _series_name(candidates: Candidates, row: Row) -> str:
    keys = [key for key in candidates.keys if key not in _CHOSEN and not key.startswith("mesh.")]
    cluster = f"{candidates.value(row, 'cluster') or candidates.pinned.get('cluster', '')}"
    parts = [f"{candidates.value(row, key)}" for key in keys]
    return ", ".join([*parts, cluster.partition("x")[2] or cluster]).strip(", ") or "all"


def _values(
    name: str, points: Sequence[Row], rate: str, unit: Unit
) -> Iterator[Mapping[str, object]]:
    first = points[0].figures
    rate_per_device = (first.get(rate) or 0.0) / (first.get("devices") or 1.0)
    for row in points:
        devices, speed = row.figures.get("devices") or 1.0, row.figures.get(rate) or 0.0
        yield {
            "series": name,
            "devices": devices,
            "rate": unit.of(speed),
            "ideal": unit.of(rate_per_device * devices),
            "efficiency": float(f"{100 * speed / (rate_per_device * devices):.4g}")
            if rate_per_device
            else 0.0,
            "text": f"{format_amount(speed)} {_RATES[rate]}",
        }


_POINTS = {"type": "line", "point": {"filled": True, "size": 60}}


def _throughput(
    values: Sequence[Mapping[str, object]], unit: Unit, along: object, hue: object
) -> Chart:
    scale = {"type": "log"}
    ideal = {
        "mark": {"type": "line", "strokeDash": [4, 4], "opacity": 0.7},
        "encoding": {"x": along, "y": quantitative("ideal", unit.name, scale=scale), "color": hue},
    }
    fields = {"series": "of", "devices": "devices", "text": "throughput"}
    reached = {
        "mark": _POINTS,
        "encoding": {
            "x": along,
            "y": quantitative("rate", unit.name, scale=scale),
            "color": hue,
            "tooltip": tooltips(**fields, efficiency="efficiency (%)"),
        },
    }
    return drawn_chart(
        f"Throughput by devices, in {unit.name}",
        "The dashed lines are what the smallest number of devices would scale to.",
        values,
        height=320,
        layer=[ideal, reached],
    )


def _efficiency(values: Sequence[Mapping[str, object]], along: object, hue: object) -> Chart:
    ideal = {
        "data": {"values": [{"at": 100}]},
        "mark": {"type": "rule", "strokeDash": [4, 4], "color": PALETTE[7]},
        "encoding": {"y": quantitative("at", None)},
    }
    reached = {
        "mark": _POINTS,
        "encoding": {
            "x": along,
            "y": quantitative("efficiency", "efficiency (%)"),
            "color": hue,
            "tooltip": tooltips(series="of", devices="devices", efficiency="efficiency (%)"),
        },
    }
    return drawn_chart(
        "Efficiency: throughput of a device against that of the smallest number, in per cent",
        "At 100 a device does as much as it did among the fewest.",
        values,
        height=220,
        layer=[ideal, reached],
    )
