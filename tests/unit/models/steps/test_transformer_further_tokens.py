"""Layers that predict further tokens: what their loss counts."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hespas.models.catalogue import model_named
from hespas.models.language import LanguageModel
from hespas.models.steps.sharding import Divided
from hespas.models.steps.transformer import Transformer

SMALL = {
    "embedding": "64",
    "heads": "4",
    "kv_heads": "2",
    "head_size": "16",
    "mlp": "128",
    "vocabulary": "256",
    "sequence": "64",
    "attention": "unfused",
}


def test_the_loss_of_further_tokens_counts_a_share() -> None:
    """With weights of 0 all logits are equal: each loss is the logarithm of the vocabulary."""
    options = {**SMALL, "layers": "1", "mtp_layers": "2", "mesh": "data=1", "dtype": "f32"}
    model = model_named("llama3-8b").with_options(options)
    assert isinstance(model, LanguageModel)
    divided = Divided(mesh=model.mesh, sizes=model.sizes, axes=model.axes)
    decoder = Transformer(model=model, divided=divided)

    def zeros(abstract: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), abstract)

    batch = zeros(decoder.batch())
    batch["target_segments"] += 1
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.sharding.set_mesh(mesh):
        loss = decoder.loss(zeros(decoder.weights(jnp.float32)), batch)
    assert float(loss) == pytest.approx(1.3 * math.log(256), rel=1e-5)
