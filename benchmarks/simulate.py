"""Measure simulations as whole processes: CPU seconds (user and system), peak memory.

    python benchmarks/simulate.py            print the table
    python benchmarks/simulate.py --write    put it into docs/evidence/benchmarks.md

The jobs are those of benchmarks/jobs.py; the corpus is all of ASTRA-sim's recorded runs through the
event engine, by the tests. The least CPU time of several runs counts, since other work on the
machine only ever adds.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path

import speed
from speed import Case, Measured, measure

PAGE = speed.PAGE
RUNS = 3
_JOBS = str(Path(__file__).parent / "jobs.py")
_CORPUS = "tests/corpus/test_corpus.py"
_TABLE = re.compile(r"<!-- simulation -->\n.*?<!-- end simulation -->", re.DOTALL)
_MODELS = ("astra-sim", "hespas")


def job(name: str, devices: int, goal: str, what: str, reference: str = "") -> Case:
    """Return the case of one job, to be run on a model."""
    return Case(
        name=what,
        command=(sys.executable, _JOBS, name, str(devices)),
        goal=goal,
        reference=reference,
    )


JOBS = (
    job("llm", 64, "0.3 s", "1000 nodes, 64 devices", "1.5 s"),
    job("llm", 256, "0.4 s", "1000 nodes, 256 devices", "13.9 s"),
    job("llm", 1024, "0.6 s", "1000 nodes, 1024 devices", "140 s, 1.3 GB"),
    job("llm", 16_384, "2 s", "1000 nodes, 16,384 devices"),
    job("llm", 1_048_576, "8 s; 4 s, 0.7 GB", "1000 nodes, 1,048,576 devices"),
    job("direct", 4096, "0.5 s, 200 MB", "a direct all-reduce, 4096 devices", "> 300 s, 13.7 GB"),
    job("straggler", 1024, "10 s", "1000 nodes, 1024 devices, one of them slower"),
    job("unequal", 64, "30 s", "1000 nodes, 64 devices of 64 speeds"),
)
CORPUS = Case(
    name="the corpus of ASTRA-sim's runs, by events",
    command=(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", _CORPUS),
    goal="60 s",
)
IMPORT = Case(name="", command=(sys.executable, "-c", "import hespas.simulate.models"), goal="")


def table(measured: list[tuple[Case, list[Measured]]]) -> str:
    """Return the results in Markdown."""
    lines = [
        "| job | `--model astra-sim` | `--model hespas` | goal | ASTRA-sim |",
        "|---|---|---|---|---|",
    ]
    for case, found in measured:
        cells = [f"{one.cpu_s:.2f} s, {one.peak_bytes / 1e6:.0f} MB" for one in found]
        cells += [""] * (len(_MODELS) - len(cells))
        lines.append(f"| {case.name} | {' | '.join(cells)} | {case.goal} | {case.reference} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}")
    arguments = parser.parse_args()
    measured: list[tuple[Case, list[Measured]]] = []
    for case in JOBS:
        models = [replace(case, command=(*case.command, "--model", name)) for name in _MODELS]
        measured.append((case, [measure(one, runs=RUNS) for one in models]))
    measured.append((CORPUS, [measure(CORPUS, runs=1)]))
    result = table(measured)
    if arguments.write:
        text = _TABLE.sub(
            f"<!-- simulation -->\n{result}\n<!-- end simulation -->", PAGE.read_text()
        )
        PAGE.write_text(text)
    print(result)


if __name__ == "__main__":
    main()
