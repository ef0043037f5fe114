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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from hespas.base.units import format_time
from hespas.evidence.validate.measurements import Row, read_rows

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
RECENT = 2025
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


def steps_table() -> str:
    """Return a row for each model and part that is predicted, whatever the number of devices."""
    lines = ["| step | devices | published | predicted | error |", "|---|---|---|---|---|"]
    alike: dict[tuple[str, str], list[Recorded]] = {}
    for row in _predicted(_rows()):
        alike.setdefault((_name(row), row["part"]), []).append(row)
    for (name, part), rows in alike.items():
        cells = (
            f"{_range(rows, 'devices', str)} {part}",
            _range(rows, "published_s", format_time),
            _range(rows, "predicted_s", format_time),
            _range(rows, "error", _signed),
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _range(rows: Sequence[Recorded], key: str, show: Callable[[Any], str]) -> str:
    """Return the least and the largest value of some rows."""
    least, most = (show(each(row[key] for row in rows)) for each in (min, max))
    return least if least == most else f"{least} to {most}"


def groups_table() -> str:
    """Return the errors by part, year and what predictions stand on, of several steps each."""
    rows = _predicted(_rows())
    groupings: dict[str, Callable[[Recorded], str]] = {
        "kind of part": lambda row: "TPUs" if row["part"].startswith("TPU") else "GPUs",
        "part": lambda row: row["part"],
        "framework year": lambda row: str(row["framework_year"]),
        "held by": lambda row: row["held_by"],
    }
    lines = [
        "| group | | steps | mean absolute error | mean error | largest |",
        "|---|---|---|---|---|---|",
    ]
    for title, of in groupings.items():
        groups = {group: [row for row in rows if of(row) == group] for group in map(of, rows)}
        lines += [
            _errors_line(f"| {title} | {group} ", groups[group])
            for group in sorted(groups)
            if len(groups[group]) > 1
        ]
    return "\n".join([*lines, _errors_line("| all | ", rows), ""])


def _errors_line(start: str, rows: Sequence[Recorded]) -> str:
    errors: list[float] = [row["error"] for row in rows]
    return (
        f"{start}| {len(errors)} | {100 * mean(map(abs, errors)):.1f} % | {_signed(mean(errors))} "
        f"| {_signed(max(errors, key=abs))} |"
    )


def missing_list() -> str:
    """Return what is not predicted, and why."""
    lines = [
        f"* {_name(row)} on {row['devices']} {row['part']}: {row['reason']}."
        for row in _rows()
        if row["predicted_s"] is None
    ]
    return "\n".join([*lines, ""])


def summary() -> str:
    """Return a sentence without its full stop and without line breaks."""
    every = _rows()
    rows = _predicted(every)
    on_tpus = [row for row in rows if row["part"].startswith("TPU")]
    on_gpus = [row for row in rows if not row["part"].startswith("TPU")]
    recent = [row for row in on_gpus if row["framework_year"] >= RECENT]
    older = [row for row in on_gpus if row["framework_year"] < RECENT]
    worst = max((row["error"] for row in rows), key=abs)
    return (
        f"Of {len(every)} published steps {len(rows)} are predicted, with a mean absolute error of "
        f"{_mean_error(rows)}: {_mean_error(on_tpus)} on TPUs, {_mean_error(recent)} on GPUs with "
        f"software of {RECENT} and later, {_mean_error(older)} with older software; "
        f"{_signed(worst)} at the most"
    )


def _mean_error(rows: Sequence[Recorded]) -> str:
    return f"{100 * mean(abs(row['error']) for row in rows):.1f} %"


if __name__ == "__main__":
    main()
