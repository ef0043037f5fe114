"""A decoder put together from pieces: embedding, layers and head, as `LanguageModel` says.

Its layers are those of `hespas.models.attention`, `latent`, `feed_forward` and `routing`, with the
norms of `norms`. A step is made of it by `hespas.models.training` or `hespas.models.serving`.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from hespas.models.attention import cached_attention, causal_attention, earlier, fused_over_cache
from hespas.models.cache import Cache
from hespas.models.feed_forward import activated, feed_forward
from hespas.models.kernels import platform_of
from hespas.models.language import (
    Decode,
    LanguageModel,
    LayerKind,
    RotaryScaling,
    Routing,
    Style,
    Training,
)
from hespas.models.latent import latent_attention
from hespas.models.norms import (
    Places,
    apart,
    normalised,
    plainly_normalised,
    rotated,
    scaled,
    turns,
)
from hespas.models.plan import Loop, layers_of
from hespas.models.products import SMALL, STORED, is_multiplied, product, rounded
from hespas.models.recurrent import through_delta, through_state_space
from hespas.models.remat import rematerialised
from hespas.models.routing import through_experts
from hespas.models.sharding import Divided, dtype_named
from hespas.models.weights import (
    BESIDE,
    MERGED,
    SHARED,
    layer_weights,
    mtp_weights,
    outer_weights,
)

Weights = Mapping[str, Any]
_TOKENS = ("inputs", "positions", "targets")
_DOCUMENTS = ("segments", "target_positions", "target_segments")
_NORMALISER_WEIGHT = 0.0
_STACKED, _FIRST, _LAST = "layers", "layers_first", "layers_last"
"""By name behind the head: a step's arguments are in this order, and modelled schedules make the
head's gradient in its place."""
_PROJECTED = ("query", "key", "value")
_MTP = "mtp_layers"
_MTP_SHARE = 0.3
"""The weight of the loss of further tokens. Source: DeepSeek-V3, 2024, section 4.2."""
_INPUT = "layer_input_scale"
"""Stands beside a layer's weights: its own input, which multiplies a gate."""


class _Made(NamedTuple):
    """What a layer makes of rows, its cache, and the keys and values that later layers share."""

    x: jax.Array
    cache: Cache | None
    keys: tuple[jax.Array, jax.Array] | None = None


BeforeLayer = Callable[[jax.Array, Weights], tuple[jax.Array, Weights]]
"""What the input of a layer and its weights go through before the layer."""


