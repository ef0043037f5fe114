"""Programs of parts of a model: cut apart they compute what the whole computes."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hespas.errors import ConfigError
from hespas.frontend.load import load_source
from hespas.models.catalogue import model_named
from hespas.models.language import LanguageModel
from hespas.models.model import Part, PartProgram, parse_mesh
from hespas.models.steps.products import Rounded, product
from hespas.models.steps.sharding import Divided
from hespas.models.steps.transformer import Transformer
from hespas.program.devices import communication_ops, device_group_table
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model

MODEL = model_named("llama3-100m")
SMALL = {
    "layers": "3",
    "sequence": "16",
    "vocabulary": "64",
    "embedding": "32",
    "heads": "2",
    "kv_heads": "2",
    "head_size": "16",
    "mlp": "48",
    "dtype": "f32",
    "mesh": "fsdp=1",
    "batch": "2",
}
ONE = parse_mesh("pipe=1,fsdp=1")
FIRST = Part(mesh=ONE, layers=1, is_first=True)
MIDDLE = Part(mesh=ONE, layers=1)
LAST = Part(mesh=ONE, layers=1, is_last=True)


@pytest.fixture
def one_device() -> Iterator[None]:
    mesh = jax.make_mesh((1, 1), ("pipe", "fsdp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        yield


def filled(tree: Any, seed: int) -> Any:
    random = np.random.default_rng(seed)
    leaves, form = jax.tree.flatten(tree)
    made = [
        jnp.asarray(random.integers(1, 8, leaf.shape), leaf.dtype)
        if jnp.issubdtype(leaf.dtype, jnp.integer)
        else jnp.asarray(random.normal(0, 0.3, leaf.shape), leaf.dtype)
        for leaf in leaves
    ]
    return jax.tree.unflatten(form, made)


def layer(weights: Mapping[str, Any], index: int, *others: str) -> dict[str, Any]:
    own = {"layers_first": [weights["layers_first"][index]]}
    return own | {name: weights[name] for name in others}


def close(one: Any, other: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), one, other)


@pytest.mark.usefixtures("one_device")
def test_parts_compute_the_loss_and_the_gradients_of_the_whole() -> None:
    settings: LanguageModel = MODEL.with_options(SMALL)
    divided = Divided(mesh=settings.mesh, sizes=settings.sizes, axes=settings.axes)
    whole = Transformer(model=settings, divided=divided)
    weights, batch = filled(whole.weights(jnp.float32), 1), filled(whole.batch(), 2)
    loss, gradients = jax.jit(jax.value_and_grad(whole.loss))(weights, batch)

    def run(part: Part, own: Any, x: Any, gradient: Any) -> Any:
        return MODEL.part_step(SMALL, part).function(own, {}, batch, x, gradient)

    firsts = layer(weights, 0, "embedding")
    seconds, lasts = layer(weights, 1), layer(weights, 2, "head", "norm")
    zeros = jnp.zeros((2, 16, 32))
    x, _, _ = run(FIRST, firsts, None, zeros)
    y, _, _ = run(MIDDLE, seconds, x, zeros)
    found, of_y, of_lasts = run(LAST, lasts, y, None)
    _, of_x, of_seconds = run(MIDDLE, seconds, x, of_y)
    _, nothing, of_firsts = run(FIRST, firsts, None, of_x)
    assert nothing is None
    close(found, loss)
    close(of_lasts, layer(gradients, 2, "head", "norm"))
    close(of_seconds, layer(gradients, 1))
    close(of_firsts, layer(gradients, 0, "embedding"))


@pytest.mark.usefixtures("one_device")
def test_gradients_of_inputs_alone_are_the_same() -> None:
    part = MODEL.part_step(SMALL, MIDDLE)
    arguments = [filled(each, seed) for seed, each in enumerate(part.arguments)]
    inputs = MODEL.part_step(SMALL, replace(MIDDLE, program=PartProgram.INPUTS))
    made, of_x, nothing = inputs.function(*arguments)
    assert nothing is None
    close((made, of_x), part.function(*arguments)[:2])


def kinds(part: Part, **changed: str) -> set[tuple[str, int]]:
    """Return the collectives of a part's program, with the size of their groups."""
    settings = {**SMALL, "mesh": "data=2,fsdp=2,tp=2", "batch": "4", "accumulation": "2"}
    exported = export_model("llama3-100m", settings | changed, part=part)
    program = load_source(partitioned(exported).content, name="part")
    return {(op.kind, len(device_group_table(op, program)[0])) for op in communication_ops(program)}


