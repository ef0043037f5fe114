"""Published serving rates beside predictions of prefill and decode steps, part by part.

``python validation/serving.py ../shared/data/ground-truth/serving_trtllm.csv`` reads the published
rows, predicts them, and writes docs/data/serving.json and the tables of docs/evidence/serving.md.
Without a file it predicts the rows that are recorded. Nothing is fitted. Source of the rows:
NVIDIA/TensorRT-LLM, docs/source/performance.md of v0.9.0 (Apache-2.0), measured by its
gptSessionBenchmark: fixed batches, so no scheduler stands between.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hespas.base.files import json_bytes, write_file
from hespas.models.model import parse_mesh
from hespas.prediction.composition import predict
from hespas.prediction.options import (
    CompileChoice,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.report.answers import Answer, answer_of
from hespas.sources.options import ModelOptions

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data" / "serving.json"
PAGE = ROOT / "docs" / "evidence" / "serving.md"
_MODELS = {
    "LLaMA-2 7B": "llama2-7b",
    "LLaMA-2 70B": "llama2-70b",
    "Mistral 7B": "mistral-7b",
    "Mixtral 8x7B": "mixtral-8x7b",
}
_SMALL = {"weight_dtype": "f8", "cache_dtype": "f8"}
_MS = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A published point: ``value`` is ms to the first token, or tokens/s of one GPU."""

    model: str
    devices: int
    batch: int
    prompt: int
    made: int
    value: float

    @property
    def is_first_token(self) -> bool:
        """Whether it is the time to the first token, and not a rate."""
        return self.made == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Where the time of steps goes, in seconds; launches stand in the other parts too."""

    products_s: float = 0.0
    attention_s: float = 0.0
    others_s: float = 0.0
    collectives_s: float = 0.0
    launches_s: float = 0.0

    def __add__(self, other: Parts) -> Parts:
        mine, others = asdict(self), asdict(other)
        return Parts(**{name: mine[name] + others[name] for name in mine})

    def times(self, count: float) -> Parts:
        """Return the parts of as many steps."""
        return Parts(**{name: value * count for name, value in asdict(self).items()})

    @property
    def total_s(self) -> float:
        """The time of the steps."""
        return self.products_s + self.attention_s + self.others_s + self.collectives_s


def published(path: Path) -> list[Point]:
    """Return the rows of H100 with fixed batches and of prompts alone."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return [
        Point(
            model=_MODELS[row["model"]],
            devices=int(row["gpus"]),
            batch=int(row["batch"]),
            prompt=int(row["isl"]),
            made=int(row["osl"]),
            value=float(row["value"]),
        )
        for row in rows
        if row["mode"] in {"static batch", "prefill alone"} and row["model"] in _MODELS
    ]


def of_point(point: Point) -> dict[str, Any]:
    """Return a point with what is predicted of it.

    A fixed batch takes its prompts at once, and then a step for each further token: the step over
    a cache is predicted for the shortest, the middle and the longest, and summed by Simpson's rule.
    """
    prefill = parts_of(point, f"{point.model}-prefill", {"sequence": point.prompt})
    steps = point.made - 1
    decode = Parts()
    if steps:
        first, last = point.prompt + 1, point.prompt + steps
        middle = (first + last) // 2
        low, mean, high = (
            parts_of(point, f"{point.model}-decode", {"context": each})
            for each in (first, middle, last)
        )
        decode = (low + mean.times(4) + high).times(steps / 6)
    whole = prefill + decode
    rate = point.batch * point.made / whole.total_s / point.devices
    return {
        **asdict(point),
        "predicted": whole.total_s * _MS if point.is_first_token else rate,
        "prefill": asdict(prefill),
        "decode": asdict(decode),
    }


def parts_of(point: Point, model: str, sizes: dict[str, int]) -> Parts:
    """Return the parts of one step."""
    more = _SMALL | {name: str(size) for name, size in sizes.items()}
    options = PredictOptions(
        program=ProgramOptions(
            file=Path(model),
            model=ModelOptions(
                mesh=parse_mesh(f"tp={point.devices}"), batch=point.batch, settings=more
            ),
        ),
        network=NetworkOptions(cluster=f"{point.devices}xH100_80GB"),
        compile=CompileChoice(fidelity=Fidelity.FUSED),
    )
    return divided(answer_of(predict(options)))


