"""A study on a Dask cluster has the table of a local run, also where workers are killed."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest

from hespas.errors import ConfigError, ExtraMissingError, ToolError
from hespas.study import dask_cluster
from hespas.study.dask_cluster import DaskExecutor, evaluated, files_of
from hespas.study.entry import entry_of
from hespas.study.executor import (
    Brought,
    Ending,
    ExecutorOptions,
    Outcome,
    Phase,
    Place,
    Task,
    executor_of,
)
from hespas.study.run import studied
from hespas.study.space import candidates_of
from hespas.study.study import Study, study_of

distributed: Any = pytest.importorskip("distributed", reason="the extra cluster is not installed")
BLOCK = Path(__file__).parents[3] / "examples" / "attention_block.mlir"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with a program, which is the current one."""
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "block.mlir").write_bytes(BLOCK.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def small() -> Study:
    return study_of(
        {
            "model": "programs/block.mlir",
            "cluster": ["4xA100_SXM_40GB", "4xH100_80GB", "4xH200_141GB", "4xB200_180GB"],
            "algorithm": ["ring", "direct", "auto", "halving-doubling"],
            "network_model": "hespas",
            "fidelity": "exported",
        }
    )


@contextmanager
def cluster(workers: int, **environment: str) -> Generator[Any]:
    with distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        dashboard_address=":0",
        silence_logs=50,
        memory_limit=0,
        env=environment,
    ) as made:
        yield made


KILLS = 8


@contextmanager
def kills(made: Any, seed: int) -> Generator[list[int]]:
    """Kill a worker every now and then, some times; yield whom."""
    drawn, done = random.Random(seed), Event()  # noqa: S311 - no secret
    killed: list[int] = []

    def kill() -> None:
        # On a slow machine a worker may take longer to begin than the next kill takes to come.
        while len(killed) < KILLS and not done.wait(drawn.uniform(0.5, 1.5)):
            pids = [each.pid for each in list(made.workers.values()) if each.pid]
            if pids:
                killed.append(drawn.choice(pids))
                with suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

    thread = Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


def test_killed_workers_change_nothing(here: Path) -> None:
    expected = studied(small(), here / "local").table()
    with cluster(3) as made, kills(made, 1) as killed:
        options = ExecutorOptions(executor=Place.DASK, scheduler=made.scheduler_address)
        found = studied(small(), here / "dask", executor=options).table()
    assert killed
    assert found == expected
    assert {row["status"] for row in found} == {"done"}


def test_without_a_scheduler_there_is_a_cluster_on_this_machine(here: Path) -> None:
    options = ExecutorOptions(executor=Place.DASK, workers=1)
    with executor_of(options) as executor:
        ((_, outcome),) = executor.outcomes([task()])
    assert outcome.ending is Ending.DONE
    assert outcome.fidelity == "exported"


def test_programs_that_workers_make_are_here_afterwards(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "own"))
    chosen = study_of(
        {
            "model": "gemm-contracting",
            "cluster": "4xH100_80GB",
            "algorithm": ["ring", "direct"],
            "set": {"m": 256, "k": 256, "n": 256},
            "fidelity": "fused",
        }
    )
    with cluster(2, XDG_CACHE_HOME=str(here / "workers")) as made:
        options = ExecutorOptions(executor=Place.DASK, scheduler=made.scheduler_address)
        found = studied(chosen, here / "study", executor=options)
    assert {row.status.value for row in found.rows} == {"done"}
    own, workers = (
        {file.name: file.read_bytes() for file in (here / name / "hespas" / "exported").iterdir()}
        for name in ("own", "workers")
    )
    assert own == workers
    assert {Path(name).suffix for name in own} == {".exported", ".partitioned"}


def task(**changed: Any) -> Task:
    candidate = candidates_of(small())[0]
    entry = entry_of(0, candidate)
    whole = Task(
        key=entry.key(Phase.EXPORTED),
        candidate=candidate.to_dict(),
        phase=Phase.EXPORTED,
        versions=entry.versions(Phase.EXPORTED),
        is_checked=True,
    )
    return msgspec.structs.replace(whole, **changed)


def on_worker(given: Task, **files: bytes) -> Outcome:
    work = {
        "task": msgspec.to_builtins(given),
        "time_limit_s": 60,
        "files": files or files_of(given.candidate),
    }
    return brought(work).outcome


def brought(work: object) -> Brought:
    return msgspec.msgpack.decode(evaluated(msgspec.json.encode(work)), type=Brought)


@pytest.fixture
def _ended() -> Generator[None]:
    yield
    kept = dask_cluster._state  # pyright: ignore[reportPrivateUsage]
    if kept.evaluator is not None:
        kept.evaluator.__exit__(None, None, None)
    if kept.home is not None:
        kept.home.cleanup()
    kept.evaluator = kept.home = None


@pytest.mark.usefixtures("_ended")
def test_a_task_carries_its_files(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = task()
    files = files_of(given.candidate)
    assert list(files) == ["programs/block.mlir"]
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert on_worker(given, **files).ending is Ending.DONE


@pytest.mark.usefixtures("_ended")
def test_other_versions_and_other_files_are_refused(here: Path) -> None:
    given = task(versions={**task().versions, "jax": "0.0.1"}, key="0")
    assert on_worker(given).ending is Ending.REFUSED
    assert on_worker(given).reason.endswith("and the study is made with 0.0.1")
    changed = BLOCK.read_bytes() + b"// changed\n"
    other = on_worker(task(), **{"programs/block.mlir": changed})
    assert other.reason == (
        "presets or files of a worker differ from those that the study is made with"
    )


@pytest.mark.usefixtures("_ended")
def test_no_file_is_written_elsewhere(here: Path) -> None:
    for name in ("../other.mlir", "/tmp/hespas-other.mlir"):  # noqa: S108 - is refused
        with pytest.raises(ConfigError, match="outside of the task's directory"):
            on_worker(task(), **{name: b""})
    assert files_of({"model": str(BLOCK.resolve()), "cluster": "../x", "remat": "full"}) == {}


def test_what_is_too_large_to_carry_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "_MOST_CARRIED_BYTES", 10)
    with pytest.raises(ConfigError, match="too much to carry"):
        files_of(task().candidate)


def test_a_scheduler_that_is_gone_stops_the_study(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "_ANSWERS_WITHIN_S", 3)
    with cluster(1) as made:
        scheduler = made.scheduler_address
        executor = DaskExecutor(scheduler=scheduler).__enter__()
    with pytest.raises(ToolError, match="scheduler is gone"):
        list(executor.outcomes([task()]))
    executor.__exit__(None, None, None)


def test_where_no_scheduler_is_and_where_no_dask_is(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "_ANSWERS_WITHIN_S", 1)
    with pytest.raises(ToolError, match="no Dask scheduler answers"):
        DaskExecutor(scheduler="tcp://127.0.0.1:9").__enter__()
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ExtraMissingError, match=r"hespas\[cluster\]"):
        DaskExecutor().__enter__()
