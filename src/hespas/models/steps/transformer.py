"""A decoder of pieces: embedding, layers and head.

Its layers are those of `hespas.models.steps.layers`. A step is made of it by
`hespas.models.steps.training` or `hespas.models.steps.serving`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hespas.base.frozen import frozen
from hespas.models.architecture import LayerKind
from hespas.models.division import outside_part
from hespas.models.kernels import platform_of
from hespas.models.language import LanguageModel
from hespas.models.plan import Loop, layers_of
from hespas.models.steps.attention import earlier
from hespas.models.steps.cache import Cache
from hespas.models.steps.layer import Layer, Weights
from hespas.models.steps.layers import INPUT, through_layer
from hespas.models.steps.norms import (
    Places,
    normalised,
    turns,
)
from hespas.models.steps.objectives import cross_entropy, eager_cross_entropy
from hespas.models.steps.products import (
    SMALL_TYPES,
    STORED,
    adapted,
    is_multiplied,
    product,
    rounded,
)
from hespas.models.steps.remat import rematerialised
from hespas.models.steps.sharding import Divided, dtype_named
from hespas.models.weights import (
    is_adapter,
    layer_weights,
    mtp_weights,
    outer_weights,
)

_OUTER, _NOWHERE = LayerKind(), Places(turns={})
_TOKENS = ("inputs", "positions", "targets")
_DOCUMENTS = ("segments", "target_positions", "target_segments")
_STACKED, _FIRST, _LAST = "layers", "layers_first", "layers_last"
"""By name behind the head: a step's arguments are in this order, and modelled schedules make the
head's gradient in its place."""
_GROUPS = (_FIRST, _STACKED, _LAST)
_MTP = "mtp_layers"
_MTP_SHARE = 0.3
"""The weight of the loss of further tokens. Source: DeepSeek-V3, 2024, section 4.2."""

BeforeLayer = Callable[[jax.Array, Weights], tuple[jax.Array, Weights]]
"""What the input of a layer and its weights go through before the layer."""


def untouched(x: jax.Array, weights: Weights) -> tuple[jax.Array, Weights]:
    """Return what goes into a layer as it is."""
    return x, weights


