"""Searches that the page starts and shows."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from hespas.api import run_study
from hespas.app.searches import Searches, _in_words, _row  # pyright: ignore[reportPrivateUsage]
from hespas.errors import ConfigError
from hespas.study.rows import Row, Status
from hespas.study.search import STUDY_FILE, axes_named

WHERE = {"model": "llama3-100m", "cluster": "2xA100_SXM_40GB"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"node": "/home/me/part.yml"}, "is no preset"),
        ({"backend_program": "/bin/sh"}, "there is no key 'backend_program'"),
        ({"custom_call": "name=1us"}, "there is no key 'custom_call'"),
        ({"where": "memory.fits", "title": "x" * 5000}, "there is no key 'title'"),
    ],
)
def test_keys_of_a_link_that_the_page_has_not_start_no_search(
    tmp_path: Path, more: dict[str, str], said: str
) -> None:
    searches = Searches(home=tmp_path, workers=1)
    with pytest.raises(ConfigError, match=said):
        searches.start({**WHERE, **more})
    assert searches.listed() == []


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("staged", ["data", "fsdp", "tp", "pipe"]),
        ("every", ["data", "fsdp", "tp", "context", "sequence", "pipe"]),
    ],
)
def test_axes_are_named_in_short(name: str, axes: list[str]) -> None:
    assert axes_named(name, {"model": "llama3-8b"}) == dict.fromkeys(axes, "auto")


def test_other_names_of_axes_are_refused(tmp_path: Path) -> None:
    searches = Searches(home=tmp_path, workers=1)
    with pytest.raises(ConfigError, match="names no axes"):
        searches.start({**WHERE, "mesh": "all"})


@pytest.mark.parametrize(("raised", "opened"), [(None, {}), (120.0, 120)])
def test_a_candidate_is_opened_with_the_limit_that_its_figures_have(
    raised: float | None, opened: object
) -> None:
    row = Row(
        number=1,
        candidate={**WHERE, "memory_limit_slop_factor": "auto"},
        status=Status.DONE,
        figures={"step_time_s": 1.0, "memory_limit_slop_factor": raised},
    )
    candidate = _row(1, row, [])["candidate"]
    assert candidate.get("memory_limit_slop_factor", {}) == opened


def test_options_are_named_as_the_page_names_them() -> None:
    row = Row(
        number=1,
        candidate={**WHERE, "micro_batches": 4},
        status=Status.FAILED,
        reason="micro_batches does not divide global_batch of H100_80GB",
    )
    shown = _row(1, row, ["micro_batches"])
    assert _in_words("maximise tokens_per_s_per_device") == "maximise tokens/s/device"
    assert shown["text"] == "micro batches=4"
    assert shown["reason"] == "micro batches does not divide global batch of H100_80GB"
    assert shown["candidate"]["micro_batches"] == 4


def test_a_search_is_copied_as_it_lies_on_disk(tmp_path: Path) -> None:
    keys = {"model": "gemm", "node": ["A100_SXM_40GB", "H100_80GB"], "fidelity": "exported"}
    (tmp_path / "x").mkdir()
    file = tmp_path / "x" / STUDY_FILE
    file.write_text(yaml.safe_dump(keys))
    run_study(file, tmp_path / "x", workers=1)
    copies = Searches(home=tmp_path, workers=1).show("x")["copies"]
    found: dict[str, Any] = {}
    exec(copies["python"], found)  # noqa: S102 - what a person pastes
    nodes = [row["candidate.node"] for row in found["study"].table()]
    assert nodes == ["H100_80GB", "A100_SXM_40GB"]
    assert yaml.safe_load(copies["study"])["node"] == keys["node"]
    assert shlex.split(copies["command"])[-1] == str(tmp_path / "x")
