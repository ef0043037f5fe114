"""Kernels of frameworks: which settings a name stands for, and what an eager step launches."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from hespas.errors import ConfigError
from hespas.frontend.load import load_source
from hespas.models.catalogue import model_named
from hespas.models.software import SOFTWARE, software_named
from hespas.models.steps.layer import gated
from hespas.models.steps.norms import Places, rotated, turns
from hespas.models.steps.routing import biased_one_by_one
from hespas.program.devices import communication_ops
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model
from hespas.sources.options import ModelOptions
from hespas.sources.zoo import model_source

SMALL = {"mesh": "fsdp=2", "layers": "1", "sequence": "256", "vocabulary": "512"}
MODEL = "meta-llama/Llama-3.1-8B"
BIASED = "openai/gpt-oss-20b"


@pytest.mark.parametrize("name", SOFTWARE)
def test_every_setting_of_a_framework_has_its_source(name: str) -> None:
    software = software_named(name)
    of_models = {**software.of_slow_experts, **software.of_scaled_rotation}
    settings = {**software.settings, **software.on_hopper, **of_models}
    again = {"full_remat"} if software.full_remat != "full" else set[str]()
    whole = {"keeps_weights"} if software.keeps_weights else set[str]()
    fsdp = set[str]() if software.fsdp is None else {"fsdp"}
    assert set(software.sources) == {*settings, *again, *whole, *fsdp}
    for model in (MODEL, BIASED):
        own = model_named(model)
        slow, scales = own.settings.has_slow_experts, own.settings.scales_rotation
        given = software.settings_for(is_hopper=True, has_slow_experts=slow, scales_rotation=scales)
        own.with_options(given).check()


def test_an_unknown_framework_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="did you mean 'torchtitan"):
        software_named("torchtitan-2023")


@pytest.mark.parametrize(
    ("target", "attention"), [("H100_80GB", "flash2"), ("A100_SXM_80GB", "cudnn")]
)
def test_the_part_decides_which_attention_is_called(target: str, attention: str) -> None:
    options = ModelOptions(software="torchtitan-2024")
    source = model_source(model_named(MODEL), options, devices=8, target=target, loops=True)
    assert source.settings.run.attention == attention
    assert any("torchtitan of 2024" in note for note in source.notes)


def test_settings_beside_a_framework_stand() -> None:
    options = ModelOptions(software="torchtitan-2024", remat="full")
    source = model_source(model_named(MODEL), options, devices=8, target="H100_80GB", loops=True)
    assert source.settings.run.remat == "full"


def test_a_step_of_inference_has_no_framework_here() -> None:
    options = ModelOptions(software="megatron")
    with pytest.raises(ConfigError, match="software has no effect"):
        model_source(
            model_named(f"{MODEL}:decode"), options, devices=8, target="H100_80GB", loops=True
        )


def test_an_eager_step_keeps_operations_apart() -> None:
    texts = {
        name: export_model(MODEL, {**SMALL, **settings}).content.count(b"optimization_barrier")
        for name, settings in (
            ("fused", {}),
            ("loss", {"loss": "eager"}),
            ("eager", {"eager": "true"}),
        )
    }
    assert texts["fused"] < texts["loss"] < texts["eager"]


def test_experts_with_biases_run_by_operations_and_others_cannot() -> None:
    options = ModelOptions(software="megatron")
    source = model_source(model_named(BIASED), options, devices=8, target="B200_180GB", loops=True)
    assert source.settings.run.expert_kernels == "eager"
    with pytest.raises(ConfigError, match="expert_kernels = eager has no effect"):
        model_named(MODEL).with_options({"expert_kernels": "eager"}).check()


@pytest.mark.parametrize("experts", [1, 3])
def test_experts_by_operations_compute_the_same(experts: int) -> None:
    fused = model_named(BIASED).settings.style
    eager = replace(fused, eager_experts=True)
    rows = jnp.asarray(np.linspace(-9, 9, 8 * experts).reshape(experts, 2, 4))
    np.testing.assert_array_equal(gated(fused, rows, 2 * rows), gated(eager, rows, 2 * rows))
    bias = jnp.asarray(np.arange(4.0 * experts).reshape(experts, 1, 4))
    np.testing.assert_array_equal(biased_one_by_one(eager, rows, bias), rows + bias)


def test_rotation_that_scales_runs_by_operations_and_latent_attention_cannot() -> None:
    options = ModelOptions(software="megatron")
    kernels = {
        name: model_source(
            model_named(name), options, devices=8, target="B200_180GB", loops=True
        ).settings.run.rotary_kernels
        for name in (BIASED, MODEL, "deepseek-ai/DeepSeek-V2")
    }
    assert kernels == {BIASED: "eager", MODEL: "fused", "deepseek-ai/DeepSeek-V2": "fused"}
    with pytest.raises(ConfigError, match="rotary_kernels = eager has no effect"):
        model_named("deepseek-ai/DeepSeek-V2").with_options({"rotary_kernels": "eager"}).check()


@pytest.mark.parametrize("turning", [8, 6])
def test_rotation_by_operations_computes_the_same(turning: int) -> None:
    rotation = turning, 1e4
    places = Places(turns={rotation: turns(jnp.arange(4.0)[None], *rotation)})
    x = jnp.asarray(np.linspace(-1, 1, 4 * 2 * 8, dtype=np.float32).reshape(1, 4, 2, 8))
    style = replace(model_named(MODEL).settings.style, eager_rotation=True)
    made = rotated(x, places, rotation, style)
    np.testing.assert_allclose(made, rotated(x, places, rotation), rtol=1e-6)


def test_products_of_the_same_rows_are_as_a_framework_has_them() -> None:
    """Queries, keys and values, gate and what it multiplies: five products, or two."""
    given = {**SMALL, "attention": "unfused", "remat": "none"}
    counts = {
        name: export_model(MODEL, {**given, **settings}).content.count(b"stablehlo.dot_general")
        for name, settings in (
            ("bf16", {}),
            ("joined", {"same_rows": "joined"}),
            ("f8", {"product_dtype": "f8"}),
            ("f8, apart", {"product_dtype": "f8", "same_rows": "apart"}),
        )
    }
    # Each is multiplied forward, and for the gradients of rows and of weights.
    assert counts["bf16"] == counts["joined"] + 3 * 3
    assert counts["f8"] == counts["joined"]
    assert counts["f8, apart"] == counts["bf16"]
    kinds = {name: software_named(name).settings.get("same_rows") for name in SOFTWARE}
    assert kinds.pop("megatron") == kinds.pop("llm-foundry-2023") == "joined"
    assert set(kinds.values()) == {"apart"}


def test_products_that_are_apart_share_what_is_gathered() -> None:
    """Rows of few bits are gathered and summed over tp as often as those in bf16."""
    tensor = {**SMALL, "mesh": "tp=2", "sequence_parallel": "true", "attention": "unfused"}
    found = {
        name: Counter(
            op.kind
            for op in communication_ops(
                load_source(
                    partitioned(export_model(MODEL, {**tensor, **more})).content, name=MODEL
                )
            )
        )
        for name, more in (
            ("bf16", {"same_rows": "apart"}),
            ("f8", {"same_rows": "apart", "product_dtype": "f8"}),
        )
    }
    assert found["f8"] == found["bf16"]


@pytest.mark.parametrize("name", SOFTWARE)
def test_frameworks_of_pytorch_read_rows_of_the_embedding(name: str) -> None:
    maxtext = model_named("llama3-100m")
    given = software_named(name).settings_for(is_hopper=True)
    assert maxtext.settings.as_run.style.one_hot
    assert not maxtext.with_options(given).as_run.style.one_hot
    assert maxtext.with_options({"embedding_lookup": "product"}).as_run.style.one_hot
