from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from hespas.base.process import Worker
from hespas.errors import ToolError

CODE = """
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    match asked["do"]:
        case "double":
            print(json.dumps({"result": 2 * asked["number"], "pid": os.getpid()}), flush=True)
        case "abort":
            print("alas", file=sys.stderr, flush=True)
            os.abort()
        case "sleep":
            time.sleep(60)
        case "babble":
            print("what?", flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Generator[Worker]:
    made = Worker(command=[sys.executable, "-c", CODE], name="probe", directory=tmp_path / "w")
    yield made
    made.close()


def test_it_stays_between_questions(worker: Worker) -> None:
    first = worker.ask({"do": "double", "number": 4}, time_s=30)
    second = worker.ask({"do": "double", "number": 5}, time_s=30)
    assert (first["result"], second["result"]) == (8, 10)
    assert first["pid"] == second["pid"]


def test_after_a_crash_it_starts_again(worker: Worker) -> None:
    with pytest.raises(ToolError, match=r"log\.txt: probe was ended by SIGABRT: alas"):
        worker.ask({"do": "abort"}, time_s=30)
    assert worker.ask({"do": "double", "number": 1}, time_s=30)["result"] == 2


def test_after_a_time_out_it_starts_again(worker: Worker) -> None:
    with pytest.raises(ToolError, match="probe took longer than 1 s; allow more time"):
        worker.ask({"do": "sleep"}, time_s=1)
    assert worker.ask({"do": "double", "number": 1}, time_s=30)["result"] == 2


def test_nonsense_is_refused(worker: Worker) -> None:
    with pytest.raises(ToolError, match="probe answered with text that is not a JSON object"):
        worker.ask({"do": "babble"}, time_s=30)


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="/no/such: probe cannot be started"):
        Worker(command=["/no/such"], name="probe", directory=tmp_path).ask({}, time_s=1)
