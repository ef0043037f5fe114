"""The faults that docs/data/faults.json records, as a table for docs/reliability.md.

``python -m faults --record docs/data/faults.json`` adds a run to it (docs/reliability.md).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

RECORD = Path(__file__).resolve().parents[1] / "docs" / "data" / "faults.json"
_ENDS = ("answered", "refused or ended", "wrong")


def table() -> str:
    """Return how often each fault was tried, and how that ended."""
    runs = json.loads(RECORD.read_text())["runs"]
    trials = [trial for run in runs for trial in run["trials"]]
    ends: Counter[tuple[str, str]] = Counter()
    for trial in trials:
        ends[trial["fault"], trial["end"]] += trial["times"]
    lines = ["| fault | answered | refused or ended | wrong |", "|---|---|---|---|"]
    lines += [
        f"| {fault} | {' | '.join(str(ends[fault, end]) for end in _ENDS)} |"
        for fault in sorted({fault for fault, _ in ends}, key=str.casefold)
    ]
    wrong = sum(times for (_, end), times in ends.items() if end == "wrong")
    said = f"Together {ends.total()} trials: {wrong} went wrong."
    return "\n".join([*lines, "", said, ""])
