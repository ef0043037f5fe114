"""What a text names: a model, a function, a file or a dump; and a model's settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hespas.errors import ConfigError, DeviceCountError, HespasError, ProgramError
from hespas.evidence.validate.measurements import read_rows, read_steps
from hespas.models.catalogue import model_named, models
from hespas.models.model import parse_mesh
from hespas.sources import source
from hespas.sources.options import ModelOptions
from hespas.sources.source import (
    Batch,
    DumpSource,
    FileSource,
    FunctionSource,
    ModelSource,
    find_source,
)


def model(name: str, devices: int | None = None, **given: object) -> ModelSource:
    if isinstance(mesh := given.get("mesh"), str):
        given["mesh"] = parse_mesh(mesh)
    options = ModelOptions(**given)  # pyright: ignore[reportArgumentType]
    source = find_source(name, options, devices=devices, loops=True)
    assert isinstance(source, ModelSource)
    return source


def test_a_text_names_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("step.mlir").write_text("")
    Path("gemm").write_text("")
    Path("dump").mkdir()
    assert find_source("step.mlir") == FileSource(path=Path("step.mlir"))
    assert find_source("gemm") == FileSource(path=Path("gemm"))
    assert find_source("dump") == DumpSource(path=Path("dump"))
    assert find_source("a.b:c", devices=4) == FunctionSource(name="a.b:c", devices=4)
    assert isinstance(find_source("gemm-rows"), ModelSource)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("lama3-8b", ConfigError, "there is no model or file 'lama3-8b'; did you mean 'llama3-8b'"),
        ("resnet5", ConfigError, "did you mean 'resnet50'"),
        ("llama3.1-405b-decod", ConfigError, "did you mean 'llama3.1-405b-decode'"),
        ("absent.mlir", ProgramError, "absent.mlir: no such file"),
        ("some/where", ProgramError, "no such file; check the path, or name a model"),
        ("xyzzy", ProgramError, "no such file"),
        ("maxtext", ConfigError, "needs a configuration; write maxtext:base.yml, and its"),
    ],
)
def test_what_names_nothing(name: str, kind: type[HespasError], message: str) -> None:
    with pytest.raises(kind) as caught:
        find_source(name)
    assert message in str(caught.value)


def test_options_of_models_have_no_effect_on_other_programs(tmp_path: Path) -> None:
    (tmp_path / "a.mlir").write_text("")
    for name in ("a:b", str(tmp_path / "a.mlir"), str(tmp_path)):
        with pytest.raises(
            ConfigError, match=r"batch has no effect on a .*: only models of the zoo"
        ):
            find_source(name, ModelOptions(batch=2))
        with pytest.raises(ConfigError, match="micro_batch has no effect on a"):
            find_source(name, ModelOptions(micro_batch=2, dtype="f32"))


@pytest.mark.parametrize(
    ("name", "devices", "mesh"),
    [
        ("llama3-8b", 32, "fsdp=32"),
        ("resnet50", 8, "data=8"),
        ("llama2-7b", 32, "data=8,fsdp=4"),
        ("moe", 4, "expert=4"),
        ("gemm", 1, "x=1"),
        ("Qwen/Qwen3-30B-A3B", 4, "fsdp=1,expert=4"),
        ("llama3-8b", None, "fsdp=4"),
    ],
)
def test_the_mesh_follows_from_the_number_of_devices(
    name: str, devices: int | None, mesh: str
) -> None:
    source = model(name, devices)
    assert str(source.mesh) == mesh
    told = any(f"the mesh is {mesh}" in note for note in source.notes)
    assert told == (devices is not None)


def test_a_mesh_of_another_size_than_the_cluster_is_refused() -> None:
    with pytest.raises(DeviceCountError, match="the mesh fsdp=8,tp=2 has 16 devices, and there ar"):
        model("llama3-8b", 32, mesh="fsdp=8,tp=2")
    with pytest.raises(DeviceCountError, match="6 devices do not fit the mesh of llama2-7b"):
        model("llama2-7b", 6)


def test_the_note_on_loops_quotes_what_was_compared() -> None:
    compared = json.loads(Path(source.__file__).with_name("loops.json").read_text())
    longer = [
        each["loop"]["compute_s"] / each["unrolled"]["compute_s"] - 1 for each in compared["models"]
    ]
    assert (compared["least"], compared["most"]) == (min(longer), max(longer))
    (note,) = [each for each in model("llama3-8b").notes if "one loop" in each]
    assert f"is {100 * min(longer):.0f} to {100 * max(longer):.0f} % longer" in note


def test_layers_are_a_loop_unless_said_otherwise() -> None:
    assert model("llama3-8b").settings.run.scan is True
    assert "one loop" in " ".join(model("llama3-8b").notes)
    assert model("llama3-8b", scan=False).settings.run.scan is False
    assert "one loop" not in " ".join(model("llama3-8b", scan=False).notes)
    exported = find_source("llama3-8b")
    assert isinstance(exported, ModelSource)
    assert exported.settings.run.scan is False
    assert "scan" not in model("gemm").texts


def test_the_global_batch_is_divided_over_the_parts_of_the_mesh() -> None:
    source = model("llama3-8b", 32, mesh="fsdp=8,tp=4", global_batch=64, sequence=1024)
    assert source.settings.batch == 8
    assert source.batch == Batch(samples=64, what="sequences", tokens=65536)
    assert model("resnet50", 8, batch=32).batch == Batch(samples=256, what="images")
    assert model("gemm").batch is None


def test_a_micro_batch_is_a_round_of_accumulation() -> None:
    source = model("llama3-8b", 32, mesh="fsdp=8,tp=4", global_batch=64, micro_batch=2)
    assert source.settings.accumulation == 4
    assert source.batch == Batch(samples=64, what="sequences", tokens=64 * 4096)
    assert "8 for each of 8 data-parallel parts, 2 at a time" in source.notes[-1]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("llama3-8b", {"global_batch": 100}, "cannot be divided over the 8 .* give 96 or 104"),
        ("llama3-8b", {"global_batch": 4}, "give 8$"),
        ("gemm", {"global_batch": 8}, "gemm has no batch; drop global_batch"),
        ("resnet50", {"micro_batch": 8}, "resnet50 does not accumulate gradients"),
        ("llama3-8b", {"batch": 8, "micro_batch": 3}, "does not divide the batch .*, 8"),
        ("llama3-8b", {"micro_batch": 2}, "give a divisor of 1, or another batch"),
        ("llama3-8b", {"batch": 0}, "batch is '0'; give a whole number"),
        ("llama3-8b", {"settings": {"layer": "2"}}, "no option 'layer'; did you mean 'layers'"),
        ("llama3-8b", {"batch": 1, "settings": {"batch": "2"}}, "both given; keep one"),
    ],
)
def test_settings_that_do_not_fit(name: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model(name, 8, **given)


def on_target(name: str, target: str | None, **given: object) -> ModelSource:
    options = ModelOptions(**given)  # pyright: ignore[reportArgumentType]
    source = find_source(name, options, devices=8, target=target, loops=True)
    assert isinstance(source, ModelSource)
    return source


@pytest.mark.parametrize("target", ["TPUv5e", "V100_32GB", "MI300X", "P100"])
def test_what_has_no_fused_kernels(target: str) -> None:
    assert on_target("llama3-8b", "H100_80GB", attention="cudnn").settings.run.attention == "cudnn"
    with pytest.raises(ConfigError, match=f"{target} has no fused attention of cuDNN; drop"):
        on_target("llama3-8b", target, attention="cudnn")


@pytest.mark.parametrize("target", ["TPUv5e", "V100_32GB", "B200_180GB"])
def test_what_flash_attention_is_not_for(target: str) -> None:
    for own in ("A100_SXM_80GB", "H100_80GB", "L40S_48GB", "MI300X"):
        assert on_target("llama3-8b", own, attention="flash").settings.run.attention == "flash"
    with pytest.raises(ConfigError, match=f"have no kernels for {target}: they are for NVIDIA"):
        on_target("llama3-8b", target, attention="flash")


@pytest.mark.parametrize("target", ["TPUv3", "H100_80GB", "MI300X"])
def test_what_splash_attention_is_not_for(target: str) -> None:
    assert on_target("llama3-8b", "TPUv4", attention="splash").settings.run.attention == "splash"
    with pytest.raises(ConfigError, match=f"{target} has no splash attention"):
        on_target("llama3-8b", target, attention="splash")


@pytest.mark.parametrize(
    ("name", "target", "attention", "said"),
    [
        ("llama3-8b", "H100_80GB", "cudnn", "attention is that of cuDNN, fused"),
        ("llama3-100m", "H100_80GB", "cudnn", "attention is that of cuDNN, fused"),
        ("llama3-3b", "TPUv5p", "splash", "attention is splash attention"),
        ("llama2-7b", "A100_SXM_40GB", "cudnn", "which A100_SXM_40GB has"),
        ("gpt3-125m", "H100_80GB", "cudnn", "attention is that of cuDNN, fused"),
        ("llama3-405b", "B300_288GB", "cudnn", "which B300_288GB has"),
        ("llama3-8b", "A40_48GB", "cudnn", "which A40_48GB has"),
        ("llama3-8b", "L40S_48GB", "cudnn", "which L40S_48GB has"),
        ("llama3-8b", "H100_SXM", "cudnn", "which H100_SXM has"),
        ("llama3-70b", "V100_32GB", "unfused", "V100_32GB has no fused attention of cuDNN"),
        ("llama3-8b", "TPUv5p", "splash", "attention is splash attention, JAX's kernels for TPUs"),
        ("gemma2-9b", "TPUv6e", "splash", "in blocks of 512 or less"),
        ("gemma2-9b", "H100_80GB", "unfused", "cuDNN's fused attention has no cap of scores"),
        ("deepseek-v3-decode", "B200_180GB", "flashmla", "attention is that of FlashMLA, fused"),
        ("deepseek-v3-decode", "A100_SXM_80GB", "unfused", "A100_SXM_80GB has no FlashMLA"),
        ("deepseek-v3", "TPUv5e", "splash", "attention is splash attention"),
        ("llama3-8b-decode", "TPUv6e", "unfused", "splash attention has no kernel over a cache"),
        ("llama3-8b", "TPUv3", "unfused", "TPUv3 has no splash attention: Pallas is for newer"),
        (
            "llama3-8b",
            "MI300X",
            "flash2",
            "attention is FlashAttention-2's, fused, which MI300X has",
        ),
        ("gemma2-9b", "MI355X", "unfused", "with a cap of scores has no price"),
        ("llama3-8b", "mine/config.json", "unfused", "not known whether mine/config.json has"),
        ("llama3-8b", None, "unfused", "nothing says"),
    ],
)
def test_attention_is_what_the_node_has(
    name: str, target: str | None, attention: str, said: str
) -> None:
    source = on_target(name, target)
    (note,) = [each for each in source.notes if each.startswith("attention is")]
    assert source.settings.run.attention == attention
    assert said in note
    assert on_target(name, target, attention="auto") == source


@pytest.mark.parametrize(
    ("target", "sequence", "attention"),
    [
        ("H200_141GB", 4096, "flashmla"),
        ("H200_141GB", 2048, "cudnn"),
        ("A100_SXM_80GB", 4096, "unfused"),
    ],
)
def test_prompts_longer_than_an_index_chooses_run_by_flash_mla(
    target: str, sequence: int, attention: str
) -> None:
    source = on_target("deepseek-ai/DeepSeek-V3.2:prefill", target, sequence=sequence)
    assert source.settings.run.attention == attention


@pytest.mark.parametrize(
    "name", [name for name, model in models().items() if "attention" in model.options()]
)
def test_no_model_has_an_attention_of_its_own(name: str) -> None:
    assert model_named(name).options()["attention"] == "auto"


def test_published_steps_say_what_they_ran_with_in_their_own_row() -> None:
    """Each of the zoo's models that computes attention: how, and in which type states are held."""
    rows = [row for row in read_rows() if row.workload.startswith("llama3-")]
    assert rows
    for row in rows:
        assert row.options["attention"] == "unfused"
        assert row.options["state_dtype"] == "bf16"
    for step in read_steps():
        if step.workload.startswith("llama3-"):
            assert step.options["attention"] == "unfused"
            assert step.options["state_dtype"] == "bf16"


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "llama2-7b", "mistral-7b"])
def test_the_answer_says_which_states_are_held(name: str) -> None:
    def said(**given: object) -> str:
        (note,) = [each for each in on_target(name, "H100_80GB", **given).notes if "AdamW" in each]
        return note

    assert "held in f32, 12 bytes a parameter (--set state_dtype=bf16" in said()
    asked = said(settings={"state_dtype": "bf16"})
    assert "held in bf16, 6 bytes a parameter (--set state_dtype=f32" in asked
    serving = on_target("llama3-8b-decode", "H100_80GB").notes
    assert not any("AdamW" in each for each in serving)