def untouched(x: jax.Array, weights: Weights) -> tuple[jax.Array, Weights]:
    """Return what goes into a layer as it is."""
    return x, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A decoder on a mesh; the sizes of its dimensions are in ``divided``."""

    model: LanguageModel
    divided: Divided

    @property
    def dtype(self) -> Any:
        """The type that is computed in."""
        return dtype_named(self.model.run.dtype)

    @property
    def platform(self) -> str:
        """What the step is lowered for: fused kernels are of one platform, all else is of all.

        Products of groups of rows are masked products on the CPU, as many as there are experts.
        """
        routing = self.model.routing
        is_ragged = routing is not None and routing.dropless
        return platform_of(self.model.run.attention) or ("cuda" if is_ragged else "cpu")

    def weights(self, dtype: Any) -> dict[str, Any]:
        """Return the abstract weights."""
        array = partial(self.divided.array, dtype=dtype)
        plan = self.model.plan

        def made(item: _Item, *turns: int, shapes: Any = layer_weights) -> Any:
            if isinstance(item, Loop):
                return [made(each, *turns, item.times) for each in item.body]
            divided, stacked = self.divided_of(item), {f"{size} turns": size for size in turns}
            divided = replace(divided, sizes={**divided.sizes, **stacked})
            dimensions = [f"{size} turns" for size in turns]
            return {
                name: divided.array(*dimensions, *shape, dtype=dtype)
                for name, shape in shapes(self.model, item).items()
            }

        weights: dict[str, Any] = {
            name: array(*dimensions) for name, dimensions in outer_weights(self.model).items()
        }
        if self.model.mtp_kinds:
            weights[_MTP] = [made(kind, shapes=mtp_weights) for kind in self.model.mtp_kinds]
        if not self.is_looped:
            return weights | {_FIRST: [made(kind) for kind in self.model.kinds]}
        return weights | {
            _FIRST: [made(item) for item in plan.first],
            _STACKED: [] if plan.loop is None else made(plan.loop),
            _LAST: [made(item) for item in plan.last],
        }

    @property
    def is_looped(self) -> bool:
        """Whether layers are in loops."""
        run = self.model.run
        return isinstance(run, Training) and run.scan and self.model.plan.loop is not None

    def divided_of(self, kind: LayerKind) -> Divided:
        """Return the sizes of dimensions in layers of a kind, and how they are divided."""
        return replace(self.divided, sizes={**self.divided.sizes, **self.model.sizes_of(kind)})

    def part_weights(self, dtype: Any, *, is_first: bool, is_last: bool) -> dict[str, Any]:
        """Return the abstract weights of a part of the model: layers, and what stands around."""
        before = {"embedding", "positions"}
        behind = {"norm", "norm_bias", "embedding" if self.model.style.tied else "head"}
        needed = (before if is_first else set[str]()) | (behind if is_last else set[str]())
        absent = (before | behind) - needed
        return {name: leaf for name, leaf in self.weights(dtype).items() if name not in absent}

    def fixed_weights(self) -> dict[str, Any]:
        """Return the abstract weights in 8 bits, which a step makes once, where the layers stand.

        Empty where products are not in 8 bits.
        """
        run = self.model.run
        if not isinstance(run, Training) or run.product_dtype != "f8":
            return {}
        weights = self.weights(SMALL)

        def fixed(layers: Any) -> Any:
            if not isinstance(layers, dict):
                return [fixed(each) for each in layers]
            return {f"{name}{STORED}": leaf for name, leaf in layers.items() if is_multiplied(name)}

        groups = (_FIRST, _STACKED, _LAST)
        return {group: fixed(weights[group]) for group in groups if group in weights}

    def activations(self) -> Any:
        """Return the abstract array that goes from layer to layer."""
        return self.divided.array("batch", "norm_sequence", "row", dtype=self.dtype)

    def batch(self, *, rounds: int = 1) -> dict[str, Any]:
        """Return the abstract batch of training: tokens, their positions, and what follows them.

        Where sequences have documents, it says which each token is of, 0 for none.
        With several ``rounds`` the arrays have a first dimension of as many.
        """
        names = ("batch", "sequence") if rounds == 1 else ("rounds", "batch", "sequence")
        arrays = _TOKENS + _DOCUMENTS if self.model.style.documents else _TOKENS
        return dict.fromkeys(arrays, self.divided.array(*names, dtype=jnp.int32))

    def loss(self, weights: Weights, batch: Weights) -> jax.Array:
        """Return the mean cross entropy of the tokens, of those of a document where there are."""
        x = self.through_layers(self.embedded(weights, batch), weights, batch)
        loss = self.loss_of(x, weights, batch)
        if not self.model.mtp_kinds:
            return loss
        return loss + _MTP_SHARE * self._further_loss(x, weights, batch)

    def _further_loss(self, x: jax.Array, weights: Weights, batch: Weights) -> jax.Array:
        """Return the mean loss of further tokens, each predicted from the row of the one before.

        Source: DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 2.2.
        """
        places, losses = self._places(batch), list[jax.Array]()
        shifted = ("targets", "target_segments")
        for number, (kind, own) in enumerate(
            zip(self.model.mtp_kinds, weights[_MTP], strict=True), start=1
        ):
            batch = {**batch, "inputs": batch["targets"]}
            with jax.named_scope(f"mtp_{number:02d}"):
                pair = (
                    self._normed(x, own, "mtp_row_norm"),
                    self._normed(self.embedded(weights, batch), own, "mtp_token_norm"),
                )
                x = product("bsxe,exf->bsf", jnp.stack(pair, 2), own["mtp_join"])
                x = self._rematerialised(kind)(self._between(x), own, places)
                batch |= {name: jnp.roll(batch[name], -1, 1) for name in shifted if name in batch}
                given = {**weights, **{name: own[name] for name in own if name in weights}}
                losses.append(self.loss_of(x, given, batch, further=number))
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
            x = self._between(self.divided.constrain(x, "batch", "sequence", None))
            scale = self.model.style.embedding_scale
            if scale != 1:
                x = x * jnp.asarray(scale, x.dtype)
            if self.model.style.learned_positions:
                x = x + weights["positions"].astype(self.dtype)[batch["positions"]]
            return self._between(x)

    def through_layers(
        self, x: jax.Array, weights: Weights, batch: Weights, before: BeforeLayer = untouched
    ) -> jax.Array:
        """Return what comes out of the last layer.

        What goes into a layer outside of a loop, and its weights, go through ``before`` first.
        """
        model, places = self.model, self._places(batch)
        weights = self._with_inputs(x, weights, batch)
        layers = {kind: self._rematerialised(kind) for kind in model.kinds}
        alone = {kind: _behind(before, layer) for kind, layer in layers.items()}
        through = partial(_through, alone, layers)
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
        """Return what comes out of the last layer, and the caches with the new tokens."""
        places, changed = self._places(batch), list[Cache]()
        weights, kept = self._with_inputs(x, weights, batch), dict[int, Cache]()
        layers = zip(self.model.kinds, weights[_FIRST], caches, strict=True)
        for index, (kind, own, cache) in enumerate(layers):
            with jax.named_scope(f"layers_{index:02d}"):
                is_shared = kind.keys == "shared"
                made = self._layer(kind, x, own, places, kept[kind.window] if is_shared else cache)
                x, written = made.x, made.cache
                assert written is not None  # noqa: S101 - for the type checker: it was given
                changed.append(cache if is_shared else written)
                if made.keys is not None:
                    kept[kind.window], places = written, places.with_keys(kind, made.keys)
        return x, changed

    def _with_inputs(self, x: jax.Array, weights: Weights, batch: Weights) -> Weights:
        """Return the weights with each layer's own input of the tokens beside its own.

        Source: Google, Gemma 3n, "per-layer embeddings".
        """
        style, plan = self.model.style, self.model.plan
        if not style.layer_input:
            return weights
        with jax.named_scope("layer_inputs"):
            table = weights["input_table"].astype(self.dtype)
            looked_up = table[batch["inputs"]] * jnp.asarray(style.layer_input**0.5, x.dtype)
            made = product("bse,elp->bslp", x, weights["input_projection"])
            made = made * jnp.asarray(x.shape[-1] ** -0.5, x.dtype)
            made = normalised(style, made, weights, "input_norm") + looked_up
            made = jnp.moveaxis(made * jnp.asarray(0.5**0.5, x.dtype), 2, 0)
        if not self.is_looped or plan.loop is None:
            return {**weights, _FIRST: _with_rows(self.model.kinds, weights[_FIRST], made)}
        items = (*plan.first, plan.loop, *plan.last)
        own = (*weights[_FIRST], weights[_STACKED], *weights[_LAST])
        given, count = _with_rows(items, own, made), len(plan.first)
        return {
            **weights,
            _FIRST: given[:count],
            _STACKED: given[count],
            _LAST: given[count + 1 :],
        }

    def _places(self, batch: Weights) -> Places:
        """Return where tokens stand, made once for all layers, outside of their loop."""
        positions, segments = batch["positions"], batch.get("segments")
        length = positions.shape[1]
        rotations = sorted({self.model.rotation(kind) for kind in self.model.kinds} - {(0, 0)})
        with jax.named_scope("positions"):
            return Places(
                turns={each: turns(positions, *each, self._scaling(each)) for each in rotations},
                documents=None if segments is None else (segments, earlier(length, length)),
            )

    def _scaling(self, rotation: tuple[int, float]) -> RotaryScaling | None:
        """Return how positions are scaled: those with the model's own periods are."""
        is_own = rotation[1] == self.model.sizes_of_layers.rope_theta
        return self.model.style.rotary_scaling if is_own else None

    def logits(self, x: jax.Array, weights: Weights) -> jax.Array:
        """Return the logits of each token, in f32."""
        style = self.model.style
        with jax.named_scope("norm"):
            x = self._normed(x, weights, "norm")
        with jax.named_scope("logits"):
            if style.tied:
                logits = product("bse,ve->bsv", x, weights["embedding"])
            else:
                logits = product("bse,ev->bsv", x, weights["head"])
            logits = logits.astype(jnp.float32)
            if style.logit_scale != 1:
                logits = logits * style.logit_scale
            if style.logit_cap:
                logits = style.logit_cap * jnp.tanh(logits / style.logit_cap)
            return self.divided.constrain(logits, "batch", "sequence", "vocabulary")

    def loss_of(
        self, x: jax.Array, weights: Weights, batch: Weights, *, further: int = 0
    ) -> jax.Array:
        """Return the loss from what comes out of the last layer.

        The last tokens of a sequence have no ``further`` ones.
        """
        logits = self.logits(x, weights)
        with jax.named_scope("loss"):
            vocabulary = self.divided.sizes["vocabulary"]
            one_hot = jax.nn.one_hot(batch["targets"], vocabulary)
            run = self.model.run
            is_eager = isinstance(run, Training) and run.loss == "eager"
            losses = (_eager_cross_entropy if is_eager else _cross_entropy)(logits, one_hot)
            if not self.model.style.documents and not further:
                return jnp.mean(losses)
            tokens = losses.shape[1]
            counted = jnp.broadcast_to(jnp.arange(tokens) < tokens - further, losses.shape)
            if self.model.style.documents:
                own = batch["target_segments"] != 0
                counted = own & counted if further else own
            return jnp.sum(losses * counted) / (jnp.sum(counted) + 1e-8)

    def _rematerialised(self, kind: LayerKind) -> Any:
        run = self.model.run
        assert isinstance(run, Training)  # noqa: S101 - for the type checker
        is_small = run.product_dtype == "f8"

        def layer(x: jax.Array, weights: Weights, places: Places) -> Any:
            own = rounded(weights) if is_small else weights
            made = self._layer(kind, x, own, places, None)
            return made.x if made.keys is None else (made.x, made.keys)

        return rematerialised(layer, run.remat, is_loop=run.scan)

    def _layer(
        self,
        kind: LayerKind,
        x: jax.Array,
        weights: Weights,
        places: Places,
        cache: Cache | None,
    ) -> _Made:
        style, keys = self.model.style, None
        if kind.mixer != "none":
            with jax.named_scope("norm"):
                hidden = self._normed(self._between(x), weights, "attention_norm")
            made, cache, keys = self._mixed(kind, hidden, weights, places, cache)
            if style.before_mlp != "yes":
                made = made + self._beside_mixer(kind, x, hidden, weights)
            x = self._added(x, self._after(made, weights, "after_attention_norm"))
        if kind.feeds_forward and style.before_mlp == "yes":
            with jax.named_scope("norm"):
                hidden = self._normed(x, weights, "mlp_norm")
            with jax.named_scope("mlp"):
                made = self._fed_forward(kind, x, hidden, weights)
            x = self._added(x, self._after(made, weights, "after_mlp_norm"))
        if style.layer_input:
            with jax.named_scope("layer_input"):
                gate = activated(style, product("bse,ep->bsp", x, weights["input_gate"]))
                made = product("bsp,pe->bse", gate * weights[_INPUT], weights["input_output"])
            x = self._added(x, self._after(self._between(made), weights, "after_input_norm"))
        if style.scales_layers:
            x = x * weights["layer_scale"].astype(x.dtype)
        return _Made(self._between(x), cache, keys)

    def _beside_mixer(
        self, kind: LayerKind, x: jax.Array, hidden: jax.Array, weights: Weights
    ) -> jax.Array:
        """Return what the dense layer makes of the rows that the mixer takes."""
        if self.model.style.before_mlp == "own_norm":
            with jax.named_scope("norm"):
                hidden = self._normed(x, weights, "mlp_norm")
        with jax.named_scope("mlp"):
            return self._fed_forward(kind, x, hidden, weights)

    def _mixed(
        self,
        kind: LayerKind,
        hidden: jax.Array,
        weights: Weights,
        places: Places,
        cache: Cache | None,
    ) -> _Made:
        """Return what the layer's mixer makes of rows, its cache, and keys that it keeps."""
        model, divided = self.model, self.divided_of(kind)
        if kind.mixer != "attention":
            through = through_state_space if kind.mixer == "state_space" else through_delta
            made, cache = through(model, divided, hidden, weights, cache)
            return _Made(checkpoint_name(self._between(made), "output_projection"), cache)
        with jax.named_scope("attention"):
            context, cache, keys = self._attention(kind, hidden, weights, places, cache)
            if model.style.output_gate:
                gate = product("bse,ehd->bshd", hidden, weights["query_gate"])
                context = context * jax.nn.sigmoid(gate)
            with jax.named_scope("output"):
                made = product("bshd,hde->bse", context, weights["output"])
                if model.style.attention_biases == "all":
                    made = made + weights["output_bias"].astype(made.dtype)
                return _Made(checkpoint_name(self._between(made), "output_projection"), cache, keys)

    def _added(self, x: jax.Array, made: jax.Array) -> jax.Array:
        style = self.model.style
        scale = style.residual_scale
        total = x + made if scale == 1 else x + made * jnp.asarray(scale, made.dtype)
        return apart(style, total)

    def _after(self, x: jax.Array, weights: Weights, name: str) -> jax.Array:
        if not self.model.style.norms_after:
            return x
        with jax.named_scope("norm"):
            return normalised(self.model.style, x, weights, name)

    def _fed_forward(
        self, kind: LayerKind, x: jax.Array, hidden: jax.Array, weights: Weights
    ) -> jax.Array:
        """Return what follows the mixer makes of normalised rows; ``x`` are those before."""
        style, routing, divided = self.model.style, self.model.routing, self.divided_of(kind)
        if not kind.is_routed or routing is None:
            made = feed_forward(style, divided, hidden, weights)
        elif routing.style.beside_dense:
            made = self._beside(x, hidden, weights)
        else:
            made = self._through_experts(routing, hidden, weights)
        return checkpoint_name(self._between(made), "mlp_down")

    def _through_experts(self, routing: Routing, x: jax.Array, weights: Weights) -> jax.Array:
        style, divided = self.model.style, self.divided
        sent = product("bse,el->bsl", x, weights["latent_in"]) if routing.latent_size else None
        made = through_experts(self.model, divided, x, weights, sent)
        if routing.latent_size:
            made = product("bsl,le->bse", made, weights["latent_out"])
        if not routing.shared_width:
            return made
        with jax.named_scope("shared"):
            shared = feed_forward(style, divided, x, weights, SHARED)
            if routing.style.shared_gate:
                shared *= jax.nn.sigmoid(product("bse,eo->bso", x, weights["shared_router"]))
            return made + shared

    def _beside(self, x: jax.Array, hidden: jax.Array, weights: Weights) -> jax.Array:
        """Return the sum of a dense layer and of experts, each with norms of its own."""
        style = self.model.style
        after_dense, before_experts, after_experts = BESIDE
        made = normalised(
            style, feed_forward(style, self.divided, hidden, weights), weights, after_dense
        )
        scores = plainly_normalised(style, x) * weights["router_scale_norm"].astype(x.dtype)
        scores = scores * jnp.asarray(x.shape[-1] ** -0.5, x.dtype)
        sent = normalised(style, x, weights, before_experts)
        routed = through_experts(self.model, self.divided, scores, weights, sent)
        return made + normalised(style, routed, weights, after_experts)

    def _attention(
        self,
        kind: LayerKind,
        x: jax.Array,
        weights: Weights,
        places: Places,
        cache: Cache | None,
    ) -> _Made:
        model, divided = self.model, self.divided_of(kind)
        style = model.style
        if model.latent is not None:
            return _Made(*latent_attention(model, divided, kind, x, weights, places, cache))
        is_own = kind.keys != "shared"
        with jax.named_scope("projections"):
            query, *others = self._projected(kind, x, weights)
            key, value = others if is_own else places.keys[kind.window]
        query = scaled(style, query)
        with jax.named_scope("rotary"):
            rotation = model.rotation(kind)
            query = rotated(query, places, rotation, style)
            key = rotated(key, places, rotation, style) if is_own else key
            if style.norms_after_rotation and kind.rotates:
                query = scaled(style, plainly_normalised(style, query))
                key = plainly_normalised(style, key)
        sinks = weights.get("sinks_bias")
        keys = (key, value) if kind.keys == "kept" else None
        if cache is not None:
            if is_own:
                cached = {"keys": jnp.swapaxes(key, 1, 2), "values": jnp.swapaxes(value, 1, 2)}
                cache = cache.written(**cached)
            if isinstance(model.run, Decode):
                if model.attention_of(kind) == "cudnn":
                    return _Made(fused_over_cache(model, divided, kind, query, cache), cache, keys)
                read = (cache.read("keys"), cache.read("values"))
                return _Made(cached_attention(model, kind, query, read, sinks), cache, keys)
        arrays = (query, key, value)
        return _Made(causal_attention(model, divided, kind, arrays, places, sinks), cache, keys)

    def _projected(self, kind: LayerKind, x: jax.Array, weights: Weights) -> list[jax.Array]:
        """Return queries, keys and values."""
        style = self.model.style
        if MERGED in weights:
            merged = product("bse,ekgd->bskgd", x, weights[MERGED])
            query = merged[:, :, :, :-2]
            shape = (*query.shape[:2], query.shape[2] * query.shape[3], query.shape[4])
            made = [query.reshape(shape), merged[:, :, :, -2], merged[:, :, :, -1]]
        else:
            made = [
                product("bse,ehd->bshd", x, weights[name]) for name in _PROJECTED if name in weights
            ]
            made += made[1:] if kind.value_is_key else []
        if style.attention_biases != "none":
            made = [
                one + weights[f"{name}_bias"].astype(one.dtype)
                for one, name in zip(made, _PROJECTED, strict=False)
            ]
        norm = _normalised_rows if style.norms_of_rows else normalised
        if style.norms_of_heads or style.norms_of_rows:
            norms = ("query_norm", "key_norm")
            of_heads = [
                norm(style, one, weights, name) for one, name in zip(made, norms, strict=False)
            ]
            made = [*of_heads, *made[2:]]
        if style.norms_of_values:
            made[2:] = [plainly_normalised(style, value) for value in made[2:]]
        return made

    def _normed(self, x: jax.Array, weights: Weights, name: str) -> jax.Array:
        """Return the rows of a norm that go into a product.

        Where they are divided between products, the whole norm is, and its result is gathered.
        """
        style = self.model.style
        is_bare = name != "norm" and not style.norms_before
        hidden = x if is_bare else checkpoint_name(normalised(style, x, weights, name), "norm")
        run = self.model.run
        if isinstance(run, Training) and run.sequence_parallel:
            hidden = self._between(hidden)
            if run.product_dtype == "f8" and name != "norm":
                return hidden
        return self._rows(hidden)

    def _rows(self, x: jax.Array) -> jax.Array:
        """Ask for the rows that go into a product."""
        return self.divided.constrain(x, "batch", "sequence", None)

    def _between(self, x: jax.Array) -> jax.Array:
        """Ask for the rows that stand between products."""
        return self.divided.constrain(x, "batch", "norm_sequence", None)


