"""Published steps of PyTorch beside predictions: the tables of docs/evidence/library-steps.md.

    hespas validate --set pytorch --json rows.json
    python validation/library_steps.py rows.json

The figures that the page needs of each row are kept in docs/data/library_steps.json. Without an
argument the page is written from them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from hespas.base.files import json_bytes, write_file
from hespas.models.catalogue import model_named

ROOT = Path(__file__).resolve().parents[1]
FAR = 0.15
"""The page lists steps whose error is larger."""
DATA = ROOT / "docs" / "data" / "library_steps.json"
PAGE = ROOT / "docs" / "evidence" / "library-steps.md"
_KEPT = (
    *("family", "part", "devices", "framework_year", "publisher", "published_s", "predicted_s"),
    *("error", "memory_error", "exposed_s", "reason", "workload", "options", "source"),
)
_APART = 0.1
"""Two published steps that differ by less are in no order."""
_FEATURES = "source, part | products | layers | micro-batch"
Row = dict[str, Any]


def kept(rows: Iterable[Row]) -> list[Row]:
    """Return of rows what the page needs."""
    return [{name: row[name] for name in _KEPT} for row in rows]


def summary() -> str:
    """Return a sentence without its full stop and without line breaks."""
    errors = [row["error"] for row in json.loads(DATA.read_text()) if row["error"] is not None]
    return (
        f"{len(errors)} published steps of PyTorch and Megatron-LM are off by "
        f"{100 * mean(map(abs, errors)):.1f} % in the mean, most too short, "
        f"{100 * min(errors):+.0f} to {100 * max(errors):+.0f} %"
    )


def errors_by(rows: Iterable[Row], group: Callable[[Row], str], title: str) -> str:
    """Return a table of the errors of groups of rows."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["error"] is not None:
            groups.setdefault(group(row), []).append(row)
    lines = [
        f"| {title} | steps | mean error | mean, with sign | largest | peak memory |",
        f"{'|---' * (title.count('|') + 6)}|",
    ]
    for name, members in sorted(groups.items()):
        errors: list[float] = [row["error"] for row in members]
        memory: list[float] = [
            abs(row["memory_error"]) for row in members if row["memory_error"] is not None
        ]
        cells = [
            name,
            str(len(members)),
            f"{100 * mean(map(abs, errors)):.1f} %",
            f"{100 * mean(errors):+.1f} %",
            f"{100 * max(errors, key=abs):+.1f} %",
            f"{100 * mean(memory):.1f} %" if memory else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def features(row: Row) -> str:
    """Return what a step's kernels follow from: part, products, layers, sequences at a time."""
    settings: Any = model_named(row["workload"]).settings
    number = row["options"].get("micro_batch", "")
    cells = (
        f"{row['publisher']}, {row['part'].partition('_')[0]}",
        row["options"].get("product_dtype", "bf16"),
        "dense" if settings.routing is None else "experts",
        number if number in {"", "1"} else "more",
    )
    return " | ".join(cells)


def order(rows: Iterable[Row]) -> tuple[int, int]:
    """Return how many pairs are predicted in the published order, and how many pairs there are.

    A pair is two runs of one model with one software on as many devices of one part, with tokens a
    second that differ by 10 % or more.
    """
    right = count = 0
    for one, other in combinations([row for row in rows if row["error"] is not None], 2):
        if _compared(one) != _compared(other):
            continue
        rates = [_rate(each, "published_s") for each in (one, other)]
        if abs(rates[0] / rates[1] - 1) < _APART or one["options"] == other["options"]:
            continue
        count += 1
        predicted = [_rate(each, "predicted_s") for each in (one, other)]
        right += (rates[0] > rates[1]) == (predicted[0] > predicted[1])
    return right, count


def _compared(row: Row) -> tuple[object, ...]:
    sizes = (row["options"].get(name) for name in ("embedding", "layers"))
    return (*(row[name] for name in ("source", "workload", "part", "devices")), *sizes)


def _rate(row: Row, time: str) -> float:
    options = row["options"]
    return int(options["global_batch"]) * int(options["sequence"]) / row[time]


def lines_of(rows: Iterable[Row]) -> str:
    """Return a line for each row that is far off."""
    lines = [
        "| source | model | machine | mesh | year | published | predicted | error | memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["error"] is None or abs(row["error"]) <= FAR:
            continue
        memory = row["memory_error"]
        cells = [
            row["publisher"],
            row["workload"].rpartition("/")[2],
            f"{row['devices']} {row['part']}",
            f"`{row['options']['mesh']}`",
            str(row["framework_year"]),
            f"{row['published_s']:.3g} s",
            f"{row['predicted_s']:.3g} s",
            f"{100 * row['error']:+.1f} %",
            "" if memory is None else f"{100 * memory:+.1f} %",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page_text(text: str, rows: list[Row]) -> str:
    """Return the page with the tables of the rows."""
    right, count = order(rows)
    missing: dict[str, int] = {}
    for row in rows:
        if row["error"] is None:
            missing[row["reason"]] = missing.get(row["reason"], 0) + 1
    parts = {
        "sources": errors_by(
            rows, lambda row: f"{row['publisher']}, {row['framework_year']}", "source, year"
        ),
        "families": errors_by(rows, lambda row: row["family"], "family"),
        "features": errors_by(rows, features, _FEATURES),
        "order": f"{right} of {count} pairs are predicted in the published order.",
        "missing": "\n".join(f"* {reason}: {number}" for reason, number in missing.items())
        or "None.",
        "rows": lines_of(rows),
    }
    for name, table in parts.items():
        marked = re.compile(rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
        text = marked.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", text)
    return text


def main() -> None:
    """Write the data where rows are given, and the page."""
    if len(sys.argv) > 1:
        rows = json.loads(Path(sys.argv[1]).read_text())["rows"]
        write_file(DATA, json_bytes(kept(rows)))
    rows = json.loads(DATA.read_text())
    write_file(PAGE, page_text(PAGE.read_text(), rows).encode())


if __name__ == "__main__":
    main()
