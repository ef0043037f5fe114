"""Prices of a program are kept together, and found while nothing that decides them changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.price import cache
from hespas.price.cache import KeptStore

ENTRIES = {"b": "two", "a": "one"}


def test_what_was_kept_is_found_in_any_order(tmp_path: Path) -> None:
    store = KeptStore(directory=tmp_path / "prices")
    assert store.read(["a"]) == {}
    store.write(ENTRIES)
    assert store.read(["a", "b"]) == store.read(["b", "a", "a"]) == ENTRIES
    assert len(list((tmp_path / "prices").iterdir())) == 1


def test_a_part_of_it_is_not_found(tmp_path: Path) -> None:
    store = KeptStore(directory=tmp_path)
    store.write(ENTRIES)
    assert store.read(["a"]) == store.read(["a", "b", "c"]) == {}


def test_other_code_makes_prices_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = KeptStore(directory=tmp_path)
    store.write(ENTRIES)
    monkeypatch.setattr(cache, "code_digest", _edited)
    assert store.read(ENTRIES) == {}


def _edited(*_folders: str) -> str:
    return "edited"


def test_a_damaged_file_is_missing(tmp_path: Path) -> None:
    store = KeptStore(directory=tmp_path)
    store.write(ENTRIES)
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    assert store.read(ENTRIES) == {}


def test_a_directory_that_cannot_be_made_keeps_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    KeptStore(directory=file / "prices").write(ENTRIES)
    assert file.read_text() == ""


def test_nothing_is_kept_of_no_regions(tmp_path: Path) -> None:
    KeptStore(directory=tmp_path / "prices").write({})
    assert not (tmp_path / "prices").exists()
