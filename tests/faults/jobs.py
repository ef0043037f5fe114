"""What is interrupted: a command of each kind, the files it reads, and those it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.good_files import HLO, LOOPS, PRICES, SHARDED, STUDY

GEMM = "m,n,k,dtype,latency_us\n4096,4096,4096,bf16,900\n2048,2048,2048,bf16,130\n"
STEPS = (
    "workload,node,system,step_s,resolution_s\n"
    "step.hlo,A100_SXM_40GB,A100_SXM_40GB_4GPU,0.0003,0.0001\n"
)
FUNCTION = """import jax.numpy as jnp
from jax import ShapeDtypeStruct

def step():
    array = ShapeDtypeStruct((64, 64), "float32")
    return (lambda x, y: jnp.tanh(x @ y).sum()), (array, array)
"""
CLUSTER = ("--cluster", "4xA100_SXM_40GB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command, and the files and directories that it writes in its own.

    ``before`` are commands that make more of what it reads. ``answer`` is a command that shows what
    it wrote, where its files differ from run to run. ``worker`` is a module that it runs in a
    process of its own, and ``limit`` the option that ends that process soon, where there is one.
    ``needs_compilers`` says that it starts XLA's compiler for GPUs.
    """

    name: str
    words: tuple[str, ...]
    written: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    before: tuple[tuple[str, ...], ...] = ()
    answer: tuple[str, ...] = ()
    worker: str = ""
    limit: tuple[str, ...] = ()
    needs_compilers: bool = False


JOBS = (
    Job(
        name="run",
        words=(
            *("run", "step.mlir", *CLUSTER, "--as-exported", "--cache-dir", "kept"),
            *("--json", "run.json", "--timeline", "timeline.json", "-o", "out"),
        ),
        written=("run.json", "timeline.json", "out"),
        files={"step.mlir": SHARDED},
    ),
    Job(
        name="trace",
        words=("trace", "step.mlir", "--node", "A100_SXM_40GB", "-o", "out"),
        written=("out",),
        files={"step.mlir": LOOPS},
    ),
    Job(
        name="export",
        words=("export", "mine:step", "-o", "step.mlir"),
        written=("step.mlir",),
        files={"mine.py": FUNCTION},
        worker="hespas.sources.worker",
    ),
    Job(
        name="compile",
        words=("compile", "step.mlir", "--target", "A100_SXM_40GB", "-o", "step.hlo"),
        written=("step.hlo",),
        files={"step.mlir": LOOPS},
        worker="hespas.xla.compile.worker",
        limit=("--time-limit", "20s"),
        needs_compilers=True,
    ),
    Job(
        name="calibrate",
        words=("calibrate", "--node", "A100_SXM_40GB", "--gemm", "gemm.csv", "-o", "out"),
        written=("out",),
        files={"gemm.csv": GEMM},
    ),
    Job(
        name="validate",
        words=("validate", "steps.csv", "--json", "steps.json"),
        written=("steps.json",),
        files={"steps.csv": STEPS, "step.hlo": HLO},
    ),
    Job(
        name="study",
        words=("study", "run", "study.yml", "--workers", "1", "-o", "results"),
        written=(),
        files={"study.yml": STUDY.replace("minutes: 0.1", "minutes: 9"), "prices.csv": PRICES}
        | {"step.mlir": LOOPS},
        answer=("study", "table", "results", "--json"),
    ),
    Job(
        name="search",
        words=(
            *("search", "llama3-100m", *CLUSTER, "--mesh", "data=4", "--sequence", "128"),
            *("--batch", "4", "--micro-batch", "1", "--remat", "none", "--scan", "true"),
            *("--fidelity", "exported", "--workers", "1", "-o", "results"),
        ),
        written=(),
        answer=("study", "table", "results", "--json"),
    ),
    Job(
        name="partition",
        words=("partition", "sharded.mlir", "-o", "step.mlir"),
        written=("step.mlir",),
        files={"sharded.mlir": SHARDED},
        worker="hespas.xla.partition.worker",
    ),
    Job(
        name="report",
        words=("report", "run.json", "-o", "page.html"),
        written=("page.html",),
        files={"step.mlir": LOOPS},
        before=(("run", "step.mlir", *CLUSTER, "--as-exported", "--json", "run.json"),),
    ),
    Job(
        name="simulate",
        words=(
            *("simulate", "t", "--system", "A100_SXM_40GB_4GPU", "--nodes"),
            *("--json", "times.json", "--timeline", "timeline.json"),
        ),
        written=("times.json", "timeline.json"),
        files={"step.mlir": LOOPS},
        before=(("trace", "step.mlir", "--node", "A100_SXM_40GB", "-o", "t"),),
    ),
    Job(
        name="split",
        words=("split", "step.mlir", "-o", "out"),
        written=("out",),
        files={"step.mlir": LOOPS},
    ),
    Job(
        name="algorithm",
        words=("algorithm", "ring", "--ranks", "4", "--chakra", "out"),
        written=("out",),
    ),
    Job(
        name="explain",
        words=("explain", "step.mlir", *CLUSTER, "--as-exported", "--json", "explain.json"),
        written=("explain.json",),
        files={"step.mlir": LOOPS},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """How a command ended, and what it said."""

    code: int
    output: str
    errors: str


def command(words: Sequence[str], *, python: str = sys.executable) -> list[str]:
    """Return the command line of hespas."""
    return [python, "-m", "hespas", *words]


def environment(directory: Path, **more: str) -> dict[str, str]:
    """Return the environment of a run: a home and temporary files of its own."""
    source = str(Path(__file__).resolve().parents[2] / "src")
    own = {"HOME": directory / "home", "TMPDIR": directory / "tmp"}
    for made in own.values():
        made.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    named = {name: str(value) for name, value in own.items()}
    return {**kept, **named, "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1", **more}


def inputs(job: Job, directory: Path, *, python: str) -> dict[str, bytes]:
    """Return what a command reads, by path; what other commands make of it is made here."""
    work = directory / "work"
    prepare({name: content.encode() for name, content in job.files.items()}, directory)
    for words in job.before:
        said = run(words, directory, python=python)
        if said.code:
            raise RuntimeError(f"{' '.join(words)} is refused: {said.errors}")
    files = (path for path in work.rglob("*") if path.is_file())
    return {str(path.relative_to(work)): path.read_bytes() for path in files}


def prepare(files: Mapping[str, bytes], directory: Path) -> None:
    """Write what a command reads to a directory of its own."""
    work = directory / "work"
    work.mkdir(parents=True)
    for name, content in files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def run(
    words: Sequence[str], directory: Path, *, python: str = sys.executable, **more: str
) -> Said:
    """Run a command to its end."""
    done = subprocess.run(
        command(words, python=python),
        cwd=directory / "work",
        env=environment(directory, **more),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=600,
        check=False,
    )
    return Said(code=done.returncode, output=done.stdout, errors=done.stderr)


def written(job: Job, directory: Path) -> dict[str, bytes]:
    """Return the files that a command wrote, by their path."""
    work = directory / "work"
    found: dict[str, bytes] = {}
    for name in job.written:
        path = work / name
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for each in inside:
            if each.is_file() and each.suffix != ".sqlite":
                # Locations in exported programs name the files of the directory.
                content = _comparable(each).replace(str(work).encode(), b".")
                found[str(each.relative_to(work))] = content
    return found


def _comparable(file: Path) -> bytes:
    """Return what a file holds; of statistics with times in them, that they are whole."""
    content = file.read_bytes()
    if file.name != "module_stats.json":
        return content
    try:
        json.loads(content)
    except ValueError:
        return b"damaged"
    return b"whole"
