"""Attention over divided sequences against attention over whole ones, values and gradients."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hespas.errors import ConfigError
from hespas.frontend.load import load_source
from hespas.models.catalogue import model_named
from hespas.models.steps.context import Sharing, context_attention, plain_blocks
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Program, all_ops
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model
from hespas.work.expand import expand, total

SMALL = {
    "embedding": "64",
    "heads": "4",
    "kv_heads": "2",
    "head_size": "32",
    "layers": "2",
    "mlp": "128",
    "sequence": "64",
    "vocabulary": "256",
}
LENGTH, HEADS, KV_HEADS, SIZE = 24, 4, 2, 8


def whole(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    grouped = query.reshape(1, LENGTH, KV_HEADS, HEADS // KV_HEADS, SIZE)
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, key)
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
    return jnp.einsum("bkgts,bskd->btkgd", weights, value).reshape(query.shape)


def order(devices: int) -> np.ndarray:
    blocks = np.arange(LENGTH).reshape(2 * devices, -1)
    mine = [np.concatenate((blocks[at], blocks[-1 - at])) for at in range(devices)]
    return np.stack(mine)


def test_a_process_that_partitions_computes_too() -> None:
    partitioned(export_model("gemm-columns", {}))
    assert jax.jit(jnp.sum)(jnp.arange(4)) == 6


@pytest.mark.parametrize("devices", [2, pytest.param(3, marks=pytest.mark.rest)])
@pytest.mark.parametrize("rotates", [True, False])
def test_values_and_gradients_are_those_of_whole_sequences(devices: int, rotates: bool) -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(1, LENGTH, heads, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    *arrays, weights = [jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True)]
    sharing = Sharing(
        axis="context", devices=devices, rotates=rotates, blocks=plain_blocks(), saved="context"
    )
    places = order(devices)

    def weighed(function: Any, weights: jax.Array, *arrays: jax.Array) -> jax.Array:
        return jnp.sum(function(*arrays) * weights)

    def with_gradients(function: Any) -> Any:
        return jax.value_and_grad(partial(weighed, function), argnums=(1, 2, 3))

    parts = [jnp.moveaxis(each[:, places], 1, 0) for each in (weights, *arrays)]
    each_device = with_gradients(partial(context_attention, sharing))
    made, gradients = jax.vmap(each_device, axis_name="context")(*parts)
    expected, expected_gradients = with_gradients(whole)(weights, *arrays)
    np.testing.assert_allclose(jnp.sum(made), expected, rtol=1e-4)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(
            jnp.moveaxis(ours, 0, 1), theirs[:, places], rtol=1e-3, atol=2e-5
        )


def exported(**options: str) -> Program:
    made = partitioned(export_model("llama3-8b", SMALL | options))
    return load_source(made.content, name="context")


def counts(program: Program) -> Counter[str]:
    return Counter(op.kind for op in all_ops(program))


def products(program: Program, within: str) -> int:
    ops = [op for op in all_ops(program) if op.kind == "dot_general" and within in op.scope]
    return sum(count for _, count in total(expand(ops)).flops)


def test_a_ring_sends_keys_and_values_and_their_gradients() -> None:
    ring = counts(exported(mesh="context=4", context_attention="ring"))
    # For each layer keys and values of three other devices, forward and backward, and as many
    # gradients, which come home.
    assert ring["collective_permute"] == 2 * (2 * 3 + 2 * 3 + 2 * 3)
    gathered = counts(exported(mesh="context=4"))
    assert gathered["collective_permute"] == 0
    assert gathered["all_gather"] > ring["all_gather"]


def test_a_ring_computes_no_masked_blocks() -> None:
    """Of 64 pairs of blocks a device has its own 4, and two with each of three others."""
    ring = products(exported(mesh="context=4", context_attention="ring"), "attention/context")
    pairs, size = 64 // 8 * 64 // 8, 32
    one = 2 * pairs * size * 4
    assert ring == 2 * (4 + 3 * 2) * one * (2 + 5)
    gathered = products(exported(mesh="context=4", remat="none"), "attention/softmax")
    assert gathered == 2 * 16 * one * (2 + 4)


@pytest.mark.parametrize(
    ("attention", "forward", "backward"),
    [
        ("cudnn", "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"),
        ("flash", "__flash_attention$forward", "__flash_attention$backward"),
    ],
)
@pytest.mark.parametrize("context", ["gather", "ring"])
def test_fused_attention_has_a_call_for_each_device(
    context: str, attention: str, forward: str, backward: str
) -> None:
    program = exported(mesh="context=2,tp=2", context_attention=context, attention=attention)
    calls = Counter(
        op.attrs.target for op in all_ops(program) if isinstance(op.attrs, CustomCallAttrs)
    )
    fused = {target: count for target, count in calls.items() if attention in target}
    assert fused == {forward: 4, backward: 4}


def test_blocks_need_sequences_of_an_even_number_of_them() -> None:
    with pytest.raises(ConfigError, match="sequence = 36 cannot be divided by twice context=4"):
        model_named("llama3-8b").step(
            SMALL | {"sequence": "36", "mesh": "context=4", "context_attention": "ring"}
        )
    with pytest.raises(ConfigError, match="sequence = 64 cannot be divided by context=3"):
        model_named("llama3-8b").step(SMALL | {"mesh": "context=3"})