@frozen
class Transformer:
    """A decoder on a mesh."""

    model: LanguageModel
    divided: Divided

    def layer(self, weights: Weights, kind: LayerKind = _OUTER, places: Places = _NOWHERE) -> Layer:
        """Return a layer with its weights, or what stands outside of them."""
        return Layer(
            model=self.model, divided=self.divided, kind=kind, weights=weights, places=places
        )

    def divided_of(self, kind: LayerKind) -> Divided:
        """Return the sizes of a kind of layer, divided."""
        return replace(self.divided, sizes={**self.divided.sizes, **self.model.sizes_of(kind)})

    @property
    def dtype(self) -> Any:
        """The type that is computed in."""
        return dtype_named(self.model.run.dtype)

    @property
    def platform(self) -> str:
        """The platform to lower the step for.

        Products of groups of rows are masked products on the CPU, as many as there are experts.
        """
        routing = self.model.routing
        is_ragged = routing is not None and routing.dropless
        return platform_of(self.model.run.attention) or ("cuda" if is_ragged else "cpu")

    def weights(self, dtype: Any) -> dict[str, Any]:
        """Return the abstract trained weights."""
        weights = self._weights(dtype)
        return _selected(weights, is_adapter) if self.is_tuned else weights

    def frozen_weights(self) -> dict[str, Any]:
        """Return the abstract frozen weights, beside adapters."""
        if not self.is_tuned:
            return {}
        return _selected(self._weights(self.dtype), lambda name: not is_adapter(name))

    @property
    def is_tuned(self) -> bool:
        """Whether adapters alone are trained."""
        return bool(self.model.lora_modules)

    def _weights(self, dtype: Any) -> dict[str, Any]:
        array = partial(self.divided.array, dtype=dtype)
        plan = self.model.plan

        def arrays_of(item: _Item, *turns: int, shapes: Any = layer_weights) -> Any:
            if isinstance(item, Loop):
                return [arrays_of(inner, *turns, item.times) for inner in item.body]
            dimensions = {f"turns {depth}": size for depth, size in enumerate(turns)}
            divided = self.divided_of(item)
            divided = replace(divided, sizes={**divided.sizes, **dimensions})
            return {
                name: divided.array(*dimensions, *shape, dtype=dtype)
                for name, shape in shapes(self.model, item).items()
            }

        weights: dict[str, Any] = {
            name: array(*dimensions) for name, dimensions in outer_weights(self.model).items()
        }
        if self.model.mtp_kinds:
            weights[_MTP] = [arrays_of(kind, shapes=mtp_weights) for kind in self.model.mtp_kinds]
        if not self.is_looped:
            return weights | {_FIRST: [arrays_of(kind) for kind in self.model.kinds]}
        return weights | {
            _FIRST: [arrays_of(item) for item in plan.first],
            _STACKED: [] if plan.loop is None else arrays_of(plan.loop),
            _LAST: [arrays_of(item) for item in plan.last],
        }

    @property
    def is_looped(self) -> bool:
        """Whether layers are in loops."""
        return self.model.training.scan and self.model.plan.loop is not None

    def of_part(
        self, weights: Mapping[str, Any], *, is_first: bool, is_last: bool
    ) -> dict[str, Any]:
        """Return a model part's weights: layers, and what surrounds them."""
        absent = outside_part(self.model, is_first=is_first, is_last=is_last)
        return {name: leaf for name, leaf in weights.items() if name not in absent}

    def fixed_weights(self) -> dict[str, Any]:
        """Return the abstract few-bit weights and frozen ones.

        Empty where products are in the type of the activations, and all weights are trained.
        """
        dtype = self.model.training.product_dtype
        if dtype == "same":
            return self.frozen_weights()
        weights = self._weights(SMALL_TYPES[dtype])

        def fixed(layer: Weights) -> Weights:
            return {f"{name}{STORED}": leaf for name, leaf in layer.items() if is_multiplied(name)}

        few = {group: _of_layers(fixed, weights[group]) for group in _GROUPS if group in weights}
        return joined(self.frozen_weights(), few) if self.is_tuned else few

    def activations(self) -> Any:
        """Return the abstract array that goes from layer to layer."""
        return self.divided.array("batch", "norm_sequence", "row", dtype=self.dtype)

    def batch(self, *, rounds: int = 1) -> dict[str, Any]:
        """Return the abstract batch: tokens, positions, and targets.

        Where sequences have documents, it says which each token is of, 0 for none.
        With several ``rounds`` the arrays have a first dimension of as many.
        """
        names = ("batch", "sequence") if rounds == 1 else ("rounds", "batch", "sequence")
        arrays = _TOKENS + _DOCUMENTS if self.model.style.documents else _TOKENS
        return dict.fromkeys(arrays, self.divided.array(*names, dtype=jnp.int32))

    def loss(self, weights: Weights, batch: Weights) -> jax.Array:
        """Return the mean cross entropy of documents' tokens."""
        x = self.through_layers(self.embedded(weights, batch), weights, batch)
        loss = self.loss_of(x, weights, batch)
        if not self.model.mtp_kinds:
            return loss
        return loss + _MTP_SHARE * self._further_loss(x, weights, batch)

    def _further_loss(self, x: jax.Array, weights: Weights, batch: Weights) -> jax.Array:
        """Return the mean loss of further tokens.

        Source: DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 2.2.
        """
        places, losses = self._places(batch), list[jax.Array]()
        shifted = ("targets", "target_segments")
        for number, (kind, own) in enumerate(
            zip(self.model.mtp_kinds, weights[_MTP], strict=True), start=1
        ):
            batch = {**batch, "inputs": batch["targets"]}
            with jax.named_scope(f"mtp_{number:02d}"):
                layer = self.layer(own)
                pair = (
                    layer.normed_whole(x, "mtp_row_norm"),
                    layer.normed_whole(self.embedded(weights, batch), "mtp_token_norm"),
                )
                x = product("bsxe,exf->bsf", jnp.stack(pair, 2), own["mtp_join"])
                x = self._rematerialised(kind)(layer.between(x), own, places)
                batch |= {name: jnp.roll(batch[name], -1, 1) for name in shifted if name in batch}
                weights_of_head = {
                    **weights,
                    **{name: own[name] for name in own if name in weights},
                }
                losses.append(self.loss_of(x, weights_of_head, batch, further=number))
        return sum(losses[1:], losses[0]) / len(losses)

    def embedded(self, weights: Weights, batch: Weights) -> jax.Array:
        """Return what goes into the first layer."""
        with jax.named_scope("embedding"):
            inputs, table = batch["inputs"], weights["embedding"].astype(self.dtype)
            if self.model.style.one_hot:
                numbers = jax.lax.iota(jnp.int32, self.divided.sizes["vocabulary"])
                x = jnp.dot((inputs[..., None] == numbers).astype(self.dtype), table)
            else:
                x = table[inputs]
            # Devices that share the tokens of a sequence between products look up whole ones.
            layer = self.layer(weights)
            x = layer.between(layer.rows(x))
            scale = self.model.style.embedding_scale
            if scale != 1:
                x = x * jnp.asarray(scale, x.dtype)
            if self.model.style.learned_positions:
                x = x + weights["positions"].astype(self.dtype)[batch["positions"]]
            if self.model.style.norms_embedding:
                x = layer.normed(x, "embedding_norm")
            return layer.between(x)

    def through_layers(
        self, x: jax.Array, weights: Weights, batch: Weights, before: BeforeLayer = untouched
    ) -> jax.Array:
        """Return what comes out of the last layer.

        What goes into a layer outside of a loop, and its weights, go through ``before`` first.
        """
        model, places = self.model, self._places(batch)
        weights = self._with_inputs(x, weights, batch)
        layers = {kind: self._rematerialised(kind) for kind in model.kinds}
        through = partial(_through, layers, before)
        if not self.is_looped:
            return through(model.kinds, x, weights[_FIRST], places)[0]
        plan = model.plan
        x, places = through(plan.first, x, weights[_FIRST], places)
        if plan.loop is not None:
            x = _looped(layers, plan.loop, x, weights[_STACKED], places)
        return through(plan.last, x, weights[_LAST], places)[0]

    def through_cached_layers(
        self, x: jax.Array, weights: Weights, batch: Weights, caches: Sequence[Cache]
    ) -> tuple[jax.Array, list[Cache]]:
        """Return the last layer's rows, and the changed caches."""
        places, changed = self._places(batch), list[Cache]()
        weights, caches_of_keys = self._with_inputs(x, weights, batch), dict[int, Cache]()
        layers = zip(self.model.kinds, weights[_FIRST], caches, strict=True)
        for index, (kind, own, cache) in enumerate(layers):
            with jax.named_scope(f"layers_{index:02d}"):
                is_shared = kind.keys == "shared"
                own_cache = caches_of_keys[kind.window] if is_shared else cache
                output = through_layer(self.layer(own, kind, places), x, own_cache)
                x, written = output.x, output.cache
                assert written is not None  # noqa: S101 - for the type checker: it was given
                changed.append(cache if is_shared else written)
                if output.keys is not None:
                    caches_of_keys[kind.window], places = (
                        written,
                        places.with_keys(kind, output.keys),
                    )
        return x, changed

    def _with_inputs(self, x: jax.Array, weights: Weights, batch: Weights) -> Weights:
        """Add each layer's own token inputs to its weights.

        Source: Google, Gemma 3n, "per-layer embeddings".
        """
        style, plan = self.model.style, self.model.plan
        if not style.layer_input:
            return weights
        with jax.named_scope("layer_inputs"):
            table = weights["input_table"].astype(self.dtype)
            looked_up = table[batch["inputs"]] * jnp.asarray(style.layer_input**0.5, x.dtype)
            inputs = product("bse,elp->bslp", x, weights["input_projection"])
            inputs = inputs * jnp.asarray(x.shape[-1] ** -0.5, x.dtype)
            inputs = normalised(style, inputs, weights, "input_norm") + looked_up
            inputs = jnp.moveaxis(inputs * jnp.asarray(0.5**0.5, x.dtype), 2, 0)
        if not self.is_looped or plan.loop is None:
            return {**weights, _FIRST: _with_rows(self.model.kinds, weights[_FIRST], inputs)}
        items = (*plan.first, plan.loop, *plan.last)
        own = (*weights[_FIRST], weights[_STACKED], *weights[_LAST])
        with_rows, count = _with_rows(items, own, inputs), len(plan.first)
        first, stacked, last = with_rows[:count], with_rows[count], with_rows[count + 1 :]
        return {**weights, _FIRST: first, _STACKED: stacked, _LAST: last}

    def _places(self, batch: Weights) -> Places:
        """Return tokens' positions, made once for all layers."""
        positions, segments = batch["positions"], batch.get("segments")
        length = positions.shape[1]
        rotations = sorted({self.model.rotation(kind) for kind in self.model.kinds} - {(0, 0)})
        with jax.named_scope("positions"):
            # The model's own periods are scaled.
            own, scaling = self.model.sizes_of_layers.rope_theta, self.model.style.rotary_scaling
            return Places(
                turns={
                    (size, theta): turns(positions, size, theta, scaling if theta == own else None)
                    for size, theta in rotations
                },
                documents=None if segments is None else (segments, earlier(length, length)),
            )

    def logits(self, x: jax.Array, weights: Weights) -> jax.Array:
        """Return the logits of each token, in f32."""
        style = self.model.style
        with jax.named_scope("norm"):
            x = self.layer(weights).normed_whole(x, "norm")
        with jax.named_scope("logits"):
            if style.tied:
                logits = product("bse,ve->bsv", x, weights["embedding"])
            else:
                logits = product("bse,ev->bsv", x, weights["head"])
            logits = logits.astype(jnp.float32)
            if style.head_biases:
                logits = logits + weights["head_bias"].astype(jnp.float32)
            if style.logit_scale != 1:
                logits = logits * style.logit_scale
            if style.logit_cap:
                logits = style.logit_cap * jnp.tanh(logits / style.logit_cap)
            return self.divided.constrain(logits, "batch", "sequence", "vocabulary")

    def loss_of(
        self, x: jax.Array, weights: Weights, batch: Weights, *, further: int = 0
    ) -> jax.Array:
        """Return the loss of the last layer's rows.

        The last tokens of a sequence have no ``further`` ones.
        """
        logits = self.logits(x, weights)
        with jax.named_scope("loss"):
            vocabulary = self.divided.sizes["vocabulary"]
            one_hot = jax.nn.one_hot(batch["targets"], vocabulary)
            is_eager = self.model.training.loss == "eager"
            losses = (eager_cross_entropy if is_eager else cross_entropy)(logits, one_hot)
            if not self.model.style.documents and not further:
                return jnp.mean(losses)
            tokens = losses.shape[1]
            counted = jnp.broadcast_to(jnp.arange(tokens) < tokens - further, losses.shape)
            if self.model.style.documents:
                own = batch["target_segments"] != 0
                counted = own & counted if further else own
            return jnp.sum(losses * counted) / (jnp.sum(counted) + 1e-8)

    def _rematerialised(self, kind: LayerKind) -> Any:
        run = self.model.training
        is_small = run.product_dtype != "same"

        def layer(x: jax.Array, weights: Weights, places: Places) -> Any:
            own = rounded(weights) if is_small else weights
            own = adapted(own, x.dtype) if self.is_tuned else own
            output = through_layer(self.layer(own, kind, places), x, None)
            return output.x if output.keys is None else (output.x, output.keys)

        return rematerialised(layer, run.remat, is_loop=run.scan)