def _normalised_rows(style: Style, x: jax.Array, weights: Weights, name: str) -> jax.Array:
    """Return rows of (batch, sequence, heads, size) normalised over all heads together."""
    flat = x.reshape(*x.shape[:2], -1)
    return normalised(style, flat, {name: weights[name].reshape(-1)}, name).reshape(x.shape)


def _behind(before: BeforeLayer, layer: Any) -> Any:
    """Return a layer whose input and weights go through ``before`` first."""

    def changed(x: jax.Array, weights: Weights, places: Places) -> jax.Array:
        return layer(*before(x, weights), places)

    return changed


_Item = LayerKind | Loop[LayerKind]
_Layers = Mapping[LayerKind, Any]


def _through(  # noqa: PLR0917 - the pieces of some layers
    alone: _Layers,
    looped: _Layers,
    items: Sequence[_Item],
    x: jax.Array,
    weights: Sequence[Any],
    places: Places,
) -> tuple[jax.Array, Places]:
    """Return what comes out of the last layer, and places with the keys that layers keep.

    Layers outside of loops are those of ``alone``.
    """
    for index, (item, own) in enumerate(zip(items, weights, strict=True)):
        if isinstance(item, Loop):
            x = _looped(looped, item, x, own, places)
            continue
        with jax.named_scope(f"layers_{index:02d}"):
            made = alone[item](x, own, places)
            if item.keys == "kept":
                x, keys = made
                places = places.with_keys(item, keys)
            else:
                x = made
    return x, places


