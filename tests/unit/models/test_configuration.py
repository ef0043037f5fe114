"""Configurations are read whole, or refused by the name of a field."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hespas.errors import ConfigError
from hespas.models.architecture import LayerKind
from hespas.models.configuration import SHIPPED, Configuration, configured, read_configuration
from hespas.models.configured import configuration_of, configured_model, published
from hespas.models.language import LanguageModel
from hespas.models.model import MeshAxes
from hespas.models.network_model import steps_of
from hespas.models.parameters import active_parameters, parameters
from hespas.models.runs import Decode, Prefill, Training

QWEN = json.loads((SHIPPED / "Qwen" / "Qwen3-8B.json").read_bytes())
DEFAULTS = SHIPPED.parent / "decoder_defaults.json"
EXPERTS = json.loads((SHIPPED / "Qwen" / "Qwen3-30B-A3B.json").read_bytes())


def read(values: dict[str, Any]) -> Configuration:
    return configured(values, location="config.json", name="mine")


def decoder(name: str) -> LanguageModel:
    model = read_configuration(SHIPPED / f"{name}.json").model
    assert isinstance(model, LanguageModel)
    return model


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # As transformers 5.24 builds them: validation/measurements/model_counts.csv.
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79_674_391_296),
        ("openai/gpt-oss-20b", 20_914_757_184),
        ("google/gemma-2-9b", 9_241_705_984),
        ("nvidia/Nemotron-H-8B-Base-8K", 8_100_852_736),
        ("allenai/OLMo-2-1124-7B", 7_298_617_344),
        ("mosaicml/mpt-7b", 6_649_286_656),
        ("google/gemma-4-E2B", 4_628_569_379),
    ],
)
def test_parameters_are_those_of_the_published_model(name: str, count: int) -> None:
    assert parameters(decoder(name)) == count


@pytest.mark.parametrize("name", published())
def test_every_published_model_has_its_steps(name: str) -> None:
    model = configured_model(name)
    assert model is not None
    steps = ("training", "prefill", "decode")
    if not isinstance(model.settings, LanguageModel):
        steps = steps_of(getattr(model.settings, "design", None))
    for step in steps:
        model = configured_model(f"{name}:{step}")
        assert model is not None
        model.settings.check()


@pytest.mark.parametrize(
    ("name", "base", "stored"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B", None),
        ("meta-llama/Meta-Llama-3.1-8B", "meta-llama/Llama-3.1-8B", None),
        ("meta-llama/Llama-2-70b-chat-hf", "meta-llama/Llama-2-70b-hf", None),
        ("Qwen/Qwen3-235B-A22B-FP8", "Qwen/Qwen3-235B-A22B", "f8"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "Qwen/Qwen3-30B-A3B", "f8"),
        ("nvidia/DeepSeek-R1-FP4", "deepseek-ai/DeepSeek-R1", "nvfp4"),
        ("zhipuai/GLM-5", "zai-org/GLM-5", None),
    ],
)
def test_a_checkpoint_has_the_sizes_of_what_it_is_made_from(
    name: str, base: str, stored: str | None
) -> None:
    made, original = configuration_of(name), configuration_of(base)
    assert made is not None
    assert original is not None
    assert made.model == original.model
    assert base in made.notes[-1]
    assert made.precision.experts == (stored or original.precision.experts)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-9B-FP8", "-FP8", "meta-llama/Instruct", "llama3-1b"])
def test_a_name_that_no_configuration_has_means_none(name: str) -> None:
    assert configuration_of(name) is None


def test_active_parameters_are_those_in_the_names_of_models() -> None:
    # 30B-A3B and 235B-A22B: billions, rounded, with both embeddings.
    for name, active in (("Qwen3-30B-A3B", 3.3), ("Qwen3-235B-A22B", 22.2)):
        assert active_parameters(decoder(f"Qwen/{name}")) / 1e9 == pytest.approx(active, abs=0.06)


def test_a_field_that_may_matter_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="attention_scheme"):
        read({**QWEN, "attention_scheme": "ring"})


def test_fields_of_tokenizers_change_nothing() -> None:
    plain = read(QWEN)
    more = {"bos_token_id": 1, "transformers_version": "9", "initializer_range": 0.1}
    assert read({**QWEN, **more}) == plain


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_attention_heads": 30}, "kv_heads"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "wide"}, 'hidden_size is "wide"'),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": 10**10}, "vocab_size"),
        ({"hidden_size": 2**20, "intermediate_size": 2**24}, "parameters"),
        ({"num_hidden_layers": 2**20}, "1048576 layers"),
        ({"hidden_act": "mish"}, "mish"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "spiral"),
        ({"model_type": "qwen33"}, "the nearest that is known is qwen3"),
        ({"model_type": None}, "model_type"),
        ({"rope_theta": float("nan")}, "give a finite number"),
        ({"num_hidden_layers": -3}, "give a whole number of 1 or more"),
        ({"text_config": []}, "text_config"),
        ({"quantization_config": {"quant_method": "sieve"}}, "sieve"),
        ({"layer_types": ["wavy_attention"] * 36}, "wavy_attention"),
        ({"rope_theta": -1}, "rope_theta is -1"),
        ({"head_dim": 127}, "127 of the 127 numbers of a head turn with their position, in pairs"),
        ({"partial_rotary_factor": 1.5}, "192 of the 128 numbers"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0"),
        ({"rope_scaling": {"type": "yarn", "factor": 4, "beta": 2}}, "beta = 2"),
        ({"rope_parameters": {"rope_theta": 500.0}}, "rope_theta is 500.0, and 1000000 in another"),
        (
            {
                "rope_scaling": {"rope_type": "linear", "factor": 2},
                "rope_parameters": {"rope_type": "linear", "factor": 4},
            },
            "factor is 4, and 2 in another place",
        ),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({**QWEN, **changed})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("family", "changed"),
    [
        ("granite", {"logits_scaling": 0}),
        ("gemma2", {"query_pre_attn_scalar": 0}),
        ("gemma2", {"query_pre_attn_scalar": -1}),
        ("bamba", {"mamba_d_head": "wide", "attn_layer_indices": [0]}),
        ("bamba", {"mamba_d_head": [], "attn_layer_indices": [0]}),
    ],
)
def test_scales_and_sizes_that_are_none_are_named(family: str, changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(changed))} is"):
        read({**QWEN, "model_type": family, **changed})


@pytest.mark.parametrize("value", [None, 0, -1, "x", [], {"a": 1}])
def test_any_value_of_a_field_makes_a_model_or_an_error(value: object) -> None:
    """Each field of each family is replaced, of the default configurations of transformers."""
    families: dict[str, dict[str, Any]] = json.loads(DEFAULTS.read_bytes())
    for family, fields in families.items():
        for name in fields:
            changed = {**fields, "model_type": family, name: value}
            with suppress(ConfigError):
                configured(changed, location="config.json", name="changed")


@pytest.mark.parametrize("step", ["decode", "prefill", "training"])
def test_a_step_of_an_unknown_model_names_the_nearest(step: str) -> None:
    with pytest.raises(ConfigError, match="there is no model 'Qwen/Qwen3-9B'; did you mean 'Qwen/"):
        configured_model(f"Qwen/Qwen3-9B:{step}")
    assert configured_model(f"package.module:{step}") is None


def test_windows_as_long_as_the_context_are_left_out_and_said() -> None:
    longest = QWEN["max_position_embeddings"]
    given = {**QWEN, "use_sliding_window": True, "max_window_layers": 0}
    long = configured({**given, "sliding_window": longest}, location="", name="")
    assert long.model == read(QWEN).model
    assert long.notes == (
        f"windows of {longest} tokens hold all of a context of {longest}, and are left out",
    )
    short = configured({**given, "sliding_window": longest - 1}, location="", name="")
    assert isinstance(short.model, LanguageModel)
    assert short.model.is_windowed
    assert short.notes == ()


def test_a_step_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="no step 'prefil'"):
        configured_model("Qwen/Qwen3-8B:prefil")
    assert configured_model("package.module:function") is None


def test_two_spellings_that_disagree_are_refused() -> None:
    gpt = json.loads((SHIPPED / "openai" / "gpt-oss-20b.json").read_bytes())
    with pytest.raises(ConfigError, match="mean the same"):
        read({**gpt, "experts_per_token": 3})


def test_a_field_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    text = json.dumps(QWEN)
    (tmp_path / "config.json").write_text(f'{text[:-1]}, "hidden_size": 8}}')
    with pytest.raises(ConfigError, match="hidden_size is given twice, as 4096 and as 8"):
        read_configuration(tmp_path)
    (tmp_path / "config.json").write_text(f'{text[:-1]}, "hidden_size": 4096}}')
    assert read_configuration(tmp_path).model == read(QWEN).model


def test_fields_that_are_not_given_are_those_of_the_library() -> None:
    """As transformers 5.24 builds them."""
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 10000}
    ernie = read({**sizes, **heads, "model_type": "ernie4_5", "use_bias": True})
    assert isinstance(ernie.model, LanguageModel)
    assert parameters(ernie.model) == 19_039_744
    assert any("head_dim = 128" in note for note in ernie.notes)
    jais = read({**sizes, **heads, "model_type": "jais2"}).model
    assert isinstance(jais, LanguageModel)
    assert parameters(jais) == 18_650_624
    bamba = {"mamba_n_heads": 16, "mamba_d_state": 64, "attn_layer_indices": [1]}
    states = read({**sizes, **heads, **bamba, "model_type": "bamba"}).model
    assert isinstance(states, LanguageModel)
    assert parameters(states) == 24_510_992
    hunyuan = read({**sizes, **heads, "model_type": "hunyuan_v1_dense", "head_dim": 64}).model
    assert isinstance(hunyuan, LanguageModel)
    assert parameters(hunyuan) == 21_517_312


MESH = MeshAxes(axes=(("data", 1),))


@pytest.mark.parametrize("run", [Training(mesh=MESH), Prefill(mesh=MESH)])
def test_gates_have_biases_where_dense_layers_have(run: Training | Prefill) -> None:
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    values = {name: QWEN[name] for name in (*names, "num_hidden_layers")} | {"model_type": "llama"}
    plain, biased = read(values).model, read({**values, "mlp_bias": True}).model
    assert isinstance(plain, LanguageModel)
    assert isinstance(biased, LanguageModel)
    counts = [parameters(replace(model, run=run)) for model in (plain, biased)]
    assert counts[1] - counts[0] == 36 * (2 * 12288 + 4096)


@pytest.mark.parametrize("groups", [{"n_group": 5}, {"n_group": 8, "topk_group": 9}])
def test_groups_that_cannot_hold_experts_are_refused(groups: dict[str, int]) -> None:
    values = json.loads((SHIPPED / "deepseek-ai" / "DeepSeek-V3.json").read_bytes())
    with pytest.raises(ConfigError, match=r"topk_group of n_group"):
        read({**values, **groups})


def test_a_model_whose_layers_are_all_dense_has_no_experts() -> None:
    values = json.loads((SHIPPED / "deepseek-ai" / "DeepSeek-V3.json").read_bytes())
    model = read({**values, "first_k_dense_replace": 61}).model
    assert isinstance(model, LanguageModel)
    assert model.routing is None


def test_fewer_experts_than_a_token_chooses_are_refused() -> None:
    with pytest.raises(ConfigError, match="chosen = 8 of experts = 4"):
        read({**EXPERTS, "num_experts": 4})


def test_a_directory_and_a_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN))
    assert read_configuration(tmp_path).model == read_configuration(file).model


def test_a_configuration_that_changed_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    for directory, layers in (("one", 2), ("one", 3), ("other", 4)):
        file = tmp_path / directory / "config.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(QWEN | {"num_hidden_layers": layers, "max_window_layers": 0}))
        monkeypatch.chdir(file.parent)
        for name in (".", "config.json"):
            model = configured_model(name)
            assert model is not None
            counts.append(model.settings.layers)
    assert counts == [2, 2, 3, 3, 4, 4]
    assert configured_model(".") is configured_model(".")


def test_a_file_cut_short_is_no_json(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN)[:100])
    with pytest.raises(ConfigError, match="no JSON"):
        read_configuration(file)


def test_a_directory_without_a_configuration_has_no_model(tmp_path: Path) -> None:
    assert configured_model(str(tmp_path)) is None
    with pytest.raises(ConfigError, match=r"no config\.json"):
        read_configuration(tmp_path)


def test_layers_differ_as_the_file_says() -> None:
    kinds = decoder("nvidia/Nemotron-H-8B-Base-8K").kinds
    assert sum(kind.mixer == "state_space" for kind in kinds) == 24
    assert sum(kind.mixer == "attention" for kind in kinds) == 4
    assert kinds[0] == LayerKind(mixer="state_space", feeds_forward=False)


def test_the_last_layers_share_keys_of_the_last_before_them() -> None:
    model = decoder("google/gemma-4-E2B")
    kept = [(index, kind.window) for index, kind in enumerate(model.kinds) if kind.keys == "kept"]
    assert kept == [(13, 512), (14, 0)]
    assert {kind.keys for kind in model.kinds[15:]} == {"shared"}
    assert model.kinds[20].mlp == 2 * 6144


def test_keys_that_no_layer_has_cannot_be_shared() -> None:
    values = json.loads((SHIPPED / "google" / "gemma-4-E2B.json").read_bytes())
    with pytest.raises(ConfigError, match="num_kv_shared_layers is 32"):
        read({**values, "text_config": {**values["text_config"], "num_kv_shared_layers": 32}})


def test_weights_in_8_bits_are_served_in_8_bits() -> None:
    model = configured_model("deepseek-ai/DeepSeek-V3:decode")
    assert model is not None
    run = model.settings.run
    assert isinstance(run, Decode)
    assert run.weight_dtype == "f8"
