"""Kill studies at random moments, and hold their tables against an undisturbed one.

    python validation/study_kills.py --kills 50
    python validation/study_kills.py --kills 20 --dask 4

Each kill is a SIGKILL of the process that runs the study, or of one of its workers; with ``--dask``
of a worker of a Dask cluster, or of the process. The study is run again until it ends. Printed is
how many kills there were, and how many predictions were lost or made twice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Any

from hespas.study.rows import table_json
from hespas.study.run import table_of
from hespas.study.store import DATABASE

BLOCK = Path(__file__).parents[1] / "examples" / "attention_block.mlir"
PARTS = ("A100_SXM_40GB", "H100_80GB", "H200_141GB", "B200_180GB")


def study_text(count: int, program: Path = BLOCK) -> str:
    """Return a study of so many small candidates, a multiple of 16."""
    overheads = ", ".join(f"{number + 1}us" for number in range(count // 16))
    return (
        f"model: {program}\nfidelity: exported\nmethod: roofline\n"
        f"cluster: [{', '.join(f'4x{part}' for part in PARTS)}]\n"
        "algorithm: [ring, direct, auto, halving-doubling]\n"
        f"launch_overhead: [{overheads}]\n"
    )


@dataclass(slots=True, kw_only=True)
class Kills:
    """Who was killed, and what is drawn next."""

    drawn: random.Random
    done: Counter[str] = field(default_factory=Counter[str])

    @property
    def total(self) -> int:
        """How many were killed."""
        return sum(self.done.values())


def start(study: Path, directory: Path, flags: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """Start a run of a study."""
    command = [sys.executable, "-m", "hespas", "study", "run", str(study), "-o", str(directory)]
    return subprocess.Popen(
        [*command, *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def children_of(pid: int) -> list[int]:
    """Return the processes that a process started."""
    file = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [int(each) for each in file.read_text().split()]
    except OSError:
        return []


def kill_one(running: subprocess.Popen[bytes], workers: list[int], kills: Kills) -> None:
    """Kill the run, or one of its workers."""
    chosen, who = running.pid, "run"
    if workers and kills.drawn.random() < 0.4:
        chosen, who = kills.drawn.choice(workers), "worker"
    with suppress(ProcessLookupError):
        os.kill(chosen, signal.SIGKILL)
        kills.done[who] += 1


def disturbed(
    study: Path,
    directory: Path,
    kills: Kills,
    *,
    most: int,
    longest_s: float,
    flags: tuple[str, ...] = ("--workers", "2"),
    cluster: Any = None,
) -> None:
    """Run a study to its end, and kill it at random moments until there were ``most`` kills."""
    while True:
        running = start(study, directory, flags)
        while running.poll() is None and kills.total < most:
            sleep(kills.drawn.uniform(0.1, longest_s))
            if running.poll() is not None:
                break
            mine = cluster is None
            workers = (
                children_of(running.pid)
                if mine
                else [each.pid for each in list(cluster.workers.values()) if each.pid]
            )
            kill_one(running, workers, kills)
        if running.wait(timeout=1200) == 0:
            return


def rows_of(directory: Path) -> str:
    """Return a study's table as JSON."""
    return json.dumps(table_json(table_of(directory).rows), indent=1)


def evaluations_of(directory: Path) -> int:
    """Return how many predictions are kept."""
    with sqlite3.connect(directory / DATABASE) as connection:
        return connection.execute("SELECT count(*) FROM evaluations").fetchone()[0]


def main() -> int:
    """Kill, compare, and print what was found; return 1 where anything differs."""
    parser = argparse.ArgumentParser(description="Kill studies at random moments.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--candidates", type=int, default=320)
    parser.add_argument("--longest", type=float, default=6.0, help="seconds between kills")
    parser.add_argument("--dask", type=int, default=0, metavar="N", help="workers of a cluster")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    kills = Kills(drawn=random.Random(given.seed))  # noqa: S311 - no secret
    with TemporaryDirectory(prefix="hespas-kills-") as made, ExitStack() as stack:
        home = Path(made)
        study = home / "study.yaml"
        study.write_text(study_text(given.candidates, BLOCK.resolve()))
        start(study, home / "whole", ("--workers", "2")).wait()
        expected, count = rows_of(home / "whole"), evaluations_of(home / "whole")
        flags: tuple[str, ...] = ("--workers", "2")
        cluster = None
        if given.dask:
            cluster = stack.enter_context(
                import_module("distributed").LocalCluster(
                    n_workers=given.dask,
                    threads_per_worker=1,
                    dashboard_address=None,
                    scheduler_kwargs={"dashboard": False},
                    memory_limit=0,
                    silence_logs=50,
                )
            )
            flags = ("--executor", "dask", "--scheduler", cluster.scheduler_address)
        wrong = studies = 0
        while kills.total < given.kills:
            directory = home / f"killed-{studies}"
            disturbed(
                study,
                directory,
                kills,
                most=given.kills,
                longest_s=given.longest,
                flags=flags,
                cluster=cluster,
            )
            studies += 1
            same = rows_of(directory) == expected and evaluations_of(directory) == count
            wrong += not same
            print(f"study {studies}: {dict(kills.done)} killed so far, table the same: {same}")
        print(
            f"{kills.total} kills ({dict(kills.done)}) in {studies} studies of {count} "
            f"predictions: {wrong} tables differ"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
