"""Where searches without a directory are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import HespasError
from hespas.study.search import search_directory, search_study


def test_the_same_search_goes_on_and_another_is_new(tmp_path: Path) -> None:
    keys = {"model": "llama3-8b", "cluster": "8xH100_80GB"}
    first = search_directory(tmp_path, search_study(keys))
    assert first.name == "llama3-8b-8xh100-80gb-1"
    assert search_directory(tmp_path, search_study(keys)) == first
    other = search_directory(tmp_path, search_study({**keys, "global_batch": 64}))
    assert other.name == "llama3-8b-8xh100-80gb-2"


def test_a_search_without_candidates_is_not_kept(tmp_path: Path) -> None:
    keys = {"model": "llama3-8b", "cluster": "8xH100_80GB", "mesh": {"tp": 3}}
    with pytest.raises(HespasError, match="no candidates"):
        search_directory(tmp_path, search_study(keys))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_model_has_near_names() -> None:
    with pytest.raises(HespasError) as raised:
        search_study({"model": "llama3-9b", "cluster": "8xH100_80GB"})
    assert "llama3-8b" in raised.value.hint
