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
