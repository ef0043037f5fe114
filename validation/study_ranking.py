"""How well the screen ranks what the compiler then says, over studies of the zoo.

    python validation/study_ranking.py -o DIR [--workers 2] [--only NAME]

Every candidate of each study is screened and compiled (with the environment of ``make
test-compilers``). Printed is, for each study, whether the screen's best five hold the compiled
best, the place of the compiled best in the screen's order, and the correlation of the ranks.
A run that is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hespas.study.executor import ExecutorOptions
from hespas.study.rows import Row, Status, ranking
from hespas.study.run import Studied, studied
from hespas.study.study import study_of

_LAYERS = {"layers": 4}
_MESHES = {"data": "auto", "fsdp": "auto", "tp": "auto"}
_TWO_POLICIES = ["full", "minimal_with_context"]
STUDIES: dict[str, dict[str, Any]] = {
    "llama3-8b, mesh": {
        "model": "llama3-8b", "cluster": "16xH100_80GB", "mesh": {"fsdp": "auto", "tp": "auto"},
        "remat": _TWO_POLICIES, "global_batch": 16, "set": _LAYERS,
    },
    "llama3-8b, mesh on B200": {
        "model": "llama3-8b", "cluster": "8xB200_180GB", "mesh": _MESHES,
        "remat": "full", "global_batch": 8, "set": _LAYERS,
    },
    "llama3-70b, mesh": {
        "model": "llama3-70b", "cluster": "64xH100_80GB",
        "mesh": {"fsdp": "auto", "tp": [1, 2, 4, 8]},
        "remat": _TWO_POLICIES, "global_batch": 64, "set": _LAYERS,
    },
    "llama3-8b, rounds": {
        "model": "llama3-8b", "cluster": "8xH100_80GB", "mesh": {"fsdp": "auto", "tp": [1, 2]},
        "remat": _TWO_POLICIES, "global_batch": 32, "micro_batch": [1, 2, 4], "set": _LAYERS,
    },
    "llama3-8b, sequence": {
        "model": "llama3-8b", "cluster": "8xH100_80GB", "mesh": "fsdp=8",
        "remat": _TWO_POLICIES, "sequence": [1024, 2048, 4096, 8192], "set": _LAYERS,
    },
    "llama3 sizes": {
        "model": ["llama3-100m", "llama3-200m", "llama3-500m", "llama3-1b", "llama3-2b"],
        "cluster": "4xH100_80GB", "remat": _TWO_POLICIES, "set": _LAYERS,
    },
    "gpt3-13b, mesh": {
        "model": "gpt3-13b", "cluster": "16xH100_80GB", "mesh": {"fsdp": "auto", "tp": "auto"},
        "remat": "full", "global_batch": 16, "set": _LAYERS,
    },
    "parts": {
        "model": "llama3-8b", "cluster": ["8xA100_SXM_80GB", "8xH100_80GB", "8xH200_141GB"],
        "mesh": ["fsdp=8", "fsdp=4,tp=2"], "global_batch": 8, "set": _LAYERS,
    },
    "products": {
        "model": ["gemm-rows", "gemm-columns", "gemm-contracting", "gemm-scattered"],
        "cluster": ["4xH100_80GB", "4xB200_180GB"],
    },
    "decoding": {
        "model": "llama3-8b-decode", "cluster": "8xH100_80GB", "mesh": "tp=8",
        "batch": [1, 4, 16, 64, 256], "set": {"layers": 4},
    },
}  # fmt: skip


def line_of(name: str, found: Studied) -> str | None:
    """Return a study's line of the table; None where fewer than two were compiled."""
    ranked = ranking(found.rows, found.study.goal)
    if ranked is None:
        return None
    correlation = "" if ranked.correlation is None else f"{ranked.correlation:.2f}"
    holds = "yes" if ranked.holds_best else "no"
    error = f"{100 * ranked.largest_error:.0f} %"
    figures = (ranked.compiled, holds, place_of(found.rows), correlation, error)
    return f"| {name} | " + " | ".join(map(str, figures)) + " |"


def place_of(rows: tuple[Row, ...]) -> int:
    """Return the place, from 1, of the compiled best in the order of the screen."""
    done = [row for row in rows if row.status is Status.DONE]
    screened = [row for row in done if row.figures.get("screened_step_time_s") is not None]
    best = min(screened, key=lambda row: row.figures["step_time_s"] or 0)
    mine = best.figures["screened_step_time_s"] or 0
    return 1 + sum((row.figures["screened_step_time_s"] or 0) < mine for row in screened)


def main() -> int:
    """Run the studies and print the table."""
    parser = argparse.ArgumentParser(description="How well the screen ranks.")
    parser.add_argument("-o", dest="home", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", action="append", default=[])
    given = parser.parse_args()
    print("| study | compiled | best five hold the best | its place | correlation | off by |")
    print("|---|---|---|---|---|---|", flush=True)
    for name, values in STUDIES.items():
        if given.only and name not in given.only:
            continue
        # More than there are: every candidate is compiled, and no bound prunes.
        study = study_of({**values, "title": name, "budget": {"compile": 10**6}})
        directory = given.home / "".join(c if c.isalnum() else "-" for c in name)
        found = studied(study, directory, executor=ExecutorOptions(workers=given.workers))
        print(line_of(name, found) or f"| {name} | too few | | | | |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
