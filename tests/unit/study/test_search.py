"""Where searches without a directory are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import HespasError
from hespas.study.executor import ExecutorOptions, executor_of
from hespas.study.rows import Status
from hespas.study.run import run_study
from hespas.study.search import search_directory, search_study
from hespas.study.space import candidates_of
from hespas.study.store import opened
from hespas.study.study import study_of


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


def test_a_framework_s_search_has_its_stages_and_recomputation() -> None:
    keys = {"model": "llama3-8b", "cluster": "8xH100_80GB", "software": "megatron"}
    study = search_study({**keys, "set": {"layers": 16}})
    assert [axis.name for axis in study.meshes[0]] == ["pipe", "fsdp", "tp"]
    assert study.search["remat"] == ("elementwise", "whole")
    assert study.settings == {"sequence_parallel": (True,), "layers": (16,)}
    assert "xla_gpu_memory_limit_slop_factor" not in study.search
    titan = search_study({**keys, "software": "torchtitan"})
    assert titan.search["remat"] == ("alternate_products", "full")


def test_a_framework_s_single_stage_is_a_stage(tmp_path: Path) -> None:
    keys = {"model": "llama3-500m", "cluster": "2xH100_80GB", "software": "megatron"}
    study = search_study({**keys, "micro_batch": 1, "remat": "whole", "set": {"layers": 2}})
    first = candidates_of(study)[0].options()
    assert str(first.program.model.mesh) == "pipe=1,tp=2"
    assert first.is_pipeline
    executor = executor_of(ExecutorOptions(workers=1))
    with opened(tmp_path) as store, executor as local:
        rows = run_study(study, store, local, lambda _rows: None)
    assert [(row.status, row.reason) for row in rows] == [(Status.DONE, "")] * 3
    assert {row.fidelity for row in rows} == {"library"}


@pytest.mark.starts_jax
def test_a_study_of_kernels_of_libraries_names_no_framework(tmp_path: Path) -> None:
    keys = {"model": "llama3-100m", "cluster": "4xA100_SXM_40GB", "set": {"layers": 2}}
    study = study_of({**keys, "mesh": {"fsdp": 4}, "fidelity": "library"})
    with opened(tmp_path) as store, executor_of(ExecutorOptions(workers=1)) as local:
        (row,) = run_study(study, store, local, lambda _rows: None)
    assert (row.status, row.fidelity) == (Status.DONE, "library")


@pytest.mark.parametrize("fidelity", ["fused", "compiled", "exported", "library"])
def test_a_framework_s_kernels_are_those_of_libraries(fidelity: str) -> None:
    keys = {"model": "llama3-8b", "cluster": "8xH100_80GB", "software": "megatron"}
    with pytest.raises(HespasError, match="software names kernels of libraries"):
        study_of({**keys, "fidelity": fidelity})


def test_without_stages_torchtitan_gathers_weights() -> None:
    keys = {"model": "llama3-8b", "cluster": "8xH100_80GB", "software": "torchtitan"}
    candidates = candidates_of(search_study({**keys, "micro_batch": 1, "remat": "full"}))
    meshes = {str(candidate.options().program.model.mesh) for candidate in candidates}
    assert {"fsdp=8", "pipe=8"} < meshes
    assert not any("pipe=1" in mesh for mesh in meshes)
