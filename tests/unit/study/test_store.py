"""The store: one writer, whole rows, and what happens when a process is killed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hespas.errors import OutputError
from hespas.study.executor import Ending, Outcome, Phase, Task, exhausted
from hespas.study.rows import Row, Status
from hespas.study.store import DATABASE, Store, is_running, opened, reading

TASK = Task(key="k", candidate={"model": "m"}, phase=Phase.SCREEN)
DONE = Outcome(
    ending=Ending.DONE,
    figures={"step_time_s": 0.1},
    fidelity="fused",
    report='{"a": 1}',
    elapsed_s=1.5,
    cpu_s=1.0,
    peak_memory_bytes=7,
)
ROW = Row(
    number=0,
    candidate={"model": "m", "mesh": {"fsdp": 2}},
    status=Status.DONE,
    figures={"step_time_s": 0.1},
    evaluation="k",
)

HOLD = """
import sys, time
from pathlib import Path
from hespas.study.store import opened
with opened(Path(sys.argv[1])) as store:
    print("open", flush=True)
    time.sleep(60)
"""


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    with opened(tmp_path / "study") as store:
        store.keep_study({"model": "m"}, {"hespas": "1"})
        store.keep_outcome(TASK, DONE, {"hespas": "1"}, [ROW])
    with reading(tmp_path / "study") as store:
        found = store.outcome("k")
        assert found is not None
        assert (found.figures, found.fidelity) == ({"step_time_s": 0.1}, "fused")
        assert store.report("k") == {"a": 1}
        assert store.outcome("other") is None
        assert store.rows() == [ROW]
        assert store.study() == {"model": "m"}
        assert store.counts().cpu_s == 1.0


def test_what_failed_for_want_of_memory_is_to_be_tried_again(tmp_path: Path) -> None:
    outcome = exhausted("there is not enough memory")
    row = replace(ROW, status=Status.FAILED, reason=outcome.reason)
    with opened(tmp_path / "study") as store:
        store.keep_outcome(TASK, outcome, {}, [row])
    with opened(tmp_path / "study") as store:
        assert store.outcome("k") is None
        assert store.rows() == [row]
        store.keep_outcome(TASK, DONE, {}, [ROW])
        assert store.outcome("k") is not None


def test_a_directory_is_of_one_study(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.keep_study({"model": "m"}, {})
        store.keep_study({"model": "m"}, {})
        with pytest.raises(OutputError, match="another study"):
            store.keep_study({"model": "n"}, {})


def test_two_runs_at_a_time_are_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(OutputError, match=rf"under way \(process {holder.pid} on"):
            opened(tmp_path).__enter__()
        assert is_running(tmp_path)
        with reading(tmp_path) as store:
            assert store.rows() == []
        holder.kill()
    assert not is_running(tmp_path)
    with opened(tmp_path) as store:
        assert store.rows() == []


def test_what_fails_to_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.keep_rows([ROW])
        limit_pages(store)
        many = [Row(number=n, candidate={"model": "m" * 999}) for n in range(1, 9999)]
        with pytest.raises(OutputError, match="full"):
            store.keep_rows(many)
        assert store.rows() == [ROW]


def limit_pages(store: Store) -> None:
    """Let the database be full."""
    store._connection.execute("PRAGMA max_page_count = 20")  # pyright: ignore[reportPrivateUsage]


def test_what_is_no_study_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="holds no study"), reading(tmp_path):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"), opened(tmp_path / "file"):
        pass
    (tmp_path / DATABASE).write_text("no database at all, but long enough to be looked at\n" * 99)
    with pytest.raises(OutputError, match="are damaged"), opened(tmp_path) as store:
        store.rows()


def test_a_name_with_odd_characters_is_a_path(tmp_path: Path) -> None:
    directory = tmp_path / "50% of it? #1"
    with opened(directory) as store:
        store.keep_rows([ROW])
    assert sqlite3.connect(directory / DATABASE).execute("SELECT count(*) FROM candidates")
    with reading(directory) as store:
        assert store.rows() == [ROW]
