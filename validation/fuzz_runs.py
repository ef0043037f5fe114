"""The runs of damaged files that docs/data/fuzz.json records, as a table for docs/reliability.md.

``python -m fuzz --record docs/data/fuzz.json`` adds a run to it (docs/reliability.md).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

RECORD = Path(__file__).resolve().parents[1] / "docs" / "data" / "fuzz.json"
_ENDS = ("answered", "refused", "failed")


def table() -> str:
    """Return how many damaged files of each kind ended how, and a sentence on all of them."""
    runs = json.loads(RECORD.read_text())["runs"]
    ends: Counter[tuple[str, str]] = Counter()
    for run in runs:
        for reader, counts in run["readers"].items():
            ends.update({(reader, end): counts[end] for end in _ENDS})
    lines = ["| files | answered | refused | failed |", "|---|---|---|---|"]
    lines += [
        f"| {reader} | {' | '.join(str(ends[reader, end]) for end in _ENDS)} |"
        for reader in sorted({reader for reader, _ in ends})
    ]
    inputs, cuts = (sum(run[key] for run in runs) for key in ("inputs", "cut_short"))
    failed = sum(times for (_, end), times in ends.items() if end == "failed")
    seeds = ", ".join(str(run["seed"]) for run in runs)
    longest_s = max(run["longest_s"] for run in runs)
    said = (
        f"Together {inputs} files, {cuts} of them cut short, with the seeds {seeds}: "
        f"{failed} failed. The longest took {longest_s} s."
    )
    return "\n".join([*lines, "", said, ""])