def _looped(
    layers: _Layers, loop: Loop[LayerKind], x: jax.Array, weights: Sequence[Any], places: Places
) -> jax.Array:
    """Return what comes out of the last turn of a loop, whose layers are one module."""

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
    """Return the weights of layers, each with its own input of ``rows``.

    Dimension ``depth`` of these counts layers, those before it the turns of loops.
    """
    made: list[Any] = []
    begin = 0
    for item, own in zip(items, weights, strict=True):
        count = layers_of(item)
        given = jax.lax.slice_in_dim(rows, begin, begin + count, axis=depth)
        begin += count
        if isinstance(item, Loop):
            shape = (*rows.shape[:depth], item.times, -1, *rows.shape[depth + 1 :])
            made.append(_with_rows(item.body, own, given.reshape(shape), depth + 1))
        else:
            made.append({**own, _INPUT: jnp.squeeze(given, depth)})
    return made


_Kept = tuple[jax.Array, ...]


@jax.custom_vjp
def _cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return each token's loss, with a part that weighs the normaliser.

    ``targets`` is one-hot, of the shape and type of ``logits``.
    """
    return _loss_forward(logits, targets)[0]


def _loss_forward(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, _Kept]:
    largest = logits.max(-1, keepdims=True)
    shifted = logits - largest
    exponentials = jnp.exp(shifted)
    sums = jnp.sum(exponentials, -1, keepdims=True)
    log_softmax = shifted - jnp.log(sums)
    losses = -jnp.sum(targets * log_softmax, -1)
    normaliser = jnp.squeeze(jnp.log(sums) + largest, -1)
    weighed = _NORMALISER_WEIGHT * jax.lax.square(normaliser)
    return losses + weighed, (logits, targets, exponentials, sums, normaliser)


def _loss_backward(kept: _Kept, gradient: jax.Array) -> tuple[jax.Array, None]:
    logits, targets, exponentials, sums, normaliser = kept
    scale = jnp.expand_dims(1 + 2 * _NORMALISER_WEIGHT * normaliser, -1)
    difference = scale * exponentials / sums - targets
    return jnp.asarray(jnp.expand_dims(gradient, -1) * difference, logits.dtype), None


_cross_entropy.defvjp(_loss_forward, _loss_backward)


@jax.custom_vjp
def _eager_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return each token's loss as PyTorch runs it: a kernel for each operation, in f32."""
    return _eager_forward(logits, targets)[0]


def _eager_forward(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, _Kept]:
    wide = jax.lax.optimization_barrier(logits)
    logarithms = jax.lax.optimization_barrier(jax.nn.log_softmax(wide))
    return -jnp.sum(targets * logarithms, -1), (logarithms, targets)


def _eager_backward(kept: _Kept, gradient: jax.Array) -> tuple[jax.Array, None]:
    logarithms, targets = kept
    scattered = jax.lax.optimization_barrier(-jnp.expand_dims(gradient, -1) * targets)
    total = jnp.sum(scattered, -1, keepdims=True)
    made = jax.lax.optimization_barrier(scattered - jnp.exp(logarithms) * total)
    return made, None


_eager_cross_entropy.defvjp(_eager_forward, _eager_backward)
