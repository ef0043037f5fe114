"""The kernels compute attention: JAX interprets them on the CPU, beside plain operations."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hespas.models.steps.context import Sharing, context_attention, fused_blocks
from hespas.xla.splash import splash

LENGTH, HEADS, KEY_HEADS, SIZE = 256, 2, 1, 64


def plain(
    query: jax.Array, key: jax.Array, value: jax.Array, *, window: int, score_cap: float
) -> jax.Array:
    repeated = (jnp.repeat(array, HEADS // KEY_HEADS, axis=2) for array in (key, value))
    key, value = repeated
    scores = jnp.einsum("bthd,bshd->bhts", query, key)
    if score_cap:
        scores = score_cap * jnp.tanh(scores / score_cap)
    row, column = jnp.indices((LENGTH, LENGTH))
    seen = (column <= row) & (row - column < (window or LENGTH))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
    return jnp.einsum("bhts,bshd->bthd", weights, value)


@pytest.mark.parametrize(
    ("window", "score_cap"), [pytest.param(0, 0.0, marks=pytest.mark.rest), (150, 0.0), (0, 5.0)]
)
def test_results_and_gradients_are_those_of_plain_operations(
    window: int, score_cap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreted = partial(splash.make_splash_mha_single_device, interpret=True)
    monkeypatch.setattr(splash, "make_splash_mha_single_device", interpreted)
    keys = jax.random.split(jax.random.key(1), 4)
    heads = (HEADS, KEY_HEADS, KEY_HEADS, HEADS)
    *arrays, outer = (
        jax.random.normal(actual, (1, LENGTH, count, SIZE))
        for actual, count in zip(keys, heads, strict=True)
    )
    blocks = fused_blocks("splash", score_cap=score_cap, window=window)
    fused = partial(context_attention, Sharing(blocks=blocks, saved="context"))
    results, pull = jax.vjp(fused, *arrays)
    gradients = pull(outer)
    expected, plain_pull = jax.vjp(partial(plain, window=window, score_cap=score_cap), *arrays)
    np.testing.assert_allclose(results, expected, atol=2e-5)
    for actual, other in zip(gradients, plain_pull(outer), strict=True):
        np.testing.assert_allclose(actual, other, atol=2e-4)
