"""Attention with sinks and in chunks is that of its definition, and so are gradients."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from hespas.models.architecture import LayerKind, Sizes, Style
from hespas.models.language import LanguageModel
from hespas.models.model import MeshAxes
from hespas.models.runs import Prefill
from hespas.models.steps.attention import causal_attention
from hespas.models.steps.context import Sharing, attention_with_sinks, plain_blocks
from hespas.models.steps.layer import Layer
from hespas.models.steps.norms import Places
from hespas.models.steps.sharding import Divided

BATCH, TOKENS, HEADS, KV_HEADS, SIZE = 2, 8, 4, 2, 6


def arrays() -> tuple[jax.Array, jax.Array, jax.Array]:
    random = np.random.default_rng(3)

    def drawn(heads: int) -> jax.Array:
        return jnp.asarray(random.standard_normal((BATCH, TOKENS, heads, SIZE)), jnp.float32)

    return drawn(HEADS), drawn(KV_HEADS), drawn(KV_HEADS)


def defined(
    query: jax.Array, key: jax.Array, value: jax.Array, sinks: jax.Array, chunk: int = TOKENS
) -> jax.Array:
    """Return what each token makes of the earlier ones of its chunk, with a score of each head."""
    key, value = (jnp.repeat(each, HEADS // KV_HEADS, 2) for each in (key, value))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
    row, column = jnp.indices((TOKENS, TOKENS))
    seen = (column <= row) & (row // chunk == column // chunk)
    exponentials = jnp.where(seen, jnp.exp(scores), 0)
    total = jnp.sum(exponentials, -1, keepdims=True) + jnp.exp(sinks)[None, :, None, None]
    return jnp.einsum("bhqk,bkhd->bqhd", exponentials / total, value)


SINKS = jnp.asarray([0.5, -1.0, 2.0, 0.0])
NO_SINKS = jnp.full((HEADS,), -jnp.inf)


def model(*, sinks: bool) -> LanguageModel:
    return LanguageModel(
        sizes_of_layers=Sizes(
            embedding=24,
            heads=HEADS,
            kv_heads=KV_HEADS,
            layers=1,
            mlp=8,
            vocabulary=16,
            head_size=SIZE,
        ),
        style=Style(sinks=sinks),
        run=Prefill(
            mesh=MeshAxes(axes=(("tp", 1),)), sequence=TOKENS, attention="unfused", dtype="f32"
        ),
    )


def attended(kind: LayerKind, sinks: jax.Array | None) -> jax.Array:
    described = model(sinks=sinks is not None)
    divided = Divided(mesh=described.mesh, sizes=described.sizes, axes=described.axes)
    with jax.set_mesh(jax.make_mesh((1,), ("tp",), axis_types=(AxisType.Auto,))):
        layer = Layer(
            model=described,
            divided=divided,
            kind=kind,
            weights={} if sinks is None else {"sinks_bias": sinks},
            places=Places(turns={}),
        )
        return jax.jit(lambda given: causal_attention(layer, given))(arrays())


def test_sinks_take_a_part_of_the_sums() -> None:
    made = attended(LayerKind(), SINKS)
    np.testing.assert_allclose(made, defined(*arrays(), SINKS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [2, 4, 8, 16])
def test_a_chunk_sees_itself_alone(chunk: int) -> None:
    made = attended(LayerKind(chunk=chunk), None)
    np.testing.assert_allclose(made, defined(*arrays(), NO_SINKS, chunk), rtol=1e-5, atol=1e-6)


def test_kernels_with_rescaled_results_have_the_gradients_of_sinks() -> None:
    sharing = Sharing(blocks=plain_blocks(), saved="context")
    given = (*arrays(), SINKS)

    def loss(function: Callable[..., jax.Array], *values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(function(*values)))

    ours = jax.grad(
        lambda *values: loss(lambda *v: attention_with_sinks(sharing, *v), *values), (0, 1, 2, 3)
    )
    theirs = jax.grad(lambda *values: loss(defined, *values), (0, 1, 2, 3))
    np.testing.assert_allclose(
        attention_with_sinks(sharing, *given), defined(*given), rtol=1e-5, atol=1e-6
    )
    for mine, other in zip(ours(*given), theirs(*given), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