def test_a_pass_sums_nothing_over_data_parallel_devices() -> None:
    part = replace(MIDDLE, mesh=parse_mesh("pipe=2,data=2,fsdp=2,tp=2"))
    assert {size for _, size in kinds(part)} == {2}
    alone = replace(MIDDLE, mesh=parse_mesh("pipe=2,data=2,fsdp=2,tp=1"))
    assert not kinds(alone, mesh="data=2,fsdp=2,tp=1")


def test_the_states_of_the_optimiser_are_divided() -> None:
    part = Part(mesh=parse_mesh("pipe=2,fsdp=4"), layers=1, program=PartProgram.UPDATE)
    step = MODEL.part_step({**SMALL, "mesh": "fsdp=4"}, part)
    state, gradients = step.arguments
    gate = state["first_moment"]["layers_first"][0]["gate"]
    assert gate.dtype == gradients["layers_first"][0]["gate"].dtype == jnp.float32
    assert gate.sharding.shard_shape(gate.shape) == (32 // 4, 48)


def test_weights_in_8_bits_come_beside_those_that_have_gradients() -> None:
    model = model_named("gpt3-125m")
    settings = {"mesh": "data=1", "product_dtype": "f8", "sequence": "64", "layers": "3"}
    step = model.part_step(settings, Part(mesh=parse_mesh("tp=1"), layers=2))
    weights, fixed, *_ = step.arguments
    (first, _), (small, _) = weights["layers_first"], fixed["layers_first"]
    assert {name.removesuffix("_in_8_bits") for name in small} == {
        "query_key_value",
        "output",
        "up",
        "down",
    }
    assert {str(leaf.dtype) for leaf in small.values()} == {"float8_e4m3fn"}
    with jax.sharding.use_abstract_mesh(step.mesh.abstract()):
        made = step.function.eval_shape(*step.arguments)[2]
    assert jax.tree.map(lambda leaf: leaf.shape, made) == jax.tree.map(
        lambda leaf: leaf.shape, weights
    )
    assert {leaf.dtype for leaf in first.values()} == {jnp.dtype("bfloat16")}


def test_weights_in_8_bits_stand_in_loops_of_loops_too() -> None:
    model = model_named("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    settings = {"mesh": "expert=8", "product_dtype": "f8", "sequence": "64", "scan": "true"}
    step = model.part_step(settings, Part(mesh=parse_mesh("expert=8"), layers=52))
    weights, fixed, *_ = step.arguments
    assert any(isinstance(layer, list) for layer in fixed["layers_last"])
    with jax.sharding.use_abstract_mesh(step.mesh.abstract()):
        made = step.function.eval_shape(*step.arguments)[2]
    assert jax.tree.structure(made) == jax.tree.structure(weights)


@pytest.mark.usefixtures("one_device")
def test_products_in_8_bits_are_close_to_others() -> None:
    x = filled(jax.ShapeDtypeStruct((2, 8, 64), jnp.float32), 1)
    weight = filled(jax.ShapeDtypeStruct((64, 32), jnp.float32), 2)

    def wide(x: Any, weight: Any) -> Any:
        return jnp.sum(product("bse,ef->bsf", x, weight) ** 2)

    def small(x: Any, weight: Any) -> Any:
        scale = 0.05
        made = product("bse,ef->bsf", x, Rounded(weight)) * scale**2
        return jnp.sum(made**2)

    for one, other in zip(
        jax.grad(wide, argnums=(0, 1))(x, weight),
        jax.grad(small, argnums=(0, 1))(x, weight),
        strict=True,
    ):
        assert jnp.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.99


def test_equal_parts_have_equal_programs() -> None:
    mesh = parse_mesh("pipe=4,fsdp=2")
    settings = {**SMALL, "mesh": "fsdp=2"}
    texts = {
        export_model("llama3-100m", settings, part=replace(MIDDLE, mesh=mesh)).content
        for _ in range(2)
    }
    assert len(texts) == 1


def test_a_model_that_can_not_be_cut_is_refused() -> None:
    with pytest.raises(ConfigError, match="resnet50 cannot be cut between layers; drop pipe"):
        model_named("resnet50").part_step({}, MIDDLE)


def test_a_part_says_what_it_has() -> None:
    assert str(FIRST) == "embedding, 1 layer"
    assert str(replace(LAST, layers=2)) == "2 layers, head and loss"


def test_layers_with_keys_of_others_are_not_cut() -> None:
    with pytest.raises(ConfigError, match="keys of other layers"):
        model_named("google/gemma-4-E2B").part_step({"mesh": "fsdp=1"}, FIRST)
