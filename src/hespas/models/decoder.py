"""A Llama-like decoder: its weights, and the loss of a batch, as MaxText computes them.

MaxText is what the published Llama-3-like programs were exported from; where its semantics show
in the compiled program, they are kept: the embedding is a product with a one-hot matrix, the
softmax is normalised after the product with the values, and masks are selects of floats.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedFunctionDecorator=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from hespas.models.adamw import STACKED
from hespas.models.context import Blocks, Sharing, context_attention, plain_blocks
from hespas.models.fused import Fused, fused_attention, fused_blocks
from hespas.models.kernels import FUSED, platform_of
from hespas.models.model import CHOICES, one_of
from hespas.models.sharding import Divided

_NORMALISER_WEIGHT = 0.0

Losses = tuple[jax.Array, jax.Array]
_Kept = tuple[jax.Array, ...]


@jax.custom_vjp
def cross_entropy(logits: jax.Array, targets: jax.Array) -> Losses:
    """Return each token's loss, and the part of it that weighs the normaliser.

    ``targets`` is one-hot, of the shape and type of ``logits``.
    """
    return _forward(logits, targets)[0]


def _forward(logits: jax.Array, targets: jax.Array) -> tuple[Losses, _Kept]:
    largest = logits.max(-1, keepdims=True)
    shifted = logits - largest
    exponentials = jnp.exp(shifted)
    sums = jnp.sum(exponentials, -1, keepdims=True)
    log_softmax = shifted - jnp.log(sums)
    losses = -jnp.sum(targets * log_softmax, -1)
    normaliser = jnp.squeeze(jnp.log(sums) + largest, -1)
    weighed = _NORMALISER_WEIGHT * jax.lax.square(normaliser)
    return (losses + weighed, weighed), (logits, targets, exponentials, sums, normaliser)


def _backward(kept: _Kept, gradients: Losses) -> tuple[jax.Array, None]:
    logits, targets, exponentials, sums, normaliser = kept
    scale = jnp.expand_dims(1 + 2 * _NORMALISER_WEIGHT * normaliser, -1)
    difference = scale * exponentials / sums - targets
    gradient = jnp.expand_dims(gradients[0], -1) * difference
    return jnp.asarray(gradient, logits.dtype), None


cross_entropy.defvjp(_forward, _backward)


Weights = Mapping[str, Any]
BATCH = ("inputs", "positions", "segments", "targets", "target_positions", "target_segments")
_SAVED = (
    "query_projection",
    "key_projection",
    "value_projection",
    "context",
    "output_projection",
    "mlp_gate",
    "mlp_up",
    "mlp_down",
)
_MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)
_RMS_EPSILON = 1e-5


BeforeLayer = Callable[[jax.Array, Weights], tuple[jax.Array, Weights]]
"""What the input of a layer and its weights go through before the layer."""


def untouched(x: jax.Array, weights: Weights) -> tuple[jax.Array, Weights]:
    """Return what goes into a layer as it is."""
    return x, weights


def offloaded(names: Sequence[str]) -> Any:
    """Return the policy that moves what has these names to the host's memory, and back."""
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=(),
        names_which_can_be_offloaded=names,
        offload_src="device",
        offload_dst="pinned_host",
    )


LAYER_WEIGHTS = {
    "attention_norm": ("norm",),
    "mlp_norm": ("norm",),
    "query": ("embedding", "heads", "head_size"),
    "key": ("embedding", "kv_heads", "head_size"),
    "value": ("embedding", "kv_heads", "head_size"),
    "output": ("heads", "head_size", "embedding"),
    "gate": ("embedding", "mlp"),
    "up": ("embedding", "mlp"),
    "down": ("mlp", "embedding"),
}
OUTER_WEIGHTS = {
    "embedding": ("vocabulary", "embedding"),
    "head": ("embedding", "vocabulary"),
    "norm": ("norm",),
}


