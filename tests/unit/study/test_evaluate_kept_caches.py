"""Files of caches come from the machine that made them to the one that asks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from compilers import needs_gpu
from hespas.base.cache import ContentCache, used_files
from hespas.compile.cache import CompiledCache
from hespas.study.entry import entry_of
from hespas.study.evaluate import evaluate
from hespas.study.executor import Ending, Phase, Task
from hespas.study.space import candidates_of
from hespas.study.store import contents_of, keep_files, names_of
from hespas.study.study import Study, study_of

KEY = "ab" * 32
NAME = f"compiled/{KEY}.compiled"
SMALL = {
    "model": "gemm-contracting",
    "cluster": "4xH100_80GB",
    "set": {"m": 256, "k": 256, "n": 256},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home of the user's caches, which is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    return tmp_path / "here" / "hespas"


def cache(home: Path) -> ContentCache:
    return CompiledCache(directory=home / "compiled").files


def small(**changes: Any) -> Study:
    return study_of({**SMALL, **changes})


def task(phase: Phase, *, is_checked: bool = True) -> Task:
    entry = entry_of(0, candidates_of(small())[0])
    return Task(
        key=entry.key(phase),
        candidate=entry.candidate.to_dict(),
        phase=phase,
        versions=entry.versions(phase),
        is_checked=is_checked,
    )


def test_a_file_comes_over_as_it_is(home: Path, tmp_path: Path) -> None:
    there = cache(tmp_path / "there")
    there.write(KEY, b"a program")
    file = there.path_of(KEY).read_bytes()
    keep_files({NAME: file})
    assert cache(home).read(KEY) == b"a program"
    assert contents_of([NAME, f"prices/{KEY}.prices"]) == {NAME: file}


def test_what_is_read_and_written_is_named(home: Path, tmp_path: Path) -> None:
    with used_files() as used:
        cache(home).write(KEY, b"a program")
        cache(tmp_path / "elsewhere").write(KEY, b"a program")
        assert cache(home).read("cd" * 32) is None
    assert names_of(used) == [NAME]
    with used_files() as used:
        cache(home).read(KEY)
    assert names_of(used) == [NAME]
    with used_files() as used:
        pass
    assert not used


def test_nothing_is_kept_that_is_damaged_or_named_otherwise(home: Path, tmp_path: Path) -> None:
    there = cache(tmp_path / "there")
    there.write(KEY, b"a program")
    file = there.path_of(KEY).read_bytes()
    others = (f"../{NAME}", f"other/{KEY}.compiled", f"compiled/{KEY}.py", "compiled/x.compiled")
    keep_files({**dict.fromkeys(others, file), NAME: file[:-1]})
    assert not home.exists()
    keep_files({NAME: b""})
    assert not home.exists()


def test_what_is_here_stays(home: Path, tmp_path: Path) -> None:
    cache(home).write(KEY, b"ours")
    cache(tmp_path / "there").write(KEY, b"theirs")
    keep_files({NAME: cache(tmp_path / "there").path_of(KEY).read_bytes()})
    assert cache(home).read(KEY) == b"ours"


def test_a_cache_that_cannot_be_used_is_no_error(home: Path, tmp_path: Path) -> None:
    there = cache(tmp_path / "there")
    there.write(KEY, b"a program")
    home.parent.mkdir()
    home.write_text("no directory")
    keep_files({NAME: there.path_of(KEY).read_bytes()})


def test_no_more_comes_than_the_limit(home: Path) -> None:
    names: list[str] = []
    for number, size in enumerate((10_000, 50_000, 10_000)):
        key = f"{number:064x}"
        cache(home).write(key, os.urandom(size))
        names.append(f"compiled/{key}.compiled")
    assert list(contents_of(names, most_bytes=30_000)) == [names[0], names[2]]
    assert list(contents_of(names)) == names


def test_a_checked_task_names_the_files_that_it_used(home: Path) -> None:
    first, again = (evaluate(task(Phase.SCREEN)) for _ in range(2))
    assert first.ending is Ending.DONE
    kinds = sorted(Path(name).suffix for name in first.cached)
    assert kinds == [".exported", ".partitioned"]
    assert all((home / name).is_file() for name in first.cached)
    assert again.cached == first.cached
    assert evaluate(task(Phase.SCREEN, is_checked=False)).cached == []


@needs_gpu
@pytest.mark.finds_compilers
def test_a_compiled_program_is_among_them() -> None:
    outcome = evaluate(task(Phase.COMPILE))
    assert outcome.ending is Ending.DONE
    assert ".compiled" in {Path(name).suffix for name in outcome.cached}
