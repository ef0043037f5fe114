"""The runs of damaged files that docs/data/fuzz.json records, in a sentence of docs/reliability.md.

``python -m fuzz --record docs/data/fuzz.json`` adds a run to it (docs/reliability.md).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

RECORD = Path(__file__).resolve().parents[1] / "docs" / "data" / "fuzz.json"
_ENDS = ("answered", "refused", "failed")


def summary() -> str:
    """Return a paragraph: how many damaged files of how many kinds failed."""
    runs = json.loads(RECORD.read_text())["runs"]
    ends: Counter[tuple[str, str]] = Counter()
    for run in runs:
        for reader, counts in run["readers"].items():
            ends.update({(reader, end): counts[end] for end in _ENDS})
    inputs, cuts = (sum(run[key] for run in runs) for key in ("inputs", "cut_short"))
    failed = sum(times for (_, end), times in ends.items() if end == "failed")
    seeds = ", ".join(str(run["seed"]) for run in runs)
    longest_s = max(run["longest_s"] for run in runs)
    kinds = len({reader for reader, _ in ends})
    return (
        f"{inputs} damaged files of {kinds} kinds, {cuts} of them cut short (seeds {seeds}): "
        f"{failed} failed. The longest took {longest_s} s."
    )
