"""Candidates: every combination that fits, once."""

from __future__ import annotations

import shutil
from importlib.resources import files
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.errors import ConfigError, HespasError
from hespas.study.space import candidate_of, candidates_of, factorisations, system_named
from hespas.study.study import study_of

SMALL = {"model": "llama3-100m", "cluster": ["8xH100_80GB", "16xH100_80GB"]}


@given(st.integers(1, 96), st.integers(1, 4))
def test_factorisations_are_all_there_once(number: int, count: int) -> None:
    found = list(factorisations(number, count))
    assert len(set(found)) == len(found)
    assert all(prod(sizes) == number for sizes in found)
    first = [sizes[0] for sizes in found]
    assert set(first) >= {each for each in range(1, number + 1) if number % each == 0 and count > 1}


def test_auto_fills_the_cluster_whatever_its_size() -> None:
    study = study_of({**SMALL, "mesh": {"fsdp": "auto", "tp": [1, 2]}})
    meshes = {(str(each.values["cluster"]), each.mesh) for each in candidates_of(study)}
    assert meshes == {
        ("8xH100_80GB", (("fsdp", 8), ("tp", 1))),
        ("8xH100_80GB", (("fsdp", 4), ("tp", 2))),
        ("16xH100_80GB", (("fsdp", 16), ("tp", 1))),
        ("16xH100_80GB", (("fsdp", 8), ("tp", 2))),
    }


def test_a_directory_of_a_cluster_that_changed_is_read_again(tmp_path: Path) -> None:
    directory = tmp_path / "mine"
    preset = str(files("hespas") / "configs/systems/H100_80GB_4GPU")
    shutil.copytree(preset, directory, ignore=shutil.ignore_patterns("hespas"))
    assert system_named(str(directory)).device_count == 4
    network = directory / "astra-sim" / "network.yml"
    network.write_text(network.read_text().replace("- 4\n", "- 2\n"))
    assert system_named(str(directory)).device_count == 2


def test_meshes_without_auto_are_those_that_fit() -> None:
    study = study_of({**SMALL, "mesh": {"fsdp": [4, 8], "tp": [1, 2]}})
    sizes = [(each.values["cluster"], dict(each.mesh or ())) for each in candidates_of(study)]
    assert sizes == [
        ("8xH100_80GB", {"fsdp": 4, "tp": 2}),
        ("8xH100_80GB", {"fsdp": 8, "tp": 1}),
        ("16xH100_80GB", {"fsdp": 8, "tp": 2}),
    ]


def test_where_leaves_out_what_is_no_candidate_whatever_is_predicted() -> None:
    study = study_of(
        {**SMALL, "mesh": {"fsdp": "auto", "tp": "auto"}, "where": "mesh.tp <= 2 and memory.fits"}
    )
    assert {dict(each.mesh or ())["tp"] for each in candidates_of(study)} == {1, 2}
    of_cluster = study_of({**SMALL, "where": "cluster.devices > 8 and cluster.part == 'H100_80GB'"})
    assert [each.values["cluster"] for each in candidates_of(of_cluster)] == ["16xH100_80GB"]


def test_how_stages_compute_is_left_out_of_candidates_of_one_stage() -> None:
    study = study_of(
        {
            **SMALL,
            "cluster": "8xH100_80GB",
            "mesh": {"fsdp": "auto", "pipe": [1, 2]},
            "schedule": ["1f1b", "gpipe"],
        }
    )
    found = [(each.mesh, each.values.get("schedule")) for each in candidates_of(study)]
    assert found == [
        ((("pipe", 1), ("fsdp", 8)), None),
        ((("pipe", 2), ("fsdp", 4)), "1f1b"),
        ((("pipe", 2), ("fsdp", 4)), "gpipe"),
    ]


def test_a_candidate_comes_back_from_what_tables_show() -> None:
    study = study_of(
        {**SMALL, "mesh": {"fsdp": "auto", "tp": 2}, "set": {"layers": [1, 2]}, "remat": "full"}
    )
    for candidate in candidates_of(study):
        again = candidate_of(candidate.to_dict())
        assert again == candidate
        assert again.digest == candidate.digest


def test_axes_of_size_one_divide_nothing() -> None:
    study = study_of({**SMALL, "cluster": "8xH100_80GB", "mesh": {"fsdp": "auto", "tp": [1]}})
    (candidate,) = candidates_of(study)
    mesh = candidate.options().program.model.mesh
    assert mesh is not None
    assert str(mesh) == "fsdp=8"


def test_no_candidates_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="no mesh has as many devices"):
        candidates_of(study_of({**SMALL, "mesh": {"fsdp": [3]}}))
    with pytest.raises(ConfigError, match="where refuses all 2; loosen it"):
        candidates_of(study_of({**SMALL, "where": "cluster.devices > 16"}))
    with pytest.raises(ConfigError, match="no cluster to fit"):
        candidates_of(study_of({"model": "llama3-100m", "mesh": {"fsdp": "auto"}}))
    with pytest.raises(HespasError):
        candidates_of(study_of({**SMALL, "cluster": "8xH100_81GB"}))
