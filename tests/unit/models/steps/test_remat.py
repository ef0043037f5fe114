"""What layers keep for their backward pass."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from hespas.errors import ConfigError
from hespas.models.catalogue import model_named
from hespas.models.steps.remat import rematerialised
from hespas.sources.function import export_model

ROWS, WIDTH, INNER = 3, 5, 7


def _layer(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Return what a norm, a product, an activation of two kernels and a product make."""
    hidden = checkpoint_name(jnp.sin(x), "norm")
    first = jax.lax.optimization_barrier(jnp.tanh(hidden @ up))
    return checkpoint_name(jnp.exp(first), "experts_inner") @ down


def _kept(remat: str) -> dict[int, int]:
    """Return how many arrays of each width are kept of the rows."""
    shapes = ((ROWS, WIDTH), (WIDTH, INNER), (INNER, WIDTH))
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    layer = rematerialised(_layer, remat, is_loop=False)
    _, gradients = jax.eval_shape(lambda *given: jax.vjp(layer, *given), *arrays)
    rows = [each for each in jax.tree.leaves(gradients) if each.shape[0] == ROWS]
    return {width: sum(each.shape[1] == width for each in rows) for width in (WIDTH, INNER)}


@pytest.mark.parametrize(
    ("remat", "norm", "activation"),
    [
        ("layernorm", 1, 0),
        ("moe_act", 0, 2),
        ("layernorm+moe_act", 1, 2),
    ],
)
def test_modules_of_megatron_discard_what_they_make(remat: str, norm: int, activation: int) -> None:
    whole, found = _kept("elementwise"), _kept(remat)
    assert whole[WIDTH] - found[WIDTH] == norm
    assert whole[INNER] - found[INNER] == activation


def test_activations_of_experts_need_experts() -> None:
    with pytest.raises(ConfigError, match="moe_act of a model without experts"):
        export_model("llama3-8b", {"remat": "moe_act", "layers": "1", "sequence": "64"})


SMALL = {"mesh": "fsdp=1", "layers": "1", "sequence": "64", "vocabulary": "256", "scan": "false"}
LATENT = {
    **SMALL,
    "embedding": "64",
    "heads": "4",
    "kv_heads": "4",
    "layers": "2",
    "dense_layers": "1",
    "query_rank": "24",
    "kv_rank": "40",
    "experts": "4",
    "chosen": "2",
    "expert_mlp": "32",
}


def _products(model: str, settings: dict[str, str], remat: str) -> int:
    text = export_model(model, {**settings, "attention": "unfused", "remat": remat}).content
    return text.count(b"stablehlo.dot_general")


def test_heads_of_latent_vectors_are_made_again_by_three_products() -> None:
    """Those of queries, keys and values, in each of two layers."""
    counts = [_products("deepseek-v3", LATENT, remat) for remat in ("elementwise", "mla_up_proj")]
    assert counts[1] == counts[0] + 6


@pytest.mark.parametrize(
    ("model", "settings", "remat", "products"),
    [
        ("llama3-8b", SMALL | {"embedding": "64", "mlp": "96"}, "mlp", 3),
        ("mixtral-8x7b", SMALL | {"embedding": "64", "expert_mlp": "96", "experts": "4"}, "moe", 4),
    ],
)
def test_layers_run_again_to_their_ends(
    model: str, settings: dict[str, str], remat: str, products: int
) -> None:
    """Gate, up and down; what chooses experts, too."""
    own = settings | {"heads": "4", "kv_heads": "4", "head_size": "16"}
    least = _products(model, own, "elementwise")
    assert _products(model, own, remat) >= least + products


def test_modules_are_in_one_order_and_those_that_a_model_lacks_refused() -> None:
    both = model_named("deepseek-v3").with_options({"remat": "moe_act+layernorm+moe_act"})
    assert both.run.remat == "layernorm+moe_act"
    for model, remat, lacking in (
        ("llama3-8b", "layernorm+moe", "experts"),
        ("llama3-8b", "mla_up_proj", "latent attention"),
        ("mixtral-8x7b", "mlp", "dense layers"),
    ):
        with pytest.raises(ConfigError, match=f"of a model without {lacking}"):
            model_named(model).with_options({"remat": remat}).check()
    with pytest.raises(ConfigError, match="remat is 'gelu'; known: core_attn, layernorm"):
        model_named("llama3-8b").with_options({"remat": "moe+gelu"})
