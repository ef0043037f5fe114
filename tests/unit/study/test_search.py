"""Where searches without a directory are kept."""

from __future__ import annotations

from pathlib import Path

from hespas.study.search import kept_in, search_study


def test_the_same_search_goes_on_and_another_is_new(tmp_path: Path) -> None:
    keys = {"model": "llama3-8b", "cluster": "8xH100_80GB"}
    first = kept_in(tmp_path, search_study(keys))
    assert first.name == "llama3-8b-8xh100-80gb-1"
    assert kept_in(tmp_path, search_study(keys)) == first
    other = kept_in(tmp_path, search_study({**keys, "global_batch": 64}))
    assert other.name == "llama3-8b-8xh100-80gb-2"
