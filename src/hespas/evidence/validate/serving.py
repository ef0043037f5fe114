"""Predict published points of engines under load.

A point is a closed load: ``concurrency`` requests are under way, as its `Client` keeps them.
Nothing is fitted to a point.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import cast

from hespas.base.fields import overridden
from hespas.base.frozen import frozen
from hespas.base.table import Line, read_table
from hespas.base.units import format_time
from hespas.errors import HespasError, MeasurementError
from hespas.hardware.presets import PRESETS_DIRECTORY
from hespas.serve.answer import Latency
from hespas.serve.engine import ENGINES
from hespas.serve.options import ServeOptions
from hespas.serve.serving import serving
from hespas.serve.surface import Surfaces

SERVING_TABLE = PRESETS_DIRECTORY / "published" / "serving_points.csv"
_NEEDED = (
    *("source", "id", "client", "model", "hardware", "engine", "precision"),
    *("tp", "moe_ep", "concurrency", "isl", "osl", "statistic", "ttft_ms", "tpot_ms"),
)
_NVFP4 = {"weight_dtype": "nvfp4", "attention_dtype": "bf16", "activation_dtype": "nvfp4"}
_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "published": {},
    "bf16": {},
    "fp8": {"weight_dtype": "f8"},
    "fp4": {**_NVFP4, "cache_dtype": "f8"},
}
"""Settings by precision: as a configuration has it, or another. ModelOpt's checkpoints in NVFP4
have attention in 16 bits and its cache in 8: aiconfigurator-core 0.12.0, model_configs/nvidia--*.
"""
_CACHED_IN_8_BITS = ("trtllm", "fp8")
"""TensorRT-LLM's checkpoints in FP8 cache keys in it too: an assumption."""


class Client(Enum):
    """What kept requests under way."""

    AICONFIGURATOR = "aiconfigurator"
    """Lengths are equal, and 20 requests follow each other for each that is under way. vLLM and
    TensorRT-LLM take the concurrency, a prompt and 1,500 tokens at a time, the latter in blocks of
    32: aiconfigurator 0.12.0, generator/rule_plugin/benchmark (vllm.rule, trtllm.rule) and
    bench_run.sh.j2."""
    INFERENCEX = "inferencex"
    """Lengths are even from 80 to 100 % of their names, for ten requests: of
    serving_deepseek_r1.csv, the time of the median request gives 0.90 of the output's name."""


_STATISTICS: Mapping[str, Callable[[Latency], float]] = {
    "mean": lambda latency: latency.mean,
    "median": lambda latency: latency.p50,
}
_CLIENTS = tuple(client.value for client in Client)
_SHORTEST = 0.8
"""The share of its name that an InferenceX length has at least."""
_PLANS_AHEAD = (0, 14)
"""The version from which vLLM schedules ahead by default (async_scheduling)."""
_MORE_TOKENS = 1500
_BLOCKS = {"vllm": 1, "trtllm": 32}
"""Of how many tokens a budget of aiconfigurator's rules is a multiple."""
_ROUNDS = {Client.AICONFIGURATOR: 20, Client.INFERENCEX: 10}
"""Requests for each that is under way."""
_FAR_APART = 0.1
"""How much more tokens a second and device one of two layouts gives where their order counts."""


