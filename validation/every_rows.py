"""Record what `hespas validate --all` says, and make the tables of docs/evidence/accuracy.md of it.

    hespas validate --all --json rows.json
    python validation/every_rows.py rows.json...

Several files, as of one group each, are joined; a row that none of them has stays as it was
recorded; steps on four GPUs that were never recorded are those of docs/data/accuracy.json. `python
validation/pages.py docs/evidence/accuracy.md` writes the tables.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, mean
from typing import Any

from hespas.base.units import format_time
from hespas.evidence.validate.published import Row, read_rows

_ACCURACY = Path(__file__).resolve().parents[1] / "docs" / "data" / "accuracy.json"
RECORDED = Path(__file__).resolve().parents[1] / "docs" / "data" / "every_step.json"
Recorded = Mapping[str, Any]

_KEPT = (
    "family",
    "workload",
    "part",
    "devices",
    "scale",
    "published_s",
    "predicted_s",
    "error",
    "exposed_s",
    "compute_s",
    "peak_memory_bytes",
    "framework_year",
    "held_by",
    "reason",
    "cpu_s",
    "memory_bytes",
    "note",
)
_RECENT = 2025
_NOT_RECORDED = "not computed for this page yet"


def main() -> None:
    """Join files, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    files: list[Path] = [*([RECORDED] if RECORDED.exists() else []), *given.files]
    made: list[Recorded] = [row for file in files for row in json.loads(file.read_text())["rows"]]
    known = {_identity(row): row for row in made}
    rows = [{name: each.get(name) for name in _KEPT} for each in _in_order(known)]
    RECORDED.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    print(f"{RECORDED}: {sum(row['predicted_s'] is not None for row in rows)} of {len(rows)} steps")


def _identity(row: Recorded) -> tuple[object, ...]:
    named = (row["family"], row["workload"], row["part"], row["devices"])
    return (*named, round(row["published_s"], 6))


def _in_order(known: Mapping[tuple[object, ...], Recorded]) -> Iterator[Recorded]:
    """Yield the record of each row of the packaged table, in its order."""
    for row in read_rows():
        blank = _blank(row)
        found = known.get(_identity(blank), blank)
        yield found if found["predicted_s"] is not None else blank | _on_four(row)


def _on_four(row: Row) -> dict[str, Any]:
    """Return what `hespas validate` recorded of a step on four GPUs; nothing for others."""
    accuracy = json.loads(_ACCURACY.read_text())
    for step in accuracy["steps"]:
        if (step["workload"], step["system"]) == (row.workload, row.system):
            predicted_s = step["predicted_s"][accuracy["method"]]
            return {
                "predicted_s": predicted_s,
                "error": predicted_s / row.published_s - 1,
                "held_by": "compiled",
                "reason": "",
            }
    return {}


def _blank(row: Row) -> dict[str, Any]:
    named: dict[str, Any] = dict.fromkeys(_KEPT)
    return named | {
        "family": row.family,
        "workload": row.workload,
        "part": row.node,
        "devices": row.devices,
        "scale": row.scale,
        "published_s": row.published_s,
        "framework_year": row.framework_year,
        "reason": row.missing or _NOT_RECORDED,
        "cpu_s": 0.0,
        "memory_bytes": 0,
        "note": row.note,
    }


def _rows() -> list[Recorded]:
    return json.loads(RECORDED.read_text())["rows"]


def _predicted(rows: Iterable[Recorded]) -> list[Recorded]:
    return [row for row in rows if row["predicted_s"] is not None]


def _name(row: Recorded) -> str:
    return row["family"] if row["workload"].startswith("maxtext:") else row["workload"]


def _signed(error: float) -> str:
    return f"{100 * error:+.1f} %"


def _known(value: float | None, show: Callable[[float], str]) -> str:
    """Return what was recorded of a step, empty where nothing was."""
    return show(value) if value else ""


