"""Dense layers with biases."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hespas.models.architecture import LayerKind, Style
from hespas.models.catalogue import model_named
from hespas.models.model import MeshAxes
from hespas.models.steps.layer import Layer, feed_forward
from hespas.models.steps.norms import Places
from hespas.models.steps.sharding import Divided
from hespas.models.weights import feed_forward_weights

SIZES = {"embedding": 8, "norm": 8, "mlp": 16, "two": 2}
STYLE = Style(mlp_biases=True)
MODEL = model_named("llama3-8b").settings


class _Whole(Divided):
    """Arrays of one device, which nothing divides."""

    def constrain(self, value: jax.Array, *dimensions: str | None) -> jax.Array:
        del dimensions
        return value


def test_gated_layers_with_biases_are_the_same_merged_and_apart() -> None:
    shapes = feed_forward_weights(STYLE, "mlp", merged=False)
    generator = np.random.default_rng(0)
    apart: dict[str, Any] = {
        name: jnp.asarray(generator.normal(size=[SIZES[one] for one in names]))
        for name, names in shapes.items()
    }
    merged = {name: apart[name] for name in ("down", "down_bias")}
    merged["gate_up"] = jnp.stack([apart["gate"], apart["up"]], axis=1)
    merged["gate_up_bias"] = jnp.stack([apart["gate_bias"], apart["up_bias"]])
    assert {name: value.shape for name, value in merged.items()} == {
        name: tuple(SIZES[one] for one in names)
        for name, names in feed_forward_weights(STYLE, "mlp", merged=True).items()
    }
    x = jnp.asarray(generator.normal(size=(1, 4, 8)))
    divided = _Whole(mesh=MeshAxes(axes=()), sizes=SIZES, axes={})
    expected = (
        jax.nn.silu(x @ apart["gate"] + apart["gate_bias"])
        * (x @ apart["up"] + apart["up_bias"])
        @ apart["down"]
    ) + apart["down_bias"]
    for weights in (apart, merged):
        layer = Layer(
            model=replace(MODEL, style=STYLE),
            divided=divided,
            kind=LayerKind(),
            weights=weights,
            places=Places(turns={}),
        )
        made = feed_forward(layer, x)
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)
