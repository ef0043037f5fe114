"""Studies made of flags."""

from __future__ import annotations

import pytest

from hespas.cli.study_command import search_from
from hespas.study.study import Study

ALL = "data=auto,fsdp=auto,tp=auto,context=auto,sequence=auto,pipe=auto"


def search(model: str, **given: object) -> Study:
    return search_from(
        model, {"cluster": "8xH100_80GB", "fidelity": "auto", **given}, compiled=None
    )


@pytest.mark.parametrize(
    ("model", "title"),
    [
        (
            "llama3-8b",
            f"Meshes of data, fsdp, tp; not searched: context, sequence, pipe (--mesh {ALL})",
        ),
        ("llama3-8b-decode", "Meshes of data, tp"),
        ("resnet50", "Meshes of data"),
    ],
)
def test_a_search_says_which_meshes_it_leaves_out(model: str, title: str) -> None:
    assert search(model).title == title


def test_a_mesh_that_is_given_is_what_is_searched() -> None:
    chosen = search("llama3-8b", mesh="fsdp=auto,pipe=2")
    assert chosen.title == ""
    assert {axis.name for axis in chosen.meshes[0]} == {"fsdp", "pipe"}


def test_all_axes_that_a_search_names_can_be_given() -> None:
    axes = {axis.name for axis in search("llama3-8b", mesh=ALL).meshes[0]}
    assert axes == {"data", "fsdp", "tp", "context", "sequence", "pipe"}


def test_a_search_on_gpus_raises_the_scheduler_s_memory_limit_where_that_helps() -> None:
    assert search("llama3-8b").search["memory_limit_slop_factor"] == ("auto",)
    assert "memory_limit_slop_factor" not in search("llama3-8b", cluster="16xTPUv5e").search
