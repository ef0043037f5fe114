"""A study as a value: what YAML gives, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hespas.errors import ConfigError, HardwareError
from hespas.study.goal import read_prices
from hespas.study.study import Axis, StudyFidelity, read_study, study_of

SMALL: dict[str, Any] = {"model": "llama3-100m", "cluster": "8xH100_80GB"}


def test_a_list_is_searched_and_a_scalar_is_pinned() -> None:
    study = study_of({**SMALL, "remat": ["full", "none"], "set": {"layers": [1, 2], "heads": 9}})
    assert study.search["model"] == ("llama3-100m",)
    assert study.searched == ("remat", "set.layers")


def test_a_study_written_out_is_the_same_study() -> None:
    given = {
        **SMALL,
        "mesh": [{"tp": [1, 2], "fsdp": "auto"}, "tp=2,fsdp=4"],
        "set": {"layers": 2},
        "where": ["memory.fits", "mesh.tp <= 2"],
        "goal": {"pareto": ["step_time_s", "usd_per_step"]},
        "budget": {"compile": 3, "minutes": 2.5},
        "fidelity": "fused",
        "prices": [{"part": "H100_80GB", "usd_per_device_hour": 2.0, "source": "a contract"}],
        "title": "which mesh",
    }
    study = study_of(given)
    assert study_of(study.to_dict()) == study
    assert study.fidelity is StudyFidelity.FUSED


def test_axes_of_a_mapping_are_in_the_usual_order_and_those_of_a_text_in_theirs() -> None:
    mapped = study_of({**SMALL, "mesh": {"tp": 2, "data": "auto", "fsdp": [1, 2]}})
    assert [axis.name for axis in mapped.meshes[0]] == ["data", "fsdp", "tp"]
    written = study_of({**SMALL, "mesh": "tp=2,fsdp=4"})
    assert written.meshes == ((Axis(name="tp", sizes=(2,)), Axis(name="fsdp", sizes=(4,))),)


def test_a_run_without_spares_is_compared_with_others() -> None:
    study = study_of({**SMALL, "goodput": True, "spare_nodes": [0, 2]})
    assert study.search["spare_nodes"] == (0, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clusters": "8xH100_80GB"}, "no key 'clusters'; did you mean 'cluster'"),
        ({"remat": []}, "lists nothing"),
        ({"remat": ["full", "full"]}, "lists full twice"),
        ({"remat": {"a": 1}}, "no value, nor a list"),
        ({"sequence": "long"}, r"\$.sequence is \"long\"; give an integer"),
        ({"sequence": 0}, "give 1 or more"),
        ({"spare_nodes": -1, "goodput": True}, "spare_nodes is -1; give 0 or more"),
        ({"scan": "sometimes"}, "give true or false"),
        ({"model": True}, "quote it"),
        ({"mesh": {"tp": "all"}}, "give auto, a number"),
        ({"mesh": {"tp": [2, 2]}}, "twice"),
        ({"mesh": 8}, "no mesh"),
        ({"where": "memory.fit"}, "did you mean 'memory.fits'"),
        ({"where": "mesh.tp > 1"}, "mesh has no axis 'tp'; add mesh"),
        ({"where": "mesh.tpp > 1", "mesh": {"tp": "auto"}}, "did you mean 'tp'"),
        ({"goal": {"maximise": "tokens"}}, "did you mean"),
        ({"goal": {"minimise": "usd_per_mtoken"}}, "no prices"),
        ({"budget": {"evaluation": 3}}, "did you mean 'evaluations'"),
        ({"budget": {"compile": 0}}, "budget.compile"),
        ({"fidelity": "best"}, "use one of auto, compiled"),
        ({"prices": [{"part": "H100_80GB", "usd_per_device_hour": 2.0}]}, "source"),
        ({"prices": [{"part": "H100", "usd_per_device_hour": -2.0, "source": "x"}]}, "prices"),
    ],
)
def test_mistakes_are_refused_where_they_are_read(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study_of({**SMALL, **changes}, location="study.yaml")


def test_a_study_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="has no model"):
        study_of({"cluster": "8xH100_80GB"})
    with pytest.raises(ConfigError, match="no mapping"):
        study_of(["llama3-100m"])


def test_prices_are_read_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text(
        "part,usd_per_device_hour,source\nH100_80GB,2.5,a contract\n"
    )
    (tmp_path / "study.yaml").write_text(
        "model: llama3-100m\ncluster: 8xH100_80GB\nprices: prices.csv\n"
        "goal: {minimise: usd_per_mtoken}\n"
    )
    (price,) = read_study(tmp_path / "study.yaml").prices
    assert (price.part, price.usd_per_device_hour, price.source) == ("H100_80GB", 2.5, "a contract")


def test_a_price_of_an_unknown_part_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text("part,usd_per_device_hour,source\nH100,2,a contract\n")
    with pytest.raises(HardwareError) as caught:
        read_prices(str(file))
    assert str(caught.value).startswith(f"{file}: no device preset or file is named 'H100'")


def test_prices_without_a_number_name_the_line(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text("part,usd_per_device_hour,source\nH100_80GB,cheap,a contract\n")
    with pytest.raises(ConfigError, match=r"prices\.csv:2: usd_per_device_hour is 'cheap'"):
        study_of({**SMALL, "prices": str(file)})
