"""Let commands meet faults: ``PYTHONPATH=tests python -m faults --rounds 3 --seed 1``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from faults.backends import bad_backends
from faults.jobs import JOBS
from faults.trials import (
    Machine,
    Shim,
    Trial,
    clock_back,
    full_at_each_write,
    homes,
    little_memory,
    machine_of,
    no_permission,
    signalled,
    stopped,
    two_at_once,
    with_another,
    without_locks,
    worker_hangs,
    worker_killed,
)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)


def main() -> int:
    """Try all faults on all commands, and say what came of them; 1 if one went wrong."""
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often what is random is tried")
    parser.add_argument("--writes", type=int, default=40, help="the most writes that fail")
    parser.add_argument("--seed", type=int, default=0, help="which times")
    parser.add_argument("--jobs", nargs="*", help="only these commands")
    parser.add_argument("--compilers", help="the Python of an environment with XLA's compilers")
    parser.add_argument("--record", type=Path, help="add what was tried to this file, as JSON")
    given = parser.parse_args()
    # A shell lets what it starts in the background ignore interrupts, and so would the commands.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    earlier: list[object] = []
    if given.record is not None and given.record.exists():
        earlier = json.loads(given.record.read_text())["runs"]
    tried: Counter[tuple[str, str, str]] = Counter()
    wrong = 0
    for trial in _trials(given):
        end = "wrong" if trial.why else "answered" if trial.answered else "refused or ended"
        tried[trial.fault, trial.job, end] += 1
        if trial.why:
            wrong += 1
            print(f"{trial.fault}, {trial.job}: {trial.why}", flush=True)
        if given.record is not None:
            _record(earlier, tried, given.seed, given.record)
    for (fault, job, end), times in sorted(tried.items()):
        print(f"{fault:36}{job:12}{end:18}{times:5}")
    print(f"{tried.total()} trials, {wrong} wrong")
    return 1 if wrong else 0


def _record(
    earlier: Sequence[object], tried: Mapping[tuple[str, str, str], int], seed: int, file: Path
) -> None:
    """Write what was tried so far, after what earlier runs tried."""
    trials = [
        {"fault": fault, "command": job, "end": end, "times": times}
        for (fault, job, end), times in sorted(tried.items())
    ]
    runs = [*earlier, {"seed": seed, "trials": trials}]
    file.write_text(json.dumps({"runs": runs}, indent=1) + "\n")


def _trials(given: argparse.Namespace) -> Iterator[Trial]:
    rng = Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="hespas-shim-") as made:
        shim = Shim(Path(made)) if Shim.is_possible() else None
        before: Machine | None = None
        for job in JOBS:
            if given.jobs and job.name not in given.jobs:
                continue
            if job.needs_compilers and given.compilers is None:
                continue
            python = given.compilers if job.needs_compilers else sys.executable
            machine = machine_of(job, str(python))
            yield from _of_job(machine, shim, rng, given)
            if before is not None:
                yield from with_another(before, machine, rng)
            before = machine
    if not given.jobs or "backends" in given.jobs:
        yield from bad_backends()


def _of_job(
    machine: Machine, shim: Shim | None, rng: Random, given: argparse.Namespace
) -> Iterator[Trial]:
    yield no_permission(machine)
    yield from homes(machine)
    for _ in range(given.rounds):
        for number in SIGNALS:
            yield signalled(machine, number, rng)
        yield two_at_once(machine, rng)
        yield stopped(machine, rng)
        yield little_memory(machine, rng)
        if machine.job.worker:
            yield worker_killed(machine, rng)
            yield worker_hangs(machine, rng)
    if shim is not None:
        yield without_locks(machine, shim)
        yield clock_back(machine, shim)
        yield from full_at_each_write(machine, shim, most=given.writes, rng=rng)


if __name__ == "__main__":
    sys.exit(main())
