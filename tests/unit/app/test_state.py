"""States of the page as options, and as what people copy."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from hespas.app.state import command_of, copies_of, options_of, python_of, runs_code, study_file_of
from hespas.base.fields import changed_options
from hespas.errors import ConfigError
from hespas.prediction.options import Fidelity
from hespas.study.space import candidates_of
from hespas.study.study import study_of

STATE: dict[str, Any] = {
    "model": "llama3-1b",
    "cluster": "8xH100_80GB",
    "mesh": {"pipe": 1, "fsdp": 4, "tp": 2},
    "batch": 2,
    "scan": True,
    "set": {"product_dtype": "f8"},
    "fidelity": "fused",
}


def test_a_state_is_the_options_of_its_command() -> None:
    given = {option.name: value for option, value in changed_options(options_of(STATE))}
    assert str(given["mesh"]) == "fsdp=4,tp=2"
    assert given["batch"] == 2
    assert given["set"] == {"product_dtype": "f8"}
    assert command_of(STATE).split()[:5] == [
        "hespas",
        "run",
        "llama3-1b",
        "--cluster",
        "8xH100_80GB",
    ]
    for words in ("--mesh fsdp=4,tp=2", "--batch 2", "--scan", "--set product_dtype=f8"):
        assert words in command_of(STATE)


def test_the_file_of_a_study_is_that_candidate() -> None:
    (candidate,) = candidates_of(study_of(yaml.safe_load(study_file_of(STATE))))
    assert candidate.options().program == options_of(STATE).program


@pytest.mark.parametrize("fidelity", [each.value for each in Fidelity])
def test_every_choice_of_kernels_is_copied(fidelity: str) -> None:
    copies = copies_of({**STATE, "fidelity": fidelity})
    assert f"fidelity: {fidelity}" in copies["study"]


def test_the_python_names_the_same_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def predict(model: str, **given: Any) -> None:
        asked.update(given, model=model)

    monkeypatch.setattr("hespas.predict", predict)
    file = tmp_path / "asked.py"
    file.write_text(python_of(STATE))
    runpy.run_path(str(file))
    assert asked["mesh"] == "fsdp=4,tp=2"
    assert asked["settings"] == {"product_dtype": "f8"}
    assert asked["batch"] == 2


def test_a_pipeline_is_asked_of_the_function_for_it() -> None:
    text = python_of({**STATE, "mesh": {"pipe": 2, "fsdp": 4}, "schedule": "1f1b"})
    assert "hespas.predict_pipeline(" in text
    assert "'8xH100_80GB',\n" in text


def test_one_device_has_no_mesh() -> None:
    state: dict[str, Any] = {"model": "llama3-1b", "cluster": "1xH100_80GB", "mesh": {}}
    assert command_of(state) == "hespas run llama3-1b --cluster 1xH100_80GB"


def test_a_value_with_a_blank_is_quoted() -> None:
    assert "'/home/a b/config.json'" in command_of({**STATE, "model": "/home/a b/config.json"})
    assert set(copies_of(STATE)) == {"command", "python", "study"}


@pytest.mark.parametrize("key", ["output", "cache_dir", "method", "kernels", "recipe"])
def test_what_writes_files_or_runs_programs_is_no_key(key: str) -> None:
    with pytest.raises(ConfigError, match="there is no key"):
        options_of({**STATE, key: "x"})


def test_only_models_and_programs_are_read_without_a_question(tmp_path: Path) -> None:
    assert runs_code({"model": "llama3-8b"}) == ""
    assert runs_code({"model": "meta-llama/Llama-3.1-8B"}) == ""
    assert runs_code({"model": "os:system"}) == "os:system"
    script = tmp_path / "steps.py"
    script.write_text("raise SystemExit('it ran')\n")
    assert "steps.py" in runs_code({"model": f"torch:{script}:step", "cluster": "8xH100_80GB"})


def test_the_part_of_a_cluster_of_ones_own_is_a_preset_and_no_file(tmp_path: Path) -> None:
    assert "--node H100_80GB" in command_of({**STATE, "cluster": "./mine", "node": "H100_80GB"})
    file = tmp_path / "config.json"
    file.write_text("{}")
    with pytest.raises(ConfigError, match="is no preset"):
        options_of({**STATE, "node": str(file)})


@pytest.mark.parametrize("text", ["[1]", '{"a": 1}'])
def test_a_json_of_something_else_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="neither a model's configuration nor a recorded step"):
        runs_code({"model": str(file), "cluster": "4xA100_SXM_40GB"})


@pytest.mark.parametrize("text", ["", "{not json"])
def test_a_file_that_is_no_json_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="this is not JSON"):
        runs_code({"model": str(file), "cluster": "4xA100_SXM_40GB"})
