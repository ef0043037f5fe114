"""Measure what the recipe of docs/how-to/maxtext.md costs, cold and cached, on this machine.

    HESPAS_MAXTEXT_PYTHON=~/maxtext/bin/python python validation/recipe_cost.py

It writes docs/data/recipe.json, and `python validation/pages.py docs/how-to/maxtext.md` the page.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hespas.base.units import format_time
from hespas.evidence.validate.measurements import Row, read_rows

RECORDED = Path(__file__).resolve().parents[1] / "docs" / "data" / "recipe.json"
_CACHED_RUNS = 3
_KIB = 1024


def recipe() -> Row:
    """Return the row of the recipe that the page shows."""
    return next(row for row in read_rows() if row.node == "H200_141GB")


def command(row: Row) -> list[str]:
    """Return the words of ``hespas run`` for a row of a recipe."""
    settings = [f"{name}={value}" for name, value in row.options.items()]
    shown = [word for setting in settings for word in ("--set", setting)]
    return ["run", row.workload, "--cluster", row.system, *shown]


def main() -> None:
    """Run the recipe with an empty cache, and again with a full one, and record both."""
    with TemporaryDirectory() as cache:
        words = [*command(recipe()), "--cache-dir", cache]
        cold = _measured(words)
        cached = [_measured(words) for _ in range(_CACHED_RUNS)]
        report = json.loads(_said([*words, "--json"]))
    answer = {
        "predicted_s": report["step_time_s"],
        "exposed_s": report["exposed_communication_s"],
        "cold_cpu_s": cold.cpu_s,
        "memory_bytes": cold.memory_bytes,
        "cached_cpu_s": min(each.cpu_s for each in cached),
    }
    RECORDED.write_text(json.dumps(answer, indent=1) + "\n")
    print(json.dumps(answer))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """Processor time of a command and all it starts, and the memory of its largest process."""

    cpu_s: float
    memory_bytes: int


def _measured(words: list[str]) -> _Cost:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _said(words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return _Cost(
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        memory_bytes=_KIB * after.ru_maxrss,
    )


def _said(words: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hespas", *words], check=True, capture_output=True, text=True
    )
    return done.stdout


def _recorded() -> dict[str, float]:
    return json.loads(RECORDED.read_text())


def cost() -> str:
    """Return what it cost, as a sentence without line breaks."""
    made = _recorded()
    return (
        "The first time, export, compilation and prediction take "
        f"{made['cold_cpu_s']:.0f} s of CPU time and {made['memory_bytes'] / 1e9:.1f} GB, and "
        f"after that {made['cached_cpu_s']:.1f} s"
    )


def prediction() -> str:
    """Return the prediction beside what was published, as a table."""
    made, row = _recorded(), recipe()
    error = made["predicted_s"] / row.published_s - 1
    return (
        "| step | published | predicted | exposed communication |\n|---|---|---|---|\n"
        f"| Llama 3.1 70B, {row.system}, the settings above ({row.source}) | {row.published_s} s "
        f"| {format_time(made['predicted_s'])} ({100 * error:+.1f} %) "
        f"| {format_time(made['exposed_s'])} |\n"
    )


if __name__ == "__main__":
    main()