def divided(prediction: Answer) -> Parts:
    """Return where a step's time goes."""
    rows = prediction.rows("kinds")
    products = _sum(rows, "matrix product")
    attention = _sum(rows, "fused attention")
    return Parts(
        products_s=products,
        attention_s=attention,
        others_s=prediction.compute_s - products - attention,
        collectives_s=prediction.step_time_s - prediction.compute_s,
        launches_s=prediction.estimates.total.total.bound.launch_s,
    )


def _sum(rows: Iterable[Mapping[str, Any]], kind: str) -> float:
    """Return the time of kernels whose kind begins so."""
    return sum(float(row["time_s"]) for row in rows if str(row["kind"]).startswith(kind))


def tables(rows: list[dict[str, Any]]) -> str:
    """Return the tables of the page."""
    first = [row for row in rows if row["made"] == 1]
    fixed = [row for row in rows if row["made"] > 1]
    return "\n".join(
        [
            *_table("prompt", "published", "predicted", first),
            "",
            *_table(
                "batch x (prompt+new)",
                "published, tokens/s",
                "predicted",
                fixed,
            ),
            "",
            _summary("the first token", first),
            _summary("fixed batches", fixed),
        ]
    )


def _table(what: str, measured: str, ours: str, rows: list[dict[str, Any]]) -> list[str]:
    heads = ("model", "GPUs", what, measured, ours, "error", "attention")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines.extend(f"| {' | '.join(_cells(row))} |" for row in rows)
    return lines


def _cells(row: dict[str, Any]) -> list[str]:
    whole = Parts(**row["prefill"]) + Parts(**row["decode"])
    is_first = row["made"] == 1
    asked = f"{row['prompt']}" if is_first else f"{row['batch']}x({row['prompt']}+{row['made']})"
    unit, places = (" ms", 1) if is_first else ("", 0)
    return [
        f"`{row['model']}`",
        str(row["devices"]),
        asked,
        f"{row['value']:,.{places}f}{unit}",
        f"{row['predicted']:,.{places}f}{unit}",
        f"{100 * error(row):+.1f} %",
        f"{100 * whole.attention_s / whole.total_s:.0f} %",
    ]


def error(row: dict[str, Any]) -> float:
    """Return by how much the predicted time is longer than the published one, as a part of it."""
    ratio = row["predicted"] / row["value"]
    return ratio - 1 if row["made"] == 1 else 1 / ratio - 1


def summary() -> str:
    """Return a sentence without its full stop and without line breaks."""
    errors = [error(row) for row in json.loads(DATA.read_text())]
    return (
        f"{len(errors)} published points of TensorRT-LLM on H100 are off by "
        f"{100 * fmean(map(abs, errors)):.1f} % in the mean, {100 * min(errors):+.1f} to "
        f"{100 * max(errors):+.1f} %"
    )


def _summary(name: str, rows: list[dict[str, Any]]) -> str:
    errors = [error(row) for row in rows]
    return (
        f"Of {name} the predicted time is off by {100 * fmean(map(abs, errors)):.1f} % in the "
        f"mean of {len(rows)}, and by {100 * min(errors):+.1f} to {100 * max(errors):+.1f} %.\n"
    )


_BEGIN, _END = "<!-- serving: begin -->", "<!-- serving: end -->"


def with_tables(text: str, rows: list[dict[str, Any]]) -> str:
    """Return a page with its tables as the rows have it."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{tables(rows)}\n{_END}{after}"


def main() -> None:
    """Predict all points, and write what was found."""
    names = ("model", "devices", "batch", "prompt", "made", "value")
    if len(sys.argv) > 1:
        points = published(Path(sys.argv[1]))
    else:
        points = [
            Point(**{each: row[each] for each in names}) for row in json.loads(DATA.read_text())
        ]
    rows: list[dict[str, Any]] = []
    for point in points:
        rows.append(of_point(point))
        print(" | ".join(_cells(rows[-1])), flush=True)
    write_file(DATA, json_bytes(rows))
    if PAGE.exists():
        write_file(PAGE, with_tables(PAGE.read_text(), rows).encode())


if __name__ == "__main__":
    main()
