"""A layer of a decoder, as its pieces take it, and its dense part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from hespas.base.frozen import frozen
from hespas.models.architecture import Latent, LayerKind, Style
from hespas.models.language import LanguageModel
from hespas.models.steps.norms import Places, apart, apart_in_experts, normalised
from hespas.models.steps.products import product
from hespas.models.steps.sharding import Divided

Weights = Mapping[str, Any]


@frozen
class Layer:
    """A layer on a mesh: its kind, its weights, its tokens' places."""

    model: LanguageModel
    divided: Divided
    kind: LayerKind
    weights: Weights
    places: Places

    @property
    def style(self) -> Style:
        """The style of the model."""
        return self.model.style

    @property
    def latent(self) -> Latent:
        """The latent vectors of a layer that has them."""
        latent = self.model.latent
        assert latent is not None  # noqa: S101 - for the type checker
        return latent

    def product(self, equation: str, x: jax.Array, name: str) -> jax.Array:
        """Multiply rows by a weight, and add its bias, if any."""
        rows, bias = product(equation, x, self.weights[name]), self.weights.get(f"{name}_bias")
        return rows if bias is None else rows + bias.astype(rows.dtype)

    def normed(self, x: jax.Array, name: str) -> jax.Array:
        """Normalise rows with the weights of a name."""
        return normalised(self.style, x, self.weights, name)

    def normed_apart(self, x: jax.Array, name: str) -> jax.Array:
        """Return normalised rows, on the device that normalises them."""
        is_bare = name != "norm" and not self.style.norms_before
        hidden = x if is_bare else checkpoint_name(self.normed(x, name), "norm")
        return self.between(hidden) if self.model.training.sequence_parallel else hidden

    def normed_whole(self, x: jax.Array, name: str) -> jax.Array:
        """Return normalised rows that go into a product.

        Where they are divided between products, the whole norm is, and its result is gathered.
        """
        hidden = self.normed_apart(x, name)
        return self.rows(hidden) if name == "norm" else self.into_product(hidden)

    def into_product(self, x: jax.Array) -> jax.Array:
        """Gather normalised rows, unless an 8-bit product does.

        Several products of the same rows share what is gathered, before each rounds it. Source:
        torchtitan 0.1.0, models/llama3/infra/parallelize.py: ``PrepareModuleInput``.
        """
        run = self.model.training
        is_rounded = run.sequence_parallel and run.product_dtype != "same"
        return x if is_rounded and self.model.merges_products else self.rows(x)

    def rows(self, x: jax.Array) -> jax.Array:
        """Ask for the rows that go into a product."""
        return self.divided.constrain(x, "batch", "sequence", None)

    def between(self, x: jax.Array) -> jax.Array:
        """Ask for the rows that stand between products."""
        return self.divided.constrain(x, "batch", "norm_sequence", None)

    def by_heads(self, context: jax.Array) -> jax.Array:
        """Ask for the result of attention to be divided by heads."""
        return self.divided.constrain(context, "batch", "queries", "attended_heads", None)


def feed_forward(layer: Layer, x: jax.Array, prefix: str = "") -> jax.Array:
    """Return what the dense layer makes of (batch, sequence, embedding)."""
    style = layer.style
    if f"{prefix}gate_up" in layer.weights:
        both = layer.product("bse,egf->bsgf", x, f"{prefix}gate_up")
        both = checkpoint_name(both, "mlp_up")
        inner = gated(style, both[:, :, 0], both[:, :, 1])
    else:
        up = checkpoint_name(layer.product("bse,ef->bsf", x, f"{prefix}up"), "mlp_up")
        if style.gated:
            gate = layer.product("bse,ef->bsf", x, f"{prefix}gate")
            inner = gated(style, checkpoint_name(gate, "mlp_gate"), up)
        else:
            inner = activated(style, up)
    width = "shared_mlp" if prefix else "mlp"
    inner = layer.divided.constrain(inner, "batch", "sequence", width)
    return layer.product("bsf,fe->bse", checkpoint_name(inner, "mlp_inner"), f"{prefix}down")


_CLIP, _SLOPE = 7.0, 1.702
"""Where gpt-oss cuts activations off, and the slope of its sigmoid. Source: OpenAI, gpt-oss."""


def gated(style: Style, gate: jax.Array, up: jax.Array) -> jax.Array:
    """Return the gate's activation times ``up``."""
    if style.activation != "clipped_silu":
        return apart(style, activated(style, gate) * up)
    gate, up = jnp.minimum(gate, _CLIP), jnp.clip(up, -_CLIP, _CLIP)
    if style.eager_experts:
        # Cut off one by one and put together again for the kernel of the activation. Source:
        # megatron-core 0.16.1, ``weighted_bias_quick_geglu_impl`` of fusions/fused_bias_geglu.py.
        both = [apart_in_experts(style, part) for part in (gate, up)]
        gate, up = jnp.split(apart_in_experts(style, jnp.concatenate(both, -1)), 2, -1)
    return gate * jax.nn.sigmoid(gate * _SLOPE) * (up + 1)


FUNCTIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "clipped_silu": jax.nn.silu,
    "exact_gelu": partial(jax.nn.gelu, approximate=False),
    "exp": jnp.exp,
    "gelu": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "relu_squared": lambda x: jnp.square(jax.nn.relu(x)),
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}
"""What is applied to each number, by the names of `Style.activation` and of networks."""


def activated(style: Style, x: jax.Array) -> jax.Array:
    """Apply the style's activation."""
    return apart(style, FUNCTIONS[style.activation](x))