def joined(weights: Weights, fixed: Weights) -> dict[str, Any]:
    """Join two sets of weights of the same layers."""
    layers = {
        name: _of_layers(lambda own, more: {**own, **more}, weights[name], fixed[name])
        for name in fixed
        if name in weights
    }
    return {**weights, **fixed, **layers}


def _of_layers(function: Callable[..., Weights], *layers: Any) -> Any:
    """Apply a function to the weights of each layer, in loops too."""
    if isinstance(layers[0], dict):
        return function(*layers)
    return [_of_layers(function, *own) for own in zip(*layers, strict=True)]


def _selected(weights: Weights, picks: Callable[[str], bool]) -> dict[str, Any]:

    def of_layer(layer: Weights) -> Weights:
        return {name: leaf for name, leaf in layer.items() if picks(name)}

    return {
        name: _of_layers(of_layer, leaf) if isinstance(leaf, list) else leaf
        for name, leaf in weights.items()
        if isinstance(leaf, list) or picks(name)
    }


_Item = LayerKind | Loop[LayerKind]
_Layers = Mapping[LayerKind, Any]


def _through(  # noqa: PLR0917 - the pieces of some layers
    layers: _Layers,
    before: BeforeLayer,
    items: Sequence[_Item],
    x: jax.Array,
    weights: Sequence[Any],
    places: Places,
) -> tuple[jax.Array, Places]:
    """Return the last layer's output, and places with kept keys.

    What goes into a layer outside of loops goes through ``before`` first.
    """
    for index, (item, own) in enumerate(zip(items, weights, strict=True)):
        if isinstance(item, Loop):
            x = _looped(layers, item, x, own, places)
            continue
        with jax.named_scope(f"layers_{index:02d}"):
            output = layers[item](*before(x, own), places)
            if item.keys == "kept":
                x, keys = output
                places = places.with_keys(item, keys)
            else:
                x = output
    return x, places