def steps_table() -> str:
    """Return a row for each step that is predicted."""
    lines = [
        (
            "| step | part | devices | year | published | predicted | error | exposed | held by "
            "| CPU |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {_name(row)} | {row['part']} | {row['devices']} | {row['framework_year']} "
        f"| {format_time(row['published_s'])} | {format_time(row['predicted_s'])} "
        f"| {_signed(row['error'])} | {_known(row['exposed_s'], format_time)} | {row['held_by']} "
        f"| {_known(row['cpu_s'], lambda cpu_s: f'{cpu_s / 60:.1f} min')} |"
        for row in _predicted(_rows())
    ]
    return "\n".join([*lines, ""])


def groups_table() -> str:
    """Return the errors by kind of part, scale, year and what the prediction stands on."""
    rows = _predicted(_rows())
    groupings: dict[str, Callable[[Recorded], str]] = {
        "kind of part": lambda row: "TPUs" if row["part"].startswith("TPU") else "GPUs",
        "part": lambda row: row["part"],
        "scale": lambda row: row["scale"],
        "framework year": lambda row: str(row["framework_year"]),
        "held by": lambda row: row["held_by"],
    }
    lines = [
        "| group | | steps | mean absolute error | mean error | largest |",
        "|---|---|---|---|---|---|",
    ]
    for title, of in groupings.items():
        lines += [
            _errors_line(f"| {title} | {group} ", [row for row in rows if of(row) == group])
            for group in sorted({of(row) for row in rows})
        ]
    return "\n".join([*lines, _errors_line("| all | ", rows), ""])


def _errors_line(start: str, rows: Sequence[Recorded]) -> str:
    errors: list[float] = [row["error"] for row in rows]
    return (
        f"{start}| {len(errors)} | {100 * mean(map(abs, errors)):.1f} % | {_signed(mean(errors))} "
        f"| {_signed(max(errors, key=abs))} |"
    )


def missing_list() -> str:
    """Return what is not predicted, and what is not compiled, by the reason and the part."""
    by_reason: dict[str, dict[str, list[Recorded]]] = {}
    for row in _rows():
        if row["reason"]:
            title = row["reason"] if row["predicted_s"] is None else f"*fused:* {row['reason']}"
            by_reason.setdefault(title, {}).setdefault(row["part"], []).append(row)
    lines = [
        f"* {reason}: {'; '.join(_of_part(part, rows) for part, rows in parts.items())}."
        for reason, parts in by_reason.items()
    ]
    return "\n".join([*lines, ""])


def notes_list() -> str:
    """Return what is assumed of rows beside what every prediction says of itself."""
    by_note: dict[str, dict[str, list[Recorded]]] = {}
    for row in _predicted(_rows()):
        if row["note"]:
            by_note.setdefault(row["note"], {}).setdefault(row["part"], []).append(row)
    lines = [
        f"* {note}: {'; '.join(_of_part(part, rows) for part, rows in parts.items())}."
        for note, parts in by_note.items()
    ]
    return "\n".join([*lines, ""])


def _of_part(part: str, rows: Sequence[Recorded]) -> str:
    names = ", ".join(dict.fromkeys(_name(row) for row in rows))
    counts = sorted({row["devices"] for row in rows})
    devices = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{len(rows)} on {devices} {part} ({names})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why steps are off, and which: the first cause that names a row has it."""

    text: str
    names: Callable[[Recorded], bool]


CAUSES = (
    Cause(
        text="pipelines of Megatron-LM in fp8: products in pieces, and waiting, are not modelled",
        names=lambda row: "(MLPerf)" in row["family"],
    ),
    Cause(
        text="software of 2023 and 2024 on GPUs was slower than today's compiler, and gradients "
        "between nodes took longer than by the rate of their network",
        names=lambda row: not row["part"].startswith("TPU") and row["framework_year"] <= 2024,
    ),
    Cause(
        text="libtpu's cycles of products are too long: the step of 1B on the TPU v3, which was "
        "recorded before products were calibrated, and that of 100M",
        names=lambda row: row["part"] == "TPUv3",
    ),
    Cause(
        text="growth over slices of TPUs v5e, which is not in the prediction, and exposed "
        "communication on v5p",
        names=lambda row: row["part"] in {"TPUv5e", "TPUv5p"} and row["held_by"] != "fused",
    ),
    Cause(
        text="TPUs by modelled fusion and peak rates",
        names=lambda row: row["part"].startswith("TPU"),
    ),
    Cause(
        text="convolutions are priced as the products of their sizes, and the time is rounded to "
        "10 ms: ResNets on A100s",
        names=lambda row: row["family"] == "resnet",
    ),
    Cause(
        text="reductions of unfused attention ran faster on H100s in two sizes than in the others, "
        "and times are rounded to 10 ms: Llama-like models on four GPUs",
        names=lambda row: row["family"].startswith("llama3-like"),
    ),
    Cause(text="recipes of 2025 on GPUs", names=lambda row: True),  # noqa: ARG005
)


def causes_table() -> str:
    """Return the errors by cause, the largest first."""
    rows = _predicted(_rows())
    of: dict[str, list[Recorded]] = {}
    for row in rows:
        cause = next(each for each in CAUSES if each.names(row))
        of.setdefault(cause.text, []).append(row)
    found = sorted(of.items(), key=lambda each: -mean(abs(row["error"]) for row in each[1]))
    lines = [
        "| cause | steps | mean absolute error | mean error | largest |",
        "|---|---|---|---|---|",
    ]
    lines += [_errors_line(f"| {text} ", named) for text, named in found]
    return "\n".join([*lines, ""])


_COUNTED = re.compile(r"\d+ (?:slices|machines) of (.*)")


def _curves() -> list[list[Recorded]]:
    """Return the steps of each model over slices of TPUs or machines of GPUs, the fewest first.

    Steps of compiled programs are not set against fused ones.
    """
    curves: dict[tuple[str, str, str, bool], list[Recorded]] = {}
    for row in _predicted(_rows()):
        counted = _COUNTED.fullmatch(row["note"])
        if counted:
            is_fused = row["held_by"] == "fused"
            curves.setdefault((row["family"], row["part"], counted[1], is_fused), []).append(row)
    ordered = [sorted(rows, key=lambda row: row["devices"]) for rows in curves.values()]
    return [rows for rows in ordered if len(rows) > 1]


def _off(row: Recorded, first: Recorded) -> float:
    """Return predicted growth over published growth, less one."""
    grown = [row[of] / first[of] for of in ("published_s", "predicted_s")]
    return grown[1] / grown[0] - 1


def scaling_table() -> str:
    """Return how a model's steps grow over slices or machines: each over that of the fewest."""
    lines = [
        "| model | devices | held by | published, of the smallest | predicted | off |",
        "|---|---|---|---|---|---|",
    ]
    for first, *others in _curves():
        for row in others:
            grown = [row[of] / first[of] for of in ("published_s", "predicted_s")]
            lines.append(
                f"| {_name(row)}, {row['part']} | {row['devices']} of {first['devices']} "
                f"| {row['held_by']} | {grown[0]:.3f} | {grown[1]:.3f} "
                f"| {_signed(_off(row, first))} |"
            )
    return "\n".join([*lines, ""])


def _slowest_normal(count: int) -> float:
    """Return how many deviations the largest of ``count`` normal numbers lies above the mean."""
    width, normal = 0.01, NormalDist()
    places = [width * at for at in range(-800, 801)]
    return width * sum(
        count * place * normal.pdf(place) * normal.cdf(place) ** (count - 1) for place in places
    )


def _slowest_exponential(count: int) -> float:
    """Return the same of delays that are mostly short: 1 + 1/2 + ... + 1/n, less the mean of 1."""
    return sum(1 / at for at in range(2, count + 1))


_GROWTHS: Mapping[str, Callable[[int], float]] = {
    "none": lambda count: 0.0,  # noqa: ARG005
    "waiting for the slowest slice, steps of a slice normal": _slowest_normal,
    "waiting for the slowest slice, delays exponential": _slowest_exponential,
    "as much for each slice more": lambda count: count - 1.0,
}
_A_SLICE = 256


def growth_table() -> str:
    """Return how far a law of growth carries on v5e, fitted to all models but the one it judges.

    A law adds a constant times its function of the number of slices to predicted growth.
    """
    curves = [rows for rows in _curves() if rows[0]["part"] == "TPUv5e"]
    names = [f"{_name(rows[0])}, {rows[0]['devices']} to {rows[-1]['devices']}" for rows in curves]
    lines = [
        f"| what grows | {' | '.join(names)} |",
        "|---|" + "---|" * len(curves),
    ]
    for law, function in _GROWTHS.items():
        points = [[_point(row, rows[0], function) for row in rows[1:]] for rows in curves]
        cells: list[str] = []
        for at, own in enumerate(points):
            others = [each for rows in (*points[:at], *points[at + 1 :]) for each in rows]
            weight = sum(x * x for x, _ in others)
            constant = sum(x * y for x, y in others) / weight if weight else 0.0
            off = [(1 + constant * x) / (1 + y) - 1 for x, y in own]
            of_slice = f" ({100 * constant:.2f} %)" if weight else ""
            cells.append(f"{_signed(max(off, key=abs))}{of_slice}")
        lines.append(f"| {law} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _point(row: Recorded, first: Recorded, function: Callable[[int], float]) -> tuple[float, float]:
    """Return how much a law's function grows, and what growth the prediction lacks."""
    count, fewest = (each["devices"] // _A_SLICE for each in (row, first))
    return function(count) - function(fewest), 1 / (1 + _off(row, first)) - 1


def summary() -> str:
    """Return a sentence without its full stop and without line breaks."""
    every = _rows()
    rows = _predicted(every)
    on_tpus = [row for row in rows if row["part"].startswith("TPU")]
    on_gpus = [row for row in rows if not row["part"].startswith("TPU")]
    recent = [row for row in on_gpus if row["framework_year"] >= _RECENT]
    older = [row for row in on_gpus if row["framework_year"] < _RECENT]
    worst = max((row["error"] for row in rows), key=abs)
    return (
        f"Of {len(every)} published steps {len(rows)} are predicted, with a mean absolute error of "
        f"{_mean_error(rows)}: {_mean_error(on_tpus)} on TPUs, {_mean_error(recent)} on GPUs with "
        f"software of {_RECENT} and later, {_mean_error(older)} with older software; "
        f"{_signed(worst)} at the most"
    )


def _mean_error(rows: Sequence[Recorded]) -> str:
    return f"{100 * mean(abs(row['error']) for row in rows):.1f} %"


if __name__ == "__main__":
    main()