class _Shared(NamedTuple):
    """What all layers take alike; a tuple, for JAX to look into."""

    sine: jax.Array
    cosine: jax.Array
    segments: jax.Array
    earlier: jax.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A decoder on a mesh; the sizes of its dimensions are in ``divided``.

    ``dtype`` is what is computed in. ``attention`` is unfused, one operation after another, or
    by fused kernels, causal alone: documents of a sequence see each other. ``remat`` says what the
    forward pass keeps for the backward pass. With ``scan`` layers are a loop over stacked weights.
    ``context_attention`` says how devices come by the keys and values of divided sequences: each
    gathers them all, or they go round in a ring, block after block.
    """

    divided: Divided
    layers: int
    rope_theta: float
    dtype: Any
    attention: str
    remat: str
    scan: bool
    context_attention: str = "gather"

    @property
    def platform(self) -> str:
        """What the step is lowered for: fused kernels are of one platform, all else is of all."""
        return platform_of(self.attention) or "cpu"

    def weights(self, dtype: Any) -> dict[str, Any]:
        """Return the abstract weights."""
        array = partial(self.divided.array, dtype=dtype)
        outer = {name: array(*dimensions) for name, dimensions in OUTER_WEIGHTS.items()}
        if self.scan:
            stacked = {name: array("layers", *names) for name, names in LAYER_WEIGHTS.items()}
            return outer | {STACKED: stacked}
        one = {name: array(*dimensions) for name, dimensions in LAYER_WEIGHTS.items()}
        return outer | {f"layer_{index:02d}": one for index in range(self.layers)}

    def part_weights(self, dtype: Any, *, is_first: bool, is_last: bool) -> dict[str, Any]:
        """Return the abstract weights of a part of the model: layers, and what stands around."""
        absent = set() if is_first else {"embedding"}
        absent |= set() if is_last else {"head", "norm"}
        return {name: leaf for name, leaf in self.weights(dtype).items() if name not in absent}

    def fixed_weights(self) -> dict[str, Any]:
        """Return nothing: no weights are made of others once a step."""
        return {}

    def activations(self) -> Any:
        """Return the abstract array that goes from layer to layer."""
        return self.divided.array("batch", "sequence", "embedding_row", dtype=self.dtype)

    def batch(self, *, rounds: int = 1) -> dict[str, Any]:
        """Return the abstract batch: tokens, and where each stands in which document.

        With several ``rounds`` the arrays have a first dimension of as many.
        """
        names = ("batch", "sequence") if rounds == 1 else ("rounds", "batch", "sequence")
        tokens = self.divided.array(*names, dtype=jnp.int32)
        return dict.fromkeys(BATCH, tokens)

    def loss(self, weights: Weights, batch: Weights) -> jax.Array:
        """Return the mean cross entropy over the tokens that belong to a document."""
        x = self.embedded(weights, batch)
        return self.loss_of(self.through_layers(x, weights, batch), weights, batch)

    def embedded(self, weights: Weights, batch: Weights) -> jax.Array:
        """Return what goes into the first layer."""
        inputs, vocabulary = batch["inputs"], self.divided.sizes["vocabulary"]
        with jax.named_scope("embedding"):
            one_hot = (inputs[..., None] == jax.lax.iota(jnp.int32, vocabulary)).astype(self.dtype)
            return self._rows(jnp.dot(one_hot, self._cast(weights["embedding"])))

    def loss_of(self, x: jax.Array, weights: Weights, batch: Weights) -> jax.Array:
        """Return the loss from what comes out of the last layer."""
        vocabulary = self.divided.sizes["vocabulary"]
        with jax.named_scope("norm"):
            x = self._rows(self._rms_norm(x, weights["norm"]))
        with jax.named_scope("logits"):
            logits = jnp.einsum("bse,ev->bsv", x, self._cast(weights["head"])).astype(jnp.float32)
            logits = self.divided.constrain(logits, "batch", "sequence", "vocabulary")
        with jax.named_scope("loss"):
            losses, _ = cross_entropy(logits, jax.nn.one_hot(batch["targets"], vocabulary))
            counted = batch["target_segments"] != 0
            return jnp.sum(losses * counted) / (jnp.sum(counted) + 1e-8)

    def through_layers(
        self, x: jax.Array, weights: Weights, batch: Weights, before: BeforeLayer = untouched
    ) -> jax.Array:
        """Return what comes out of the last layer.

        What goes into a layer outside of a loop, and its weights, go through ``before`` first.
        """
        layer = self._rematerialised()
        # Outside of the loop, where compilers make it once, as they do without a loop.
        with jax.named_scope("positions"):
            angles = self._angles(batch["positions"])
            shared = _Shared(
                sine=jnp.sin(angles),
                cosine=jnp.cos(angles),
                segments=batch["segments"],
                earlier=_earlier(self.divided.sizes["sequence"]),
            )
        if not self.scan:
            for index in range(self.layers):
                with jax.named_scope(f"layers_{index:02d}"):
                    x = layer(*before(x, weights[f"layer_{index:02d}"]), shared)
            return x

        def body(carried: jax.Array, layer_weights: Weights) -> tuple[jax.Array, None]:
            return layer(carried, layer_weights, shared), None

        with jax.named_scope("layers"):
            return jax.lax.scan(body, x, weights[STACKED])[0]

    def _rematerialised(self) -> Any:
        policies = jax.checkpoint_policies
        # Inside a loop nothing can be merged across the barrier anyway.
        checkpoint = partial(jax.checkpoint, self._layer, prevent_cse=not self.scan)
        match one_of("remat", self.remat, CHOICES["remat"]):
            case "minimal_with_context":
                return checkpoint(policy=policies.save_only_these_names(*_SAVED))
            case "offload":
                return checkpoint(policy=offloaded(_SAVED))
            case "full":
                return checkpoint(policy=policies.nothing_saveable)
            case _:
                return self._layer

    def _layer(self, x: jax.Array, weights: Weights, shared: _Shared) -> jax.Array:
        with jax.named_scope("norm"):
            hidden = self._rows(self._rms_norm(self._rows(x), weights["attention_norm"]))
        with jax.named_scope("attention"):
            context = self._attention(hidden, weights, shared)
            with jax.named_scope("output"):
                projected = jnp.einsum("bshd,hde->bse", context, self._cast(weights["output"]))
                x = x + checkpoint_name(self._rows(projected), "output_projection")
        with jax.named_scope("norm"):
            hidden = self._rows(self._rms_norm(x, weights["mlp_norm"]))
        with jax.named_scope("mlp"):
            return self._rows(self._mlp(hidden, weights) + x)

    def _attention(self, hidden: jax.Array, weights: Weights, shared: _Shared) -> jax.Array:
        with jax.named_scope("projections"):
            query, key, value = (
                jnp.einsum("bse,ehd->bshd", hidden, self._cast(weights[name]))
                for name in ("query", "key", "value")
            )
        with jax.named_scope("rotary"):
            query, key = self._rotated(query, shared), self._rotated(key, shared)
        query, key, value = self._by_head(query), self._by_kv_head(key), self._by_kv_head(value)
        query = checkpoint_name(query, "query_projection")
        key = checkpoint_name(key, "key_projection")
        value = checkpoint_name(value, "value_projection")
        match one_of("attention", self.attention, CHOICES["attention"]):
            case kernels if kernels in FUSED:
                # It names what it keeps itself: its statistics stand beside the context.
                return self._by_head(self._fused(query, key, value))
            case _ if self.context_attention == "ring" and self.divided.mesh.size("context") > 1:
                return self._by_head(self._in_blocks(query, key, value, plain_blocks()))
            case _:
                with jax.named_scope("softmax"):
                    context = self._by_head(self._mixed(query, key, value, shared))
                return checkpoint_name(context, "context")

    def _fused(self, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        """Return softmax(query key^T) value by fused kernels, causal, each device its heads."""
        blocks = fused_blocks(self.attention)
        if self.divided.mesh.size("context") > 1:
            return self._in_blocks(query, key, value, blocks)
        mapped = self._mapped(partial(fused_attention, Fused(blocks=blocks, saved="context")), None)
        with jax.named_scope("fused"):
            return mapped(query, key, value)

    def _in_blocks(
        self, query: jax.Array, key: jax.Array, value: jax.Array, blocks: Blocks
    ) -> jax.Array:
        """Return softmax(query key^T) value, causal, with sequences divided over ``context``."""
        sharing = Sharing(
            axis="context",
            devices=self.divided.mesh.size("context"),
            rotates=self.context_attention == "ring",
            blocks=blocks,
            saved="context",
        )
        mapped = self._mapped(partial(context_attention, sharing), "sequence")
        with jax.named_scope("context"):
            return mapped(query, key, value)

    def _mapped(self, attention: Any, sequence: str | None) -> Any:
        """Return attention that each device computes for its own heads.

        Axes of the mesh that divide none of its arrays stay out of it: gradients are not summed
        over them.
        """
        heads = self.divided.spec("batch", sequence, "heads", None)
        kv_heads = self.divided.spec("batch", sequence, "kv_heads", None)
        axes = self.divided.used("batch", sequence, "heads", "kv_heads")
        if not axes:
            return attention
        return jax.shard_map(
            attention,
            in_specs=(heads, kv_heads, kv_heads),
            out_specs=heads,
            axis_names=axes,
            check_vma=False,
        )

    def _mixed(
        self, query: jax.Array, key: jax.Array, value: jax.Array, shared: _Shared
    ) -> jax.Array:
        """Return softmax(query key^T) value, causal and within documents, in ``dtype``.

        Keys and values are of whole sequences: where those are divided, they are gathered.
        """
        query = self._by_head(query)
        key, value = (
            self.divided.constrain(each, "batch", None, "kv_heads", None) for each in (key, value)
        )
        batch, length, heads, size = query.shape
        kv_heads = key.shape[2]
        grouped = jnp.reshape(query, (batch, length, kv_heads, heads // kv_heads, size))
        scores = jnp.einsum("btkgd,bskd->bkgts", grouped, key)
        mask = jnp.where(_visible(shared), 0.0, _MASKED)[:, None, None]
        scores = jnp.where(mask >= _MASKED * 0.5, scores, _MASKED)
        scores = jnp.reshape(scores, (batch, heads, length, length))
        exponentials = jnp.exp(scores - jnp.max(scores, -1, keepdims=True))
        exponentials = jnp.reshape(exponentials, (batch, kv_heads, -1, length, length))
        inverse = 1.0 / jnp.sum(exponentials, -1, keepdims=True)
        context = jnp.einsum("bkgts,bskd->btkgd", exponentials, value)
        context = context * jnp.transpose(inverse, (0, 3, 1, 2, 4))
        return jnp.reshape(context, (batch, length, heads, size))

    def _mlp(self, hidden: jax.Array, weights: Weights) -> jax.Array:
        gate = jnp.einsum("bse,ef->bsf", hidden, self._cast(weights["gate"]))
        up = jnp.einsum("bse,ef->bsf", hidden, self._cast(weights["up"]))
        gate, up = checkpoint_name(gate, "mlp_gate"), checkpoint_name(up, "mlp_up")
        inner = self.divided.constrain(jax.nn.silu(gate) * up, "batch", "sequence", "mlp")
        down = jnp.einsum("bsf,fe->bse", inner, self._cast(weights["down"]))
        return checkpoint_name(self._rows(down), "mlp_down")

    def _rms_norm(self, x: jax.Array, scale: jax.Array) -> jax.Array:
        wide = jnp.asarray(x, jnp.float32)
        mean = jnp.mean(jax.lax.square(wide), -1, keepdims=True)
        return (wide * jax.lax.rsqrt(mean + _RMS_EPSILON)).astype(self.dtype) * self._cast(scale)

    def _angles(self, positions: jax.Array) -> jax.Array:
        size = self.divided.sizes["head_size"]
        periods = self.rope_theta ** (2 * jnp.arange(0, size // 2) / size)
        return positions[:, :, None, None] / periods

    def _rotated(self, x: jax.Array, shared: _Shared) -> jax.Array:
        """Apply rotary position embeddings, the halves of each head paired."""
        sine, cosine = shared.sine.astype(x.dtype), shared.cosine.astype(x.dtype)
        first, second = jnp.split(x, 2, -1)
        turned = (first * cosine - second * sine, second * cosine + first * sine)
        return jnp.concatenate(turned, -1).astype(self.dtype)

    def _cast(self, weight: jax.Array) -> jax.Array:
        return jnp.asarray(weight, self.dtype)

    def _rows(self, x: jax.Array) -> jax.Array:
        return self.divided.constrain(x, "batch", "sequence", None)

    def _by_head(self, x: jax.Array) -> jax.Array:
        return self.divided.constrain(x, "batch", "sequence", "heads", None)

    def _by_kv_head(self, x: jax.Array) -> jax.Array:
        return self.divided.constrain(x, "batch", "sequence", "kv_heads", None)


def _earlier(length: int) -> jax.Array:
    row = jax.lax.broadcasted_iota(jnp.int32, (length, length), 0)
    column = jax.lax.broadcasted_iota(jnp.int32, (length, length), 1)
    return column <= row


def _visible(shared: _Shared) -> jax.Array:
    """Return which token sees which: an earlier one of the same document."""
    same = shared.segments[:, :, None] == shared.segments[:, None, :]
    return jnp.logical_and(same, shared.earlier[None])
