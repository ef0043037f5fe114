from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from hespas.base.cache import ContentCache
from hespas.errors import ConfigError, ExtraMissingError, ProgramError, ToolError
from hespas.program.recorded import decode_recorded
from hespas.sources import torch_step as module
from hespas.sources.options import ModelOptions, TorchOptions
from hespas.sources.source import find_source
from hespas.sources.torch_step import TorchStep, check_packages, recorded_step, step_digest
from hespas.sources.workload import export_cache, read_workload
from hespas.torch.messages import PINNED, StepAnswer
from torch_steps import TRAIN, needs_torch


def find(text: str, target: str = "H100_80GB", **options: object) -> TorchStep:
    found = find_source(text, ModelOptions(**options), devices=8, target=target)  # pyright: ignore[reportArgumentType]
    assert isinstance(found, TorchStep)
    return found


def test_a_text_names_a_file_and_a_function() -> None:
    step = find("torch:dir/train.py:make_step", settings={"layers": "4"})
    assert (step.module, step.function) == ("dir/train.py", "make_step")
    assert step.arguments == {"layers": "4"}
    assert step.devices == 8
    assert step.name == "torch:dir/train.py:make_step"
    assert find("torch:package.module:step").module == "package.module"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torch:train", "needs a file and a function"),
        ("torch:train.py 'a", "end within quotes"),
        ("torch:", "needs a file and a function"),
        ("torch:train.py:not a name", "needs a file and a function"),
    ],
)
def test_a_text_without_a_function_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find(text)


def test_a_script_has_words_and_settings_become_such(tmp_path: Path) -> None:
    script, config = tmp_path / "train.py", tmp_path / "config.json"
    script.write_text("")
    config.write_text("{}")
    step = find(f"torch:{script} --config={config} 'two words'", settings={"batch": "8"})
    assert (step.module, step.function) == (str(script), "")
    assert step.words == (f"--config={config}", "two words", "--batch=8")
    assert step.name == f"torch:{script}"
    assert step.given_files == [str(config)]


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no such file"):
        find(f"torch:{tmp_path}/train.py --batch 8")


def test_a_cluster_of_nvidias_gpus_is_needed() -> None:
    with pytest.raises(ConfigError, match="recorded for a cluster, and none is given"):
        find_source("torch:train.py:step")
    with pytest.raises(ConfigError, match="for NVIDIA's GPUs, and TPUv5e is none"):
        find("torch:train.py:step", target="TPUv5e")


def test_options_of_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch has no effect on a step of PyTorch; give argum"):
        find("torch:train.py:step", batch=4)


def test_options_of_pytorch_are_refused_elsewhere() -> None:
    with pytest.raises(ConfigError, match="eager has no effect on llama3-100m"):
        find_source("llama3-100m", torch=TorchOptions(eager=True))


def test_a_recorded_step_is_kept_until_its_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text("one")
    recorded: list[bytes] = []

    def record(step: TorchStep) -> tuple[bytes, StepAnswer]:
        del step
        recorded.append(script.read_bytes())
        return recorded[-1], StepAnswer(files=[str(script)], variables=["LAYERS"])

    monkeypatch.setattr(module, "record_torch", record)
    kept: ContentCache = export_cache(tmp_path / "cache")
    step = find(f"torch:{script}:step")
    assert [recorded_step(step, kept) for _ in range(2)] == [b"one"] * 2
    assert len(recorded) == 1
    script.write_text("two")
    assert recorded_step(step, kept) == b"two"
    assert recorded_step(find(f"torch:{script}:step", settings={"layers": "2"}), kept) == b"two"
    assert len(recorded) == 3
    monkeypatch.setenv("LAYERS", "4")
    assert recorded_step(step, kept) == b"two"
    assert len(recorded) == 4


def test_steps_differ_by_their_script_and_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("one")
    digests = {step_digest(find(f"torch:{script}:step"))}
    digests.add(step_digest(find(f"torch:{script}:step", settings={"layers": "2"})))
    script.write_text("two")
    digests.add(step_digest(find(f"torch:{script}:step")))
    assert len(digests) == 3


@needs_torch
def test_the_workload_is_the_recorded_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    workload = read_workload(find("torch:train.py:train"), cache=None)
    step = decode_recorded(workload.content)
    assert (step.name, step.target, step.world_size) == ("torch:train.py:train", "sm_90a", 8)


def test_a_published_model_is_named_by_its_configuration(tmp_path: Path) -> None:
    step = find("torch:hf:Qwen/Qwen3-0.6B", batch=4, decode=True, settings={"layers": "2"})
    assert step.name == "torch:hf:Qwen/Qwen3-0.6B:decode"
    assert step.function == "decode"
    config = step.arguments["config"]
    assert config.endswith("configs/models/Qwen/Qwen3-0.6B.json")
    assert step.arguments == {"batch": "4", "layers": "2", "config": config}
    (tmp_path / "config.json").write_text("{}")
    assert find(f"torch:hf:{tmp_path}").function == "train"
    with pytest.raises(ConfigError, match="no configuration of 'Qwen/Qwen3-0"):
        find("torch:hf:Qwen/Qwen3-0.7B")


def test_versions_are_those_of_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extra = [each.split(";")[0] for each in project["optional-dependencies"]["torch"]]
    assert {f"{name}=={version}" for name, version in PINNED.items()} <= set(extra)
    monkeypatch.setattr(module, "find_spec", dict[str, str]().get)
    with pytest.raises(ExtraMissingError, match=r"pip install 'hespas\[torch\]'"):
        check_packages()


def test_another_version_of_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        return "2.12.1+cu130" if name == "torch" else "3.7.1"

    monkeypatch.setattr(module, "find_spec", str)
    monkeypatch.setattr(module, "installed_version", version)
    with pytest.raises(ToolError, match=r"torch 2.12.1\+cu130 is installed"):
        check_packages()
