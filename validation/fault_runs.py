"""The faults that docs/data/faults.json records, in a sentence of docs/reliability.md.

``python -m faults --record docs/data/faults.json`` adds a run to it (docs/reliability.md).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

RECORD = Path(__file__).resolve().parents[1] / "docs" / "data" / "faults.json"


def summary() -> str:
    """Return a sentence: how many faults of how many kinds went wrong."""
    runs = json.loads(RECORD.read_text())["runs"]
    trials = [trial for run in runs for trial in run["trials"]]
    ends: Counter[tuple[str, str]] = Counter()
    for trial in trials:
        ends[trial["fault"], trial["end"]] += trial["times"]
    wrong = sum(times for (_, end), times in ends.items() if end == "wrong")
    kinds = len({fault for fault, _ in ends})
    return f"{ends.total()} trials of {kinds} faults: {wrong} went wrong."