@frozen
class ServingPoint:
    """A published point: seconds to the first and between tokens.

    All ``tensor`` devices have whole experts where ``experts`` counts them; it is 1 where they
    divide each expert.
    """

    line: int
    source: str
    client: Client
    model: str
    hardware: str
    engine: str
    precision: str
    tensor: int
    experts: int
    concurrency: int
    isl: int
    osl: int
    statistic: str
    ttft_s: float
    tpot_s: float
    version: str = ""

    @property
    def plans_ahead(self) -> bool:
        """Whether the engine schedules ahead; unknown versions do."""
        numbers = re.match(r"(\d+)\.(\d+)", self.version)
        if self.engine != "vllm" or numbers is None:
            return True
        return (int(numbers[1]), int(numbers[2])) >= _PLANS_AHEAD

    @property
    def layout(self) -> tuple[object, ...]:
        """What two points of one load are compared by."""
        return self.engine, self.precision, self.tensor, self.experts

    @property
    def throughput(self) -> float:
        """The published output tokens a second and device."""
        return _throughput(self, self.ttft_s, self.tpot_s)

    @property
    def name(self) -> str:
        """What tables call it."""
        return (
            f"{self.model.rpartition('/')[2]} {self.precision}, {self.engine}, tp={self.tensor}, "
            f"{self.concurrency} x {self.isl}+{self.osl}"
        )

    def options(self) -> ServeOptions:
        """Return the options that mean the same here."""
        isl, osl, spread, budget = self.isl, self.osl, 0.0, None
        match self.client:
            case Client.INFERENCEX:
                mean = (1 + _SHORTEST) / 2
                isl, osl, spread = round(mean * isl), round(mean * osl), 1 / mean - 1
            case Client.AICONFIGURATOR if self.engine in _BLOCKS:
                tokens, block = self.concurrency + self.isl + _MORE_TOKENS, _BLOCKS[self.engine]
                budget = -(-tokens // block) * block
            case Client.AICONFIGURATOR:
                pass
        settings = dict(_SETTINGS[self.precision])
        if (self.engine, self.precision) == _CACHED_IN_8_BITS:
            settings["cache_dtype"] = "f8"
        if self.experts > 1:
            settings["expert_axes"] = "tp"
        changes = {
            "concurrency": self.concurrency,
            "isl": isl,
            "osl": osl,
            "length_spread": spread,
            "requests": _ROUNDS[self.client] * self.concurrency,
            "engine": self.engine,
            "max_batched_tokens": budget,
            "plan_ahead": self.plans_ahead,
            "mesh": f"tp={self.tensor}",
            "settings": settings,
        }
        cluster = f"{self.tensor}x{self.hardware}"
        return overridden(ServeOptions(model_name=self.model, cluster=cluster), changes)


def _throughput(point: ServingPoint, ttft_s: float, tpot_s: float) -> float:
    """Return output tokens a second and device, by Little's law."""
    request_s = ttft_s + (point.osl - 1) * tpot_s
    return point.concurrency * point.osl / request_s / point.tensor


@frozen
class ServedPoint:
    """A point with its prediction, or the ``reason`` for none."""

    point: ServingPoint
    ttft_s: float | None = None
    tpot_s: float | None = None
    reason: str = ""

    @property
    def throughput(self) -> float | None:
        """The predicted output tokens a second and device."""
        if self.ttft_s is None or self.tpot_s is None:
            return None
        return _throughput(self.point, self.ttft_s, self.tpot_s)

    def error(self, figure: str) -> float | None:
        """Return the relative error of ``ttft_s``, ``tpot_s`` or ``throughput``."""
        predicted = getattr(self, figure)
        return None if predicted is None else predicted / getattr(self.point, figure) - 1


def read_serving_points(file: Path = SERVING_TABLE) -> tuple[ServingPoint, ...]:
    """Read a table of points, else raise `MeasurementError`."""
    columns = (*_NEEDED, "engine_version")
    table = read_table(file, needed=_NEEDED, columns=columns, error=MeasurementError)
    return tuple(map(_point, table.lines))


def _point(line: Line) -> ServingPoint:
    row = line.cells
    allowed = {
        "precision": _SETTINGS,
        "statistic": _STATISTICS,
        "engine": ENGINES,
        "client": _CLIENTS,
    }
    for column, values in allowed.items():
        if row[column] not in values:
            raise MeasurementError(
                f"has {column} {row[column]!r}",
                location=line.location,
                hint=f"known: {', '.join(values)}",
            )
    tensor, experts = line.whole("tp"), line.whole("moe_ep")
    if experts not in (1, tensor):
        raise MeasurementError(
            f"has moe_ep {experts} of tp {tensor}",
            location=line.location,
            hint="1 and tp are known",
        )
    return ServingPoint(
        line=line.number,
        source=row["source"],
        client=Client(row["client"]),
        model=row["model"],
        hardware=row["hardware"],
        engine=row["engine"],
        precision=row["precision"],
        tensor=tensor,
        experts=experts,
        concurrency=line.whole("concurrency"),
        isl=line.whole("isl"),
        osl=line.whole("osl"),
        statistic=row["statistic"],
        ttft_s=line.amount("ttft_ms") / 1e3,
        tpot_s=line.amount("tpot_ms") / 1e3,
        version=line.text("engine_version"),
    )


def served_points(
    points: Iterable[ServingPoint], advance: Callable[[int], None]
) -> Iterator[ServedPoint]:
    """Predict points in order; layouts share their steps."""
    surfaces = Surfaces()
    for point in points:
        statistic = _STATISTICS[point.statistic]
        try:
            report = serving(point.options(), surfaces)
        except HespasError as error:
            yield ServedPoint(point=point, reason=str(error))
        else:
            between = report.tpot_s
            yield ServedPoint(
                point=point,
                ttft_s=statistic(report.ttft_s),
                tpot_s=None if between is None else statistic(between),
            )
        advance(1)


def serving_json(points: Sequence[ServedPoint]) -> dict[str, object]:
    """Return points and their summary as JSON has them."""
    rows = [
        {
            "name": served.point.name,
            "source": served.point.source,
            "engine": served.point.engine,
            "client": served.point.client.value,
            "statistic": served.point.statistic,
            "published_tpot_s": served.point.tpot_s,
            "tpot_s": served.tpot_s,
            "tpot_error": served.error("tpot_s"),
            "published_ttft_s": served.point.ttft_s,
            "ttft_s": served.ttft_s,
            "ttft_error": served.error("ttft_s"),
            "throughput_error": served.error("throughput"),
            "reason": served.reason,
        }
        for served in points
    ]
    ranked = {"layouts": ranking(points), "loads": ranking(points, same_load=False)}
    return {"points": rows, "summary": serving_summary(points), "ranking": ranked}


def ranking(points: Iterable[ServedPoint], *, same_load: bool = True) -> dict[str, int]:
    """Count the pairs of layouts that rank as measured.

    They rank by throughput per device. A pair serves one model on one part with prompts and outputs
    of the same lengths, and with the same concurrency where it has the ``same_load``; its published
    rates are far apart. Layouts are engines, precisions and devices of a replica: one that was
    measured twice is no pair.
    """
    groups: dict[tuple[object, ...], list[tuple[object, float, float]]] = {}
    for served in points:
        point, predicted = served.point, served.throughput
        if predicted is None:
            continue
        load = (point.isl, point.osl, point.concurrency if same_load else 0)
        key = (point.model, point.hardware, point.client, *load)
        layout = (point.layout, point.concurrency)
        groups.setdefault(key, []).append((layout, point.throughput, predicted))
    pairs = right = 0
    for members in groups.values():
        for first, second in combinations(members, 2):
            rates = first[1], second[1]
            if first[0] != second[0] and max(rates) >= (1 + _FAR_APART) * min(rates):
                pairs += 1
                right += (first[1] < second[1]) == (first[2] < second[2])
    return {"pairs": pairs, "right": right}


def serving_points_text(points: Sequence[ServedPoint]) -> str:
    """Return points and their summary as tables."""
    widths = ("published", "predicted", "error", "first token", "error")
    rows = [
        (
            served.point.name,
            format_time(served.point.tpot_s),
            "" if served.tpot_s is None else format_time(served.tpot_s),
            _percent(served.error("tpot_s")),
            format_time(served.point.ttft_s),
            _percent(served.error("ttft_s")),
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
    reasons = [f"{served.point.name}: {served.reason}" for served in points if served.reason]
    lines = [*_table(("Time between tokens", *widths), rows, 50), ""]
    lines += _table(("Median size of errors", *columns), medians, 24)
    for name, same_load in (("of one load", True), ("of any load", False)):
        ranked = ranking(points, same_load=same_load)
        lines += ["", f"Layouts {name}: {ranked['right']} of {ranked['pairs']} pairs ranked right"]
    return "\n".join([*lines, *(["", "Not predicted", *reasons] if reasons else [])])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], width: int) -> Iterator[str]:
    for name, *cells in (head, *rows):
        yield f"{name:<{width}}" + "".join(f"{cell:>12}" for cell in cells)


def _percent(value: float | None, sign: str = "+") -> str:
    return "" if value is None else f"{100 * value:{sign}.1f} %"


_ERRORS = {"tpot": "tpot_s", "throughput": "throughput", "ttft": "ttft_s"}
"""What errors are of, by their names in tables."""


def serving_summary(points: Iterable[ServedPoint]) -> list[dict[str, object]]:
    """Return median absolute errors by client, engine and model."""
    all_served = list(points)
    groups: dict[str, list[ServedPoint]] = {"all": all_served}
    for name_of in _GROUPS:
        for served in all_served:
            groups.setdefault(name_of(served.point), []).append(served)
    rows: list[dict[str, object]] = []
    for name, members in groups.items():
        errors = {f"median_{key}_error": _median(members, of) for key, of in _ERRORS.items()}
        rows.append({"group": name, "points": len(members), **errors})
    return rows


_GROUPS: tuple[Callable[[ServingPoint], str], ...] = (
    lambda point: f"client {point.client.value}",
    lambda point: point.engine,
    lambda point: point.model.rpartition("/")[2],
)


def _median(members: Iterable[ServedPoint], figure: str) -> float | None:
    sizes = [abs(value) for member in members if (value := member.error(figure)) is not None]
    return median(sizes) if sizes else None
