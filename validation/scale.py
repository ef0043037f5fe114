"""Growth of published steps with the number of devices, beside predictions, mechanism by mechanism.

    python validation/scale.py            write docs/data/scale.json and docs/evidence/scale.md
    python validation/scale.py --predict  also predict the pipelines anew (five minutes)

Predicted steps are those of docs/data/every_step.json and library_steps.json. Growth is the step at
a size over that at the smallest one of its series, less 1. Mechanisms are added in turn:

* devices that are not equal: the whole computation takes as long as on the slowest of all devices
  (`hespas.hardware.variation`, GPU_SC22), on GPUs, for which a figure is published;
* a ring over slices of TPUs once for each layer: ``2 (slices - 1) layers latency``. The latency is
  fitted to the other models of the part, never to the one that is shown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import long_runs
from hespas.base.files import json_bytes, write_file
from hespas.hardware.system import parse_link_bandwidths
from hespas.hardware.variation import Slowest, read_variation
from hespas.prediction.figures.variation import variation_report
from hespas.prediction.options import NetworkOptions
from hespas.prediction.staged import predict_pipeline

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data"
PAGE = ROOT / "docs" / "evidence" / "scale.md"
_SLICE = 256
_LAYERS = {"16B": 32, "32B": 32, "64B": 64, "128B": 64}
"""MaxText's `global_parameter_scale`: 16 layers, doubled by the second and the sixth doubling."""
VARIATION = "GPU_SC22"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A step: published and predicted, and what it computes."""

    devices: int
    published_s: float
    predicted_s: float
    compute_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Steps of one workload, smallest size first; ``layers`` of one that runs on slices of 256."""

    name: str
    points: tuple[Point, ...]
    is_gpu: bool
    layers: int | None = None


def main() -> None:
    """Write the record and the page."""
    series = list(all_series())
    rows = [row for one in series for row in rows_of(one, series)]
    predicts, known = "--predict" in sys.argv[1:], _recorded()
    pipelines = predicted_pipelines() if predicts else known.get("pipelines", [])
    assumed = predicted_assumptions() if predicts else known.get("assumptions", [])
    runs = long_runs.rows()
    record = {
        "growth": rows,
        "pipelines": pipelines,
        "assumptions": assumed,
        "long_runs": runs,
    }
    write_file(DATA / "scale.json", json_bytes(record))
    tables = {
        "growth": growth_table(rows),
        "pipelines": pipeline_table(pipelines),
        "assumptions": assumption_table(assumed),
        "long runs": long_runs.table(runs),
    }
    text = PAGE.read_text()
    for name, lines in tables.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, _, rest = text.partition(begin)
        text = before + begin + "\n" + "\n".join(lines) + "\n\n" + end + rest.partition(end)[2]
    write_file(PAGE, text.encode())


def _recorded() -> Mapping[str, Any]:
    path = DATA / "scale.json"
    return json.loads(path.read_text()) if path.exists() else {}


def all_series() -> Iterator[Series]:
    """Yield the series with three sizes or more, and those of v5p with two."""
    rows = json.loads((DATA / "every_step.json").read_text())["rows"]
    for model, layers in _LAYERS.items():
        own = [row for row in rows if row["family"] == f"{model} (MaxText)"]
        points = [_point(row) for row in own if row["part"] == "TPUv5e"]
        yield Series(
            name=f"MaxText {model}, v5e", points=_sorted(points), is_gpu=False, layers=layers
        )
    of_v5p = [row for row in rows if row["part"] == "TPUv5p" and "(MaxText)" in row["family"]]
    for one, two in pairwise(of_v5p):
        if one["family"] == two["family"] and two["devices"] == 2 * one["devices"]:
            name = f"{one['family'].partition(' ')[0]}, v5p"
            yield Series(name=f"MaxText {name}", points=(_point(one), _point(two)), is_gpu=False)
    a3 = [row for row in rows if row["family"] == "llama2-7b (MaxText)" and row["published_s"] > 1]
    yield Series(name="Llama 2 7B, A3", points=_sorted(map(_point, a3)), is_gpu=True)
    steps = json.loads((DATA / "library_steps.json").read_text())
    for batch, title in ((2, "MPT 13B, H100"), (16, "MPT 13B recomputed, H100")):
        points = [
            _point(row)
            for row in steps
            if row["workload"] == "mosaicml/mpt-7b"
            and row["part"] == "H100_80GB"
            and int(row["options"]["micro_batch"]) == batch
            and int(row["options"]["sequence"]) == 2048
        ]
        yield Series(name=title, points=_sorted(points), is_gpu=True)


