"""Published points of engines under load, and what is predicted of them.

Experts are divided over the devices of ``tp`` by their width, whatever a point says of them.

A point is a closed load: ``concurrency`` requests are under way, all with one length of prompts and
one of outputs. Nothing is fitted to a point. How many requests were measured is not published: the
prediction takes ten for each that is under way.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import median
from typing import cast

from hespas.base.decode import read_text
from hespas.base.units import format_time
from hespas.errors import HespasError, MeasurementError
from hespas.evidence.validate.measurements import check_header, positive_number
from hespas.hardware.presets import PRESETS_DIRECTORY
from hespas.models.model import parse_mesh
from hespas.serve.options import EngineOptions, LoadOptions, ServeOptions
from hespas.serve.serving import serving
from hespas.sources.options import ModelOptions
from hespas.study.executor import ExecutorOptions

SERVING_TABLE = PRESETS_DIRECTORY / "published" / "serving_points.csv"
_COLUMNS = (
    *("source", "id", "model", "hardware", "engine", "engine_version", "precision", "tp"),
    *("concurrency", "isl", "osl", "ttft_ms", "tpot_ms"),
)
_SETTINGS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("vllm", "fp8"): {"weight_dtype": "f8"},
    ("sglang", "fp8"): {"weight_dtype": "f8"},
    ("trtllm", "fp8"): {"weight_dtype": "f8", "cache_dtype": "f8"},
    **{(engine, "bf16"): {} for engine in ("vllm", "sglang", "trtllm")},
}
"""Settings by engine and precision: TensorRT-LLM's checkpoints in FP8 cache keys in it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPoint:
    """A published point: mean seconds to the first token, and between tokens."""

    line: int
    source: str
    model: str
    hardware: str
    engine: str
    precision: str
    tensor: int
    concurrency: int
    isl: int
    osl: int
    ttft_s: float
    tpot_s: float

    @property
    def name(self) -> str:
        """What tables call it."""
        return (
            f"{self.model.rpartition('/')[2]} {self.precision}, {self.engine}, tp={self.tensor}, "
            f"{self.concurrency} x {self.isl}+{self.osl}"
        )

    def options(self) -> ServeOptions:
        """Return the options that mean the same here."""
        return ServeOptions(
            model_name=self.model,
            cluster=f"{self.tensor}x{self.hardware}",
            load=LoadOptions(
                concurrency=self.concurrency,
                isl=self.isl,
                osl=self.osl,
                requests=10 * self.concurrency,
            ),
            engine=EngineOptions(engine=self.engine),
            model=ModelOptions(
                mesh=parse_mesh(f"tp={self.tensor}"),
                settings=_SETTINGS[self.engine, self.precision],
            ),
            executor=ExecutorOptions(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPoint:
    """A point with what is predicted of it; None with the ``reason`` where nothing is."""

    point: ServingPoint
    ttft_s: float | None = None
    tpot_s: float | None = None
    reason: str = ""

    @property
    def tpot_error(self) -> float | None:
        """How far the predicted time between tokens is off, as a share of the published one."""
        return None if self.tpot_s is None else self.tpot_s / self.point.tpot_s - 1

    @property
    def ttft_error(self) -> float | None:
        """How far the predicted time to the first token is off."""
        return None if self.ttft_s is None else self.ttft_s / self.point.ttft_s - 1

    @property
    def throughput_error(self) -> float | None:
        """How far output tokens a second are off: by Little's law, of requests under way."""
        if self.ttft_s is None or self.tpot_s is None:
            return None
        more = self.point.osl - 1
        published_s = self.point.ttft_s + more * self.point.tpot_s
        return published_s / (self.ttft_s + more * self.tpot_s) - 1


def read_serving_points(file: Path = SERVING_TABLE) -> tuple[ServingPoint, ...]:
    """Read a table of points; `MeasurementError` with the line of what doesn't fit."""
    reader = csv.DictReader(StringIO(read_text(file)))
    check_header(reader.fieldnames or (), str(file), needed=_COLUMNS, columns=_COLUMNS)
    return tuple(_point(row, number, file) for number, row in enumerate(reader, start=2))


def _point(row: Mapping[str, str], line: int, file: Path) -> ServingPoint:
    location = f"{file}:{line}"

    def number(column: str) -> float:
        return positive_number(row[column], column, location=location)

    if (row["engine"], row["precision"]) not in _SETTINGS:
        raise MeasurementError(
            f"has engine {row['engine']!r} in {row['precision']!r}",
            location=location,
            hint="engines are vllm, sglang and trtllm, precisions bf16 and fp8",
        )
    return ServingPoint(
        line=line,
        source=row["source"],
        model=row["model"],
        hardware=row["hardware"],
        engine=row["engine"],
        precision=row["precision"],
        tensor=int(number("tp")),
        concurrency=int(number("concurrency")),
        isl=int(number("isl")),
        osl=int(number("osl")),
        ttft_s=number("ttft_ms") / 1e3,
        tpot_s=number("tpot_ms") / 1e3,
    )


def served_points(
    points: Iterable[ServingPoint], advance: Callable[[int], None]
) -> Iterator[ServedPoint]:
    """Predict points, one after the other."""
    for point in points:
        try:
            report = serving(point.options())
        except HespasError as error:
            yield ServedPoint(point=point, reason=str(error))
        else:
            between = report.tpot_s
            yield ServedPoint(
                point=point,
                ttft_s=report.ttft_s.mean,
                tpot_s=None if between is None else between.mean,
            )
        advance(1)


def serving_json(points: Sequence[ServedPoint]) -> dict[str, object]:
    """Return points and their summary as JSON has them."""
    rows = [
        {
            "name": served.point.name,
            "source": served.point.source,
            "engine": served.point.engine,
            "published_tpot_s": served.point.tpot_s,
            "tpot_s": served.tpot_s,
            "tpot_error": served.tpot_error,
            "published_ttft_s": served.point.ttft_s,
            "ttft_s": served.ttft_s,
            "ttft_error": served.ttft_error,
            "throughput_error": served.throughput_error,
            "reason": served.reason,
        }
        for served in points
    ]
    return {"points": rows, "summary": serving_summary(points)}


def serving_points_text(points: Sequence[ServedPoint]) -> str:
    """Return points and their summary as tables."""
    widths = ("published", "predicted", "error", "first token", "error")
    rows = [
        (
            served.point.name,
            format_time(served.point.tpot_s),
            "" if served.tpot_s is None else format_time(served.tpot_s),
            _percent(served.tpot_error),
            format_time(served.point.ttft_s),
            _percent(served.ttft_error),
        )
        for served in points
    ]
    medians = [
        (
            str(row["group"]),
            str(row["points"]),
            *(_percent(cast("float | None", row[f"median_{name}_error"]), "") for name in _ERRORS),
        )
        for row in serving_summary(points)
    ]
    columns = ("points", *_ERRORS)
    reasons = [f"{each.point.name}: {each.reason}" for each in points if each.reason]
    lines = [*_table(("Time between tokens", *widths), rows, 50), ""]
    lines += _table(("Median size of errors", *columns), medians, 24)
    return "\n".join([*lines, *(["", "Not predicted", *reasons] if reasons else [])])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], width: int) -> Iterator[str]:
    for name, *cells in (head, *rows):
        yield f"{name:<{width}}" + "".join(f"{cell:>12}" for cell in cells)


def _percent(value: float | None, sign: str = "+") -> str:
    return "" if value is None else f"{100 * value:{sign}.1f} %"


_ERRORS: Mapping[str, Callable[[ServedPoint], float | None]] = {
    "tpot": lambda served: served.tpot_error,
    "throughput": lambda served: served.throughput_error,
    "ttft": lambda served: served.ttft_error,
}


def serving_summary(points: Iterable[ServedPoint]) -> list[dict[str, object]]:
    """Return the median sizes of errors, of all points, by engine and by model."""
    served = list(points)
    groups: dict[str, list[ServedPoint]] = {"all": served}
    named = [(each.point.engine, each) for each in served]
    named += [(each.point.model.rpartition("/")[2], each) for each in served]
    for name, each in named:
        groups.setdefault(name, []).append(each)
    rows: list[dict[str, object]] = []
    for name, members in groups.items():
        errors = {f"median_{error}_error": _median(members, of) for error, of in _ERRORS.items()}
        rows.append({"group": name, "points": len(members), **errors})
    return rows


def _median(
    members: Iterable[ServedPoint], error: Callable[[ServedPoint], float | None]
) -> float | None:
    sizes = [abs(value) for member in members if (value := error(member)) is not None]
    return median(sizes) if sizes else None
