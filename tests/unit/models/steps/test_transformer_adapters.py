"""Steps that train adapters (LoRA): what is frozen has no gradients and no states."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hespas.errors import ConfigError
from hespas.frontend.load import load_source
from hespas.models.catalogue import model_named
from hespas.models.flops import model_flops
from hespas.models.language import LanguageModel
from hespas.models.model import MeshAxes, Part, PartProgram
from hespas.models.parameters import parameters, trained_parameters
from hespas.models.steps.products import ADAPTER_SCALE, Adapted, Rounded, adapted, product
from hespas.program.program import Program, all_ops
from hespas.program.types import TensorType
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model
from hespas.sources.options import ModelOptions
from hespas.sources.source import ModelSource, find_source
from hespas.work.expand import expand, total
from small_models import EXPERTS, LATENT, SMALL

ADAPTED = {
    **SMALL,
    "sequence": "64",
    "attention": "unfused",
    "mesh": "data=1",
    "remat": "none",
    "lora_rank": "8",
}
QKV = 4 * 16 + 2 * 2 * 16


def settings(name: str, **options: str) -> LanguageModel:
    model = model_named(name).with_options({**ADAPTED, **options})
    assert isinstance(model, LanguageModel)
    return model


def products(program: Program) -> int:
    ops = [op for op in all_ops(program) if op.kind in {"dot_general", "ragged_dot"}]
    return sum(count for _, count in total(expand(ops)).flops)


def size(tree: Any) -> int:
    return sum(prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("modules", "of_a_layer"),
    [
        ("linear_qkv", 64 + QKV),
        ("linear_proj", 64 + 64),
        ("linear_fc1", 64 + 2 * 128),
        ("linear_fc2", 128 + 64),
        ("all", 64 + QKV + 64 + 64 + 64 + 2 * 128 + 128 + 64),
    ],
)
def test_each_module_has_two_matrices_of_the_rank(modules: str, of_a_layer: int) -> None:
    """As peft has it, an adapter has the rank times (inputs + outputs)."""
    model = settings("llama3-8b", lora_modules=modules, same_rows="joined")
    assert trained_parameters(model) == 4 * 8 * of_a_layer
    options = {**ADAPTED, "lora_modules": modules, "same_rows": "joined"}
    state, _, frozen = model_named("llama3-8b").step(options).arguments
    assert size(state["weights"]) == size(state["first_moment"]) == trained_parameters(model)
    assert size(frozen) == parameters(model) - trained_parameters(model)


def test_products_apart_have_adapters_of_their_own() -> None:
    """As peft has it for q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj."""
    ends = [(64, 64), (64, 32), (64, 32), (64, 64), (64, 128), (64, 128), (128, 64)]
    model = settings("llama3-8b", same_rows="apart")
    assert trained_parameters(model) == 4 * 8 * sum(map(sum, ends))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama3-8b", {}),
        ("llama3-8b", {"same_rows": "joined", "lora_modules": "linear_qkv"}),
        ("llama3-8b", {"product_dtype": "f8"}),
        ("gemma3-12b", {"scan": "true", "layers": "1"}),
        ("mixtral-8x7b", EXPERTS),
        ("mixtral-8x7b", {**EXPERTS, "expert_product_dtype": "f8"}),
        ("mixtral-8x7b", {**EXPERTS, "dropless": "true"}),
        ("deepseek-v3", {**EXPERTS, **LATENT}),
    ],
)
def test_frozen_weights_have_no_gradients(name: str, options: dict[str, str]) -> None:
    """Products are those of the closed form, nearly; with those of gradients a third more."""
    needed = model_flops(settings(name, **options))
    assert needed is not None
    text = partitioned(export_model(name, {**ADAPTED, **options})).content
    assert products(load_source(text, name=name)) == pytest.approx(needed, rel=0.05)


def test_rows_of_the_first_layer_have_no_gradient() -> None:
    """The closed form counts one; it counts no product that looks up tokens."""
    needed = model_flops(settings("llama3-8b", same_rows="joined"))
    assert needed is not None
    options = {**ADAPTED, "same_rows": "joined"}
    text = partitioned(export_model("llama3-8b", options)).content
    looked_up, of_rows = 2 * 64 * 64 * 256, 2 * 64 * 64 * (QKV + 8)
    assert products(load_source(text, name="lora")) == needed + looked_up - of_rows


def test_adapters_add_two_products_and_change_no_gradient_of_rows() -> None:
    random = np.random.default_rng(0)
    x, weight, low, high = (
        jnp.asarray(random.normal(size=shape), jnp.float32)
        for shape in ((2, 3, 8), (8, 4, 2), (8, 5), (5, 4, 2))
    )
    made = product("bse,ehd->bshd", x, Adapted(weight, low, high))
    merged = weight + ADAPTER_SCALE * jnp.einsum("er,rhd->ehd", low, high)
    np.testing.assert_allclose(made, jnp.einsum("bse,ehd->bshd", x, merged), rtol=1e-4, atol=1e-4)
    given, stacked = x.reshape(2, 3, 8), weight.reshape(8, 8)[None].repeat(2, 0)
    of_experts = Adapted(stacked, low, high.reshape(5, 8))
    made = product("ecf,efd->ecd", given, of_experts)
    np.testing.assert_allclose(made, given @ merged.reshape(8, 8), rtol=1e-4, atol=1e-4)


def test_frozen_products_in_8_bits_are_those_that_are_trained() -> None:
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(2, 3, 8)), jnp.float32)
    weight = jnp.asarray(random.normal(size=(8, 4)), jnp.float32)
    trained, frozen = (
        jax.vjp(lambda x, own=own: product("bse,ef->bsf", x, own), x)
        for own in (Rounded(weight), adapted({"up": Rounded(weight)}, x.dtype)["up"])
    )
    np.testing.assert_array_equal(trained[0], frozen[0])
    np.testing.assert_array_equal(trained[1](trained[0])[0], frozen[1](frozen[0])[0])


@pytest.mark.parametrize("product_dtype", ["same", "f8"])
def test_parts_of_a_pipeline_train_adapters_alone(product_dtype: str) -> None:
    mesh = MeshAxes(axes=(("fsdp", 1),))
    options = {
        **ADAPTED,
        "mesh": "fsdp=1",
        "remat": "elementwise",
        "same_rows": "joined",
        "product_dtype": product_dtype,
    }
    model, own = settings("llama3-8b", **options), trained_parameters(settings("llama3-8b"))
    of_a_layer = trained_parameters(model) // 4
    part = Part(mesh=mesh, layers=2, is_last=True)
    both = model_named("llama3-8b").part_step(options, part)
    assert size(both.arguments[0]) == 2 * of_a_layer < own
    update = Part(mesh=mesh, layers=2, is_last=True, program=PartProgram.UPDATE)
    changed = model_named("llama3-8b").part_step(options, update)
    assert size(changed.arguments[1]) == 2 * of_a_layer


@pytest.mark.parametrize("mesh", ["fsdp=2,tp=2", "data=4", "fsdp=2,context=2"])
def test_gradients_of_adapters_alone_are_summed(mesh: str) -> None:
    """A step has no collective of a whole weight's gradient."""
    options = {**ADAPTED, "mesh": mesh, "layers": "1"}
    text = partitioned(export_model("llama3-8b", options)).content
    program = load_source(text, name="lora")
    summed = [
        prod(result.type.shape)
        for op in all_ops(program)
        if op.kind in {"all_reduce", "reduce_scatter"}
        for result in op.results
        if isinstance(result.type, TensorType)
    ]
    assert max(summed) <= max(8 * 256, 64 * 64), summed


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("llama3-8b", {"lora_rank": "0"}, "lora_rank is '0'"),
        ("llama3-8b", {"lora_rank": "-4"}, "lora_rank is '-4'"),
        ("llama3-8b", {"lora_modules": "q_proj"}, "lora_modules is 'q_proj'"),
        ("llama3-8b", {"lora_modules": "linear_qkv+router"}, "lora_modules is 'router'"),
        ("llama3-8b-decode", {"lora_rank": "8"}, "has no option 'lora_rank'"),
        ("deepseek-v3", {"lora_modules": "linear_qkv"}, "no layer has linear_qkv"),
        ("llama3-8b", {"mesh": "data=2", "zero": "1"}, "zero = 1 divides states"),
        ("deepseek-v3", {"mtp_layers": "1"}, "further tokens have no adapters"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, options: dict[str, str], message: str) -> None:
    given = options if "decode" in name else {"lora_rank": "8", **options}
    with pytest.raises(ConfigError, match=message):
        model_named(name).with_options(given).check()


def test_modules_without_a_rank_are_refused() -> None:
    with pytest.raises(ConfigError, match="lora_modules = linear_qkv has no effect"):
        model_named("llama3-8b").with_options({"lora_modules": "linear_qkv"}).check()


def test_an_answer_says_what_is_trained() -> None:
    """Of 8.03 B weights, those of rank 16 beside seven products a layer: 41.9 M, as in peft."""
    options = ModelOptions(global_batch=8, settings={"lora_rank": "16"})
    source = find_source("llama3-8b", options, devices=8)
    assert isinstance(source, ModelSource)
    notes = " ".join(source.notes)
    assert "41,943,040 of 8,072,204,288 weights are trained" in notes
    assert "of adapters, AdamW's weights and both moments" in notes