def _looped(
    layers: _Layers, loop: Loop[LayerKind], x: jax.Array, weights: Sequence[Any], places: Places
) -> jax.Array:

    def through(loop: Loop[LayerKind], x: jax.Array, weights: Sequence[Any]) -> jax.Array:
        def turn(carried: jax.Array, of_turn: Sequence[Any]) -> tuple[jax.Array, None]:
            for item, own in zip(loop.body, of_turn, strict=True):
                if isinstance(item, Loop):
                    carried = through(item, carried, own)
                else:
                    carried = layers[item](carried, own, places)
            return carried, None

        return jax.lax.scan(turn, x, weights)[0]

    with jax.named_scope("layers"):
        return through(loop, x, weights)


def _with_rows(
    items: Sequence[_Item], weights: Sequence[Any], rows: jax.Array, depth: int = 0
) -> list[Any]:
    """Return layers' weights, each with its own rows.

    Dimension ``depth`` of these counts layers, those before it the turns of loops.
    """
    with_rows: list[Any] = []
    begin = 0
    for item, own in zip(items, weights, strict=True):
        count = layers_of(item)
        own_rows = jax.lax.slice_in_dim(rows, begin, begin + count, axis=depth)
        begin += count
        if isinstance(item, Loop):
            shape = (*rows.shape[:depth], item.times, -1, *rows.shape[depth + 1 :])
            with_rows.append(_with_rows(item.body, own, own_rows.reshape(shape), depth + 1))
        else:
            with_rows.append({**own, INPUT: jnp.squeeze(own_rows, depth)})
    return with_rows
