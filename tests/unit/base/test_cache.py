"""A directory of contents under keys."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hespas.base.cache import ContentCache, code_digest
from hespas.errors import CacheError


@pytest.fixture
def cache(tmp_path: Path) -> ContentCache:
    return ContentCache(
        directory=tmp_path / "kept", suffix=".kept", mark=b"kept 1\n", content_name="tests"
    )


def test_what_was_written_is_read(cache: ContentCache) -> None:
    assert cache.read("a") is None
    cache.write("a", b"content")
    assert cache.read("a") == b"content"
    assert cache.read("b") is None


@pytest.mark.parametrize("at", [0, 10, -1])
def test_a_damaged_file_is_missing(
    cache: ContentCache, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write("a", b"content")
    content = bytearray(cache.path_of("a").read_bytes())
    content[at] ^= 1
    cache.path_of("a").write_bytes(content)
    assert cache.read("a") is None
    assert "is damaged; it is made again" in caplog.text


def test_the_least_recently_used_go_first(cache: ContentCache) -> None:
    contents = {name: os.urandom(1000) for name in "abc"}
    for when, (name, content) in enumerate(contents.items()):
        cache.write(name, content)
        os.utime(cache.path_of(name), (when, when))
    assert cache.read("a") == contents["a"]
    replace(cache, limit_bytes=2500).write("d", os.urandom(100))
    assert cache.read("b") is None
    assert cache.read("a") == contents["a"]


def test_few_writes_look_at_all_files_and_the_limit_holds(cache: ContentCache) -> None:
    limited = replace(cache, limit_bytes=100_000)
    for number in range(300):
        limited.write(f"{number}", os.urandom(500))
    sizes = [file.stat().st_size for file in cache.directory.iterdir()]
    assert 90_000 < sum(sizes) < 105_000


def test_a_directory_that_cannot_be_made_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = ContentCache(
        directory=tmp_path / "file" / "kept", suffix=".kept", mark=b"", content_name="tests"
    )
    with pytest.raises(CacheError, match=r"the cache of tests cannot be used: .* in its place"):
        blocked.check()
    ContentCache(
        directory=tmp_path / "a" / "b", suffix=".kept", mark=b"", content_name="tests"
    ).check()


def test_the_digest_of_code_needs_code() -> None:
    assert code_digest("price") != code_digest("program")
    with pytest.raises(FileNotFoundError, match=r"hespas.estimate\b"):
        code_digest("estimate")
