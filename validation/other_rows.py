"""Show what `validation/other_programs.py` found as the table of docs/evidence/fusion.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "data" / "other_programs.json"
NODES = ("H100_80GB", "TPUv5e")


def table(file: Path = FIGURES) -> str:
    """Return the page's table and a line for each part."""
    entries = json.loads(file.read_text())
    lines = [
        "| program | on | fused | compiled | step | memory |",
        f"|{'---|' * 6}",
    ]
    for entry in entries:
        cells = [
            f"{entry['name']}{' *' if entry['is_rule_seen'] else ''}",
            entry["node"].split("_")[0].removeprefix("TPU"),
            *[f"{1e3 * entry[f'{each}_s']:.2f} ms" for each in ("fused", "compiled")],
            *[f"{100 * _error(entry, unit):+.0f} %" for unit in ("s", "bytes")],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *[_summary(entries, node) for node in NODES], ""])


def _error(entry: Mapping[str, Any], unit: str) -> float:
    return entry[f"fused_{unit}"] / entry[f"compiled_{unit}"] - 1


def _summary(entries: Sequence[Mapping[str, Any]], node: str) -> str:
    parts: list[str] = []
    for words, is_rule_seen in (("with a star", True), ("without", False)):
        errors = [
            _error(entry, "s")
            for entry in entries
            if entry["node"] == node and entry["is_rule_seen"] is is_rule_seen
        ]
        if errors:
            size, low, high = 100 * median(map(abs, errors)), 100 * min(errors), 100 * max(errors)
            parts.append(f"{words} off by {size:.0f} % in the median, {low:+.0f} to {high:+.0f} %")
    return f"* {node}: {'; '.join(parts)}."