def test_the_answer_says_how_many_tokens_an_expert_takes() -> None:
    def said(name: str, **given: object) -> list[str]:
        notes = on_target(name, "H100_80GB", **given).notes
        return [each for each in notes if each.startswith("experts: ")]

    (usual,) = said("Qwen/Qwen3-30B-A3B")
    assert "at most 100 % of the tokens that an even spread gives it, and drops others" in usual
    (more,) = said("mixtral-8x7b", settings={"capacity_percent": "125"})
    assert "at most 125 %" in more
    assert not said("mixtral-8x7b", settings={"dropless": "True", "mesh": "data=8"})
    assert not said("llama3-8b")


def test_splash_attention_needs_whole_blocks() -> None:
    why = "splash attention needs multiples of 128 tokens"
    source = on_target("llama3-8b", "TPUv6e", sequence=4160)
    assert source.settings.run.attention == "unfused"
    assert any(f"{why}, not 4160" in note for note in source.notes)
    given = {"sequence": 3072, "mesh": parse_mesh("fsdp=1,context=8"), "attention": "splash"}
    with pytest.raises(ConfigError, match=f"{why} in each of 16 blocks, not 3072"):
        on_target("llama3-8b", "TPUv6e", **given)


def test_fused_attention_computes_in_16_bits() -> None:
    assert on_target("llama3-8b", "H100_80GB", dtype="f32").settings.run.attention == "unfused"
    with pytest.raises(ConfigError, match="computes in 16 bits, and dtype is f32"):
        on_target("llama3-8b", "H100_80GB", dtype="f32", attention="cudnn")
    with pytest.raises(ConfigError, match="resnet18 has no option 'attention'"):
        on_target("resnet18", "H100_80GB", attention="auto")


def test_a_script_without_its_prefix_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    with pytest.raises(ConfigError, match=r"is no program; write torch:\S*train.py for one of Py"):
        find_source(str(tmp_path / "train.py"))
