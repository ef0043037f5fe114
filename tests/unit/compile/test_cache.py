from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from compilers import JOB, RESULT
from hespas.compile.cache import CompiledCache, job_key
from hespas.compile.job import Job
from hespas.compile.targets import TpuTarget
from hespas.errors import CacheError
from hespas.xla.compile.messages import TpuSlice


def changed(**request: object) -> Job:
    return replace(JOB, request=msgspec.structs.replace(JOB.request, **request))


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    cache = CompiledCache(directory=tmp_path / "made" / "here")
    assert cache.read(JOB) is None
    cache.write(JOB, RESULT)
    assert cache.read(JOB) == RESULT
    assert [path.name for path in cache.directory.iterdir()] == [cache.path_of(JOB).name]


def test_other_names_of_the_same_program_and_target_are_the_same(tmp_path: Path) -> None:
    cache = CompiledCache(directory=tmp_path)
    cache.write(JOB, RESULT)
    target = TpuTarget(name="a preset of the same part", generation="v5e")
    other = replace(changed(name="b.mlir"), name="b.mlir", target=target)
    assert cache.read(other) == replace(RESULT, name="b.mlir", target=target.name)


@pytest.mark.parametrize(
    "other",
    [
        replace(JOB, source=b"module { }"),
        replace(JOB, flags={"xla_a": "1", "xla_b": "3"}),
        replace(JOB, flags={"xla_a": "1"}),
        replace(JOB, versions={"jaxlib": "1", "libtpu": "3"}),
        changed(devices=8),
        changed(accelerator=TpuSlice(generation="v5p", topology=None)),
        changed(accelerator=TpuSlice(generation="v5e", topology="1x4")),
        changed(overrides={"xla_a": "1"}),
    ],
)
def test_all_that_decides_the_result_is_in_its_key(other: Job) -> None:
    assert job_key(other) != job_key(JOB)


def test_the_order_of_flags_is_not_in_the_key() -> None:
    assert job_key(replace(JOB, flags={"xla_b": "2", "xla_a": "1"})) == job_key(JOB)


@pytest.mark.parametrize("cut", [0, 5, 40, 80])
def test_a_damaged_entry_is_no_entry(
    tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache = CompiledCache(directory=tmp_path)
    cache.write(JOB, RESULT)
    path = cache.path_of(JOB)
    content = bytearray(path.read_bytes())
    content[cut] ^= 1
    path.write_bytes(bytes(content))
    with caplog.at_level(logging.WARNING, logger="hespas"):
        assert cache.read(JOB) is None
    assert "is damaged; it is made again" in caplog.text


def test_a_cut_entry_is_no_entry(tmp_path: Path) -> None:
    cache = CompiledCache(directory=tmp_path)
    cache.write(JOB, RESULT)
    path = cache.path_of(JOB)
    path.write_bytes(path.read_bytes()[:-7])
    assert cache.read(JOB) is None


def test_a_directory_that_cannot_be_one_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = CompiledCache(directory=tmp_path / "file")
    with pytest.raises(CacheError, match=r"cannot be used.*disable_cache"):
        cache.write(JOB, RESULT)
    with pytest.raises(CacheError, match="cannot be used"):
        cache.read(JOB)


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    jobs = [replace(JOB, source=bytes([at])) for at in range(4)]
    size = _size_of_one(tmp_path / "one")
    cache = CompiledCache(directory=tmp_path / "all", limit_bytes=3 * size)
    for at, job in enumerate(jobs[:3]):
        cache.write(job, RESULT)
        os.utime(cache.path_of(job), (at, at))
    assert cache.read(jobs[0]) == RESULT
    cache.write(jobs[3], RESULT)
    assert [cache.read(job) is not None for job in jobs] == [True, False, True, True]


def test_what_was_read_of_kernels_takes_room_too(tmp_path: Path) -> None:
    size = _size_of_one(tmp_path / "one")
    cache = CompiledCache(directory=tmp_path / "all", limit_bytes=2 * size)
    cache.write(JOB, RESULT)
    kernel, other = cache.directory / "a.kernel", cache.directory / "a.txt"
    for path in (kernel, other):
        path.write_bytes(b"x" * size)
        os.utime(path, (1, 1))
    cache.write(replace(JOB, source=b""), RESULT)
    assert [kernel.exists(), other.exists(), cache.read(JOB) == RESULT] == [False, True, True]


def _size_of_one(directory: Path) -> int:
    cache = CompiledCache(directory=directory)
    cache.write(JOB, RESULT)
    return cache.path_of(JOB).stat().st_size
