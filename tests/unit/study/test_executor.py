"""Workers that crash, hang, are killed or answer nonsense fail alone, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

import msgspec
import pytest

from hespas.study.executor import (
    Ending,
    LocalExecutor,
    Outcome,
    Phase,
    Task,
    available_cores,
    free_memory_bytes,
)

WORKER = """
import json, os, signal, sys, time
for line in sys.stdin:
    task = json.loads(line)
    what = task["candidate"]["do"]
    if what == "crash":
        print("it broke", file=sys.stderr, flush=True)
        os._exit(3)
    if what == "hang":
        time.sleep(600)
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "once":
        mark = task["candidate"]["mark"]
        if not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    if what == "compile":
        out = {"ending": "exhausted", "reason": "XLA was ended by SIGKILL: it said nothing"}
        print(json.dumps(out), flush=True)
        continue
    if what == "compile once" and not os.path.exists(task["candidate"]["mark"]):
        open(task["candidate"]["mark"], "w").close()
        out = {"ending": "exhausted", "reason": "XLA was ended by SIGKILL: it said nothing"}
        print(json.dumps(out), flush=True)
        continue
    if what == "wait":
        time.sleep(0.2)
    out = {"ending": "done", "figures": {"pid": os.getpid()}, "peak_memory_bytes": 10**9,
           "report": "x" * 300000}
    print(json.dumps(out), flush=True)
"""


def task(what: str, number: int = 0, **more: object) -> Task:
    key = f"{what} {number}"
    return Task(key=key, candidate={"do": what, **more}, phase=Phase.SCREEN)


def run(
    tasks: Sequence[Task], *, workers: int = 2, time_limit_s: float = 60.0
) -> dict[str, Outcome]:
    command = (sys.executable, "-c", WORKER)
    with LocalExecutor(workers=workers, time_limit_s=time_limit_s, command=command) as executor:
        return {each.key: outcome for each, outcome in executor.outcomes(tasks)}


def test_every_task_has_its_outcome() -> None:
    tasks = [task("well", number) for number in range(9)]
    found = run(tasks, workers=3)
    assert set(found) == {each.key for each in tasks}
    assert all(outcome.ending is Ending.DONE for outcome in found.values())
    assert len({outcome.figures["pid"] for outcome in found.values()}) <= 3


def test_what_ends_its_worker_fails_alone_with_the_reason() -> None:
    found = run([task("well", 1), task("crash"), task("well", 2), task("killed"), task("well", 3)])
    assert found["crash 0"].ending is Ending.EXHAUSTED
    assert found["crash 0"].reason == "the worker failed with code 3, 3 times: it broke"
    assert "SIGKILL (as when memory runs out), 3 times" in found["killed 0"].reason
    assert [found[f"well {number}"].ending for number in (1, 2, 3)] == [Ending.DONE] * 3


def test_a_worker_that_is_killed_once_loses_nothing(tmp_path: Path) -> None:
    found = run([task("once", number, mark=str(tmp_path / str(number))) for number in range(4)])
    assert [outcome.ending for outcome in found.values()] == [Ending.DONE] * 4


def test_a_compiler_that_is_killed_for_memory_is_tried_again_alone(tmp_path: Path) -> None:
    tasks = [task("compile once", mark=str(tmp_path / "mark")), task("compile"), task("well")]
    found = run(tasks)
    assert found["compile once 0"].ending is Ending.DONE
    assert found["compile 0"].ending is Ending.EXHAUSTED
    assert found["well 0"].ending is Ending.DONE


def test_workers_that_keep_jax_take_no_other_tasks() -> None:
    keeping = [msgspec.structs.replace(task("well", number), may_stay=True) for number in (1, 2)]
    found = run([*keeping, task("well", 3), task("well", 4)], workers=1)
    pids = [found[f"well {number}"].figures["pid"] for number in (1, 2, 3, 4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_what_hangs_is_ended_at_its_limit() -> None:
    begin_s = monotonic()
    found = run([task("hang"), task("well")], time_limit_s=1.0)
    assert found["hang 0"].reason == "took longer than 1 s"
    assert found["well 0"].ending is Ending.DONE
    assert monotonic() - begin_s < 20


def test_workers_end_with_the_executor_in_the_middle_of_their_tasks() -> None:
    command = (sys.executable, "-c", WORKER)
    pid: object = None
    with LocalExecutor(workers=2, command=command) as executor:
        for _, outcome in executor.outcomes([task("well"), task("hang", 1), task("hang", 2)]):
            pid = outcome.figures["pid"]
            break
    assert isinstance(pid, int)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_as_many_run_at_a_time_as_there_is_memory_for() -> None:
    command = (sys.executable, "-c", WORKER)
    with LocalExecutor(workers=4, command=command) as executor:
        executor._free_bytes = int(2.5e9)  # pyright: ignore[reportPrivateUsage]
        most = 0
        for _ in executor.outcomes([task("wait", number) for number in range(8)]):
            processes = executor._processes  # pyright: ignore[reportPrivateUsage]
            most = max(most, sum(worker.attempt is not None for worker in processes))
    # The first runs alone; the others, of 1 GB each, two at a time, of which one has just ended.
    assert most == 1


def test_what_was_measured_before_lets_the_first_run_together() -> None:
    command = (sys.executable, "-c", WORKER)
    peaks = {Phase.SCREEN: 10**6}
    with LocalExecutor(workers=2, command=command, peaks=peaks) as executor:
        pids = {
            out.figures["pid"] for _, out in executor.outcomes([task("wait", n) for n in (1, 2)])
        }
    assert len(pids) == 2


def test_a_worker_ends_with_the_process_that_started_it() -> None:
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-m', 'hespas.study.evaluate'],"
        " stdin=subprocess.PIPE)\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline_s = monotonic() + 30
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert monotonic() < deadline_s
        sleep(0.05)


def test_this_machine_has_cores_and_memory() -> None:
    assert available_cores() >= 1
    assert free_memory_bytes() > 10**8
