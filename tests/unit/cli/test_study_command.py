"""Studies made of flags."""

from __future__ import annotations

import pytest

from hespas.cli.study_command import search_from
from hespas.compile.options import SLOP_OPTION
from hespas.study.study import Study

ALL = "data=auto,fsdp=auto,tp=auto,context=auto,sequence=auto,pipe=auto"

NOT_SEARCHED = "Meshes of {}; not searched: {} (--mesh {}); {} sequences a step (--global-batch)"


def search(model: str, **given: object) -> Study:
    return search_from(
        model, {"cluster": "8xH100_80GB", "fidelity": "auto", **given}, compiled=None
    )


@pytest.mark.parametrize(
    ("model", "title"),
    [
        (
            "llama3-8b",
            NOT_SEARCHED.format("data, fsdp, tp", "context, sequence, pipe", ALL, 32),
        ),
        ("llama3-8b-decode", "Meshes of data, tp; 128 sequences a step (--global-batch)"),
        ("resnet50", "Meshes of data"),
    ],
)
def test_a_search_says_which_meshes_it_leaves_out(model: str, title: str) -> None:
    assert search(model).title == title


def test_a_mesh_that_is_given_is_what_is_searched() -> None:
    chosen = search("llama3-8b", mesh="fsdp=auto,pipe=2", batch="8")
    assert chosen.title == ""
    assert {axis.name for axis in chosen.meshes[0]} == {"fsdp", "pipe"}


def test_all_axes_that_a_search_names_can_be_given() -> None:
    axes = {axis.name for axis in search("llama3-8b", mesh=ALL).meshes[0]}
    assert axes == {"data", "fsdp", "tp", "context", "sequence", "pipe"}


def test_a_search_on_gpus_raises_the_scheduler_s_memory_limit_where_that_helps() -> None:
    assert search("llama3-8b").search["memory_limit_slop_factor"] == ("auto",)
    assert "memory_limit_slop_factor" not in search("llama3-8b", cluster="16xTPUv5e").search


def test_all_meshes_of_a_search_compute_the_same_batch() -> None:
    """Batches of a data part would compare 8 sequences of ``fsdp=8`` with 1 of ``tp=8``."""
    chosen = search("llama3-8b")
    assert chosen.search["global_batch"] == (32,), "micro-batches of 4 on each of 8 devices"
    assert "; 32 sequences a step (--global-batch)" in chosen.title
    assert "global_batch" not in search("llama3-8b", batch="2").search
    assert search("llama3-8b", micro_batches="8").search["global_batch"] == (64,)
    assert "micro_batch" not in search("llama3-8b", micro_batches="8").search
    assert search("llama3-8b", global_batch="16").search["global_batch"] == (16,)
    assert search("llama3-8b-decode").search["global_batch"] == (128,), "16 for each device"
    assert search("llama3-8b-prefill").search["global_batch"] == (8,)


@pytest.mark.parametrize("step", ["prefill", "decode"])
def test_steps_of_inference_have_no_keys_of_training(step: str) -> None:
    keys = search("llama3-8b", **{step: "true"}).search
    assert not {"remat", "micro_batch", SLOP_OPTION} & set(keys)
