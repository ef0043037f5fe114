"""Measure whole processes: CPU seconds (user and system), peak memory, files written.

    python benchmarks/speed.py            print the table
    python benchmarks/speed.py --write    put it into docs/evidence/benchmarks.md

Each command runs several times in a fresh output directory; the least CPU time counts, since
other work on the machine only ever adds. Python keeps the bytecode of what it imports, as an
installation has it. ResNet-50 is measured only where ``--resnet FILE``
names the program, which is not part of the repository, and compiled programs only with
``hespas[gpu]``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from chain import write_chain

RUNS = 5
PAGE = Path("docs/evidence/benchmarks.md")
HESPAS = Path(sys.executable).parent / "hespas"
LLAMA = "examples/llama3_100m_fsdp4.mlir"
_HOST = ("--devices", "4", "--devices-per-host", "4")
INDIVIDUAL = ("--split_fn", "individual_split")
MERGED = (*INDIVIDUAL, "--merge")
_TABLE = re.compile(r"<!-- table -->\n.*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command, its goal and what the reference implementation needs, in CPU seconds.

    One that is ``warm`` finds in the cache what the command before left there.
    """

    name: str
    command: tuple[str, ...]
    goal: str
    reference: str = ""
    writes: bool = False
    warm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The least CPU time of several runs, the most memory, the files of the last run."""

    cpu_s: float
    peak_bytes: int
    files: int


def trace_cases(name: str, program: str, goals: Sequence[str], times: Sequence[str]) -> list[Case]:
    """Return the three ways to split one program."""
    ways = {"linear": (), "individual": INDIVIDUAL, "merge": MERGED}
    return [
        Case(
            name=f"trace {name}, {way}",
            command=(str(HESPAS), "trace", program, "--node", "A100_SXM_40GB", *flags),
            goal=f"{goal} s",
            reference=f"{time} s",
            writes=True,
        )
        for (way, flags), goal, time in zip(ways.items(), goals, times, strict=True)
    ]


def compiled_cases(directory: Path) -> list[Case]:
    """Return predictions of a program after it was compiled; none without the compiler."""
    if find_spec("jax_plugins") is None:
        return []
    program, text, proto = (directory / f"llama{suffix}" for suffix in (".mlir", ".hlo", ".pb"))
    _run("export", "llama3-100m", "--mesh", "fsdp=4", "-o", str(program))
    for compiled in (text, proto):
        _run("compile", str(program), "--target", "H100_SXM", *_HOST, "-o", str(compiled))
    on = ("--node", "H100_80GB", "--system", "H100_80GB_4GPU")
    anew = ("--log-path", os.devnull)  # hespas keeps no report of a run that writes a log
    ways = {
        "run Llama-3 100M, predicted before": (program, (), "0.4 s, 60 MB"),
        "run Llama-3 100M, compiled before": (program, anew, ""),
        "run compiled Llama-3 100M, HLO proto": (proto, anew, "1 s"),
        "run compiled Llama-3 100M, HLO text": (text, anew, "1 s"),
    }
    return [
        Case(name=name, command=(str(HESPAS), "run", str(file), *on, *flags), goal=goal, warm=True)
        for name, (file, flags, goal) in ways.items()
    ]


def _run(*words: str) -> None:
    subprocess.run((str(HESPAS), *words), check=True, stdout=subprocess.DEVNULL)


def cases(directory: Path, resnet: Path | None) -> list[Case]:
    """Return everything that is measured."""
    found = [
        Case(name="import hespas", command=(sys.executable, "-c", "import hespas"), goal="0.1 s"),
        Case(name="hespas --help", command=(str(HESPAS), "--help"), goal="0.25 s"),
        *trace_cases("Llama-3 100M", LLAMA, ("0.7", "0.9", "0.9"), ("1.8", "6.2", "2.0")),
    ]
    if resnet is not None:
        goals, times = ("0.9", "1.2", "1.2"), ("2.2", "10", "3.4")
        found += trace_cases("ResNet-50 training", str(resnet), goals, times)
    found += compiled_cases(directory)
    chain = directory / "chain.mlir"
    write_chain(chain, operations=50_000, distance=20)
    trace = (str(HESPAS), "trace", str(chain), "--node", "A100_SXM_40GB", *INDIVIDUAL)
    found.append(
        Case(
            name="trace chain of 50,000, individual",
            command=trace,
            goal="3 s, 500 MB",
            reference="35 s, 1.1 GB, 95,013 files",
            writes=True,
        )
    )
    return found


def measure(case: Case, runs: int = RUNS) -> Measured:
    """Run a command several times."""
    if case.warm:
        _run(*case.command[1:])
    cpu_s, peak_bytes, files = float("inf"), 0, 0
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as directory:
            output = Path(directory) / "output"
            flags = ("--output", str(output)) if case.writes else ()
            process = subprocess.Popen((*case.command, *flags), stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                raise SystemExit(f"{case.name} failed")
            cpu_s = min(cpu_s, usage.ru_utime + usage.ru_stime)
            peak_bytes = max(peak_bytes, usage.ru_maxrss * 1024)
            files = sum(1 for _ in output.rglob("*")) if case.writes else 0
    return Measured(cpu_s=cpu_s, peak_bytes=peak_bytes, files=files)


def table(measured: dict[Case, Measured]) -> str:
    """Return the results in Markdown."""
    lines = [
        "| command | CPU time | peak memory | files | goal | reference implementation |",
        "|---|---|---|---|---|---|",
    ]
    for case, found in measured.items():
        files = str(found.files) if case.writes else ""
        memory = f"{found.peak_bytes / 1e6:.0f} MB"
        figures = f"{found.cpu_s:.2f} s | {memory} | {files}"
        lines.append(f"| {case.name} | {figures} | {case.goal} | {case.reference} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}")
    parser.add_argument("--resnet", type=Path, help="the ResNet-50 training step (StableHLO)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XDG_CACHE_HOME"] = directory
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(directory) / "bytecode")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        found = cases(Path(directory), arguments.resnet)
        result = table({case: measure(case) for case in found})
    if arguments.write:
        text = _TABLE.sub(f"<!-- table -->\n{result}\n<!-- end -->", PAGE.read_text())
        PAGE.write_text(text)
    print(result)


if __name__ == "__main__":
    main()