def _point(row: Mapping[str, Any]) -> Point:
    exposed_s = row.get("exposed_s") or 0.0
    return Point(
        devices=row["devices"],
        published_s=row["published_s"],
        predicted_s=row["predicted_s"],
        compute_s=row.get("compute_s") or row["predicted_s"] - exposed_s,
    )


def _sorted(points: Iterator[Point] | Sequence[Point]) -> tuple[Point, ...]:
    return tuple(sorted(points, key=lambda point: point.devices))


def latency_s(series: Sequence[Series], *, without: str) -> float:
    """Return the latency of a hop between slices that fits the other models best.

    Least squares over what published steps grow more than predicted ones.
    """
    hops_s = hops_2 = 0.0
    for one in series:
        if one.layers is None or one.name == without:
            continue
        first = one.points[0]
        for point in one.points[1:]:
            grown_s = point.published_s - first.published_s - point.predicted_s + first.predicted_s
            hops = _hops(point, one.layers)
            hops_s += hops * grown_s
            hops_2 += hops * hops
    return hops_s / hops_2


def _hops(point: Point, layers: int) -> int:
    return 2 * (point.devices // _SLICE - 1) * layers


def rows_of(one: Series, series: Sequence[Series]) -> Iterator[dict[str, Any]]:
    """Yield the growth of a series at each size, with each mechanism switched on in turn."""
    slowest = Slowest(sigma=read_variation(VARIATION).sigma)
    hop_s = 0.0 if one.layers is None else latency_s(series, without=one.name)
    first = one.points[0]

    def unequal_s(point: Point) -> float:
        if not one.is_gpu:
            return point.predicted_s
        return point.predicted_s + point.compute_s * (slowest.mean(point.devices) - 1.0)

    def with_ring_s(point: Point) -> float:
        ring_s = 0.0 if one.layers is None else _hops(point, one.layers) * hop_s
        return unequal_s(point) + ring_s

    for point in one.points[1:]:
        yield {
            "series": one.name,
            "from": first.devices,
            "devices": point.devices,
            "published": point.published_s / first.published_s - 1,
            "predicted": point.predicted_s / first.predicted_s - 1,
            "unequal": unequal_s(point) / unequal_s(first) - 1,
            "ring": with_ring_s(point) / with_ring_s(first) - 1,
            "latency_s": hop_s,
        }


_MECHANISMS = ("predicted", "+ unequal devices", "+ ring over slices")


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def growth_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of growth, and how many of the largest sizes are within 3 points."""
    lines = [
        _cells("series", "devices", "published", *_MECHANISMS, "off"),
        "|---|---|---|---|---|---|---|",
    ]
    last: dict[tuple[str, int], float] = {}
    for row in rows:
        off = 100 * (row["ring"] - row["published"])
        last[row["series"], row["from"]] = off
        cells = [f"{100 * row[name]:+.1f} %" for name in ("published", "predicted", "unequal")]
        ring = f"{100 * row['ring']:+.1f} %" if row["latency_s"] else ""
        sizes = f"{row['from']:,} to {row['devices']:,}"
        lines.append(f"| {row['series']} | {sizes} | {' | '.join(cells)} | {ring} | {off:+.1f} |")
    near = sum(abs(off) <= 3 for off in last.values())
    lines += ["", f"{near} of {len(last)} series are within 3 points at their largest size."]
    return lines


def predicted_pipelines() -> list[dict[str, Any]]:
    """Return the steps of Llama 3.1 405B on H100 in MLPerf's layout, by size."""
    # Predicting pipelines imports the model zoo.
    from dataclasses import replace  # noqa: PLC0415

    import pipelines  # noqa: PLC0415

    rows: list[dict[str, Any]] = []
    for step in pipelines.STEPS:
        if step.model != "llama3.1-405b" or step.node is not None:
            continue
        options = pipelines.options_of(step)
        network: NetworkOptions = replace(options.network, variation=read_variation(VARIATION))
        prediction = predict_pipeline(replace(options, network=network))
        report = variation_report(prediction)
        last_sum_ps = max(each.update[0] for each in prediction.stages)
        rows.append(
            {
                "devices": prediction.devices,
                "published_s": step.published_s,
                "predicted_s": prediction.step_time_s,
                "sums_exposed_s": (last_sum_ps - prediction.times.finish_ps) / 1e12,
                "expected_s": report.expected_step_s,
                "waiting_by_axis_s": report.waiting_by_axis_s,
            }
        )
    return rows


_OFF = {"gradients": False, "parameters": False}
_ASSUMPTIONS: Mapping[str, tuple[Mapping[str, bool], str | None, int | None]] = {
    "as predicted": ({}, None, None),
    "sums of gradients follow the last backward pass": ({"gradients": False}, None, None),
    "weights are gathered before the first forward pass": ({"parameters": False}, None, None),
    "both": (_OFF, None, None),
    "links between nodes have half their bandwidth": ({}, "1=x0.5", None),
    "both, on these links": (_OFF, "1=x0.5", None),
    "a quarter of the batch for each device": ({}, None, 72),
    "a ninth of the batch for each device": ({}, None, 32),
}
"""What is hidden, other links, and the micro-batches on 8,192 devices."""


def predicted_assumptions() -> list[dict[str, Any]]:
    """Return the steps of Llama 3.1 405B on 512 and 8,192 H100 by what is assumed."""
    # As above.
    from dataclasses import replace  # noqa: PLC0415

    import pipelines  # noqa: PLC0415

    few, many = [
        next(step for step in pipelines.STEPS if step.name == f"Llama 3.1 405B, {count} H100")
        for count in ("512", "8,192")
    ]
    copies = 64
    rows: list[dict[str, Any]] = []
    for name, (overlap, links, micro_batches) in _ASSUMPTIONS.items():
        steps_s: list[float] = []
        for step in (few, many):
            options = pipelines.options_of(step)
            network = options.network
            if links is not None:
                network = replace(network, link_bandwidth=parse_link_bandwidths([links]))
            pipeline = replace(options.pipeline, overlap=overlap)
            plan = replace(options, pipeline=pipeline, network=network)
            times = 1.0
            if step is many and micro_batches is not None:
                model = replace(plan.program.model, global_batch=micro_batches * copies)
                plan = replace(plan, program=replace(plan.program, model=model))
                times = step.global_batch / (micro_batches * copies)
            steps_s.append(predict_pipeline(plan).step_time_s * times)
        rows.append({"assumed": name, "few_s": steps_s[0], "many_s": steps_s[1]})
    return rows


def assumption_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how much the step grows under each assumption."""
    lines = [_cells("assumed", "512", "8,192", "growth"), "|---|---|---|---|"]
    for row in rows:
        growth = row["many_s"] / row["few_s"] - 1
        lines.append(
            f"| {row['assumed']} | {row['few_s']:.2f} s | {row['many_s']:.2f} s "
            f"| {100 * growth:+.1f} % |"
        )
    return lines


def pipeline_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of Llama 3.1 405B."""
    lines = [
        _cells(
            *("devices", "published", "predicted", "sums of gradients exposed"),
            *("+ unequal devices", "waits"),
        ),
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        published = "-" if row["published_s"] is None else f"{row['published_s']:.2f} s"
        axes = sorted(row["waiting_by_axis_s"].items(), key=lambda axis: -axis[1])
        waits = ", ".join(f"{name} {time_s:.2f} s" for name, time_s in axes)
        expected = f"{row['expected_s']:.2f} s ({row['expected_s'] / row['predicted_s'] - 1:+.1%})"
        lines.append(
            f"| {row['devices']:,} | {published} | {row['predicted_s']:.2f} s "
            f"| {row['sums_exposed_s']:.2f} s | {expected} | {waits} |"
        )
    return lines


if __name__ == "__main__":
    main()
