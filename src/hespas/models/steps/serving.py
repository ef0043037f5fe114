"""Steps of prefill and decode, with a cache."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from hespas.errors import refuse
from hespas.models.language import LanguageModel
from hespas.models.model import Step
from hespas.models.quantization import FORMATS, SCALED
from hespas.models.runs import Decode, Prefill, has_embedding, has_head
from hespas.models.steps.cache import F8, Cache, cache_shapes
from hespas.models.steps.products import ABSORBED, SMALL, STORED_TYPES, Grouped, stored_order
from hespas.models.steps.sharding import Divided, dtype_named
from hespas.models.steps.transformer import Transformer
from hespas.models.weights import RATING, part_of

_MATRIX = 2
"""Weights of as many dimensions are products' own; others are norms' and biases'."""


def build(settings: LanguageModel) -> Step:
    """Return the step from tokens to the next ones.

    A stage of a pipeline has activations in the place of tokens, unless it is the first or last.
    """
    settings.check()
    run = settings.served
    decoder = Transformer(model=settings, divided=_divided(settings))
    divided = decoder.divided
    weights = _weights(decoder)
    arguments: dict[str, Any] = {
        "tokens": divided.array("batch", "sequence", dtype=jnp.int32),
        "position": divided.array(dtype=jnp.int32),
    }
    if not has_embedding(run):
        arguments["activations"] = decoder.activations()
    if run.page_size:
        arguments["pages"] = divided.array("batch", "pages_of_sequence", dtype=jnp.int32)
    caches = [cache_shapes(settings, decoder.divided_of(kind), kind) for kind in settings.kinds]
    shardings = jax.tree.map(lambda leaf: leaf.sharding, caches)

    # The names of these parameters are those of arguments in programs.
    def step(weights: Any, caches: Any, given: Any) -> tuple[jax.Array, Any]:
        return _step(decoder, weights, caches, given)

    output = arguments["tokens"] if has_head(run) else decoder.activations()
    function = jax.jit(step, out_shardings=(output.sharding, shardings), donate_argnums=1)
    return Step(
        function=function,
        arguments=(weights, caches, arguments),
        mesh=run.mesh,
        platform=decoder.platform,
    )


def _divided(settings: LanguageModel) -> Divided:
    run = settings.served
    sizes, axes = settings.sizes, settings.axes
    if run.page_size:
        pages = sizes["context"] // run.page_size
        sizes |= {"pages_of_sequence": pages, "pages": sizes["batch"] * pages}
        sizes |= {"page": run.page_size}
        axes |= {"pages": axes["batch"]}
    return Divided(mesh=run.mesh, sizes=sizes, axes=axes)


def _weights(decoder: Transformer) -> Any:
    """Return the abstract weights, product weights in their parts' formats."""
    precision = decoder.model.precision
    weights = decoder.weights(dtype_named(precision.other))

    def stored(name: str, leaf: Any) -> Any:
        part = part_of(name)
        return (
            leaf
            if part == "other"
            else _stored_weight(decoder, name, leaf, getattr(precision, part))
        )

    layers = [
        {name: stored(name, leaf) for name, leaf in layer.items()}
        for layer in weights["layers_first"]
    ]
    weights_of_model, run = weights | {"layers_first": layers}, decoder.model.run
    return decoder.of_part(weights_of_model, is_first=has_embedding(run), is_last=has_head(run))


def _stored_weight(decoder: Transformer, name: str, leaf: Any, dtype: str) -> Any:
    """Return an abstract weight in a format with scales."""
    if dtype not in SCALED:
        return jax.ShapeDtypeStruct(leaf.shape, dtype_named(dtype), sharding=leaf.sharding)
    if len(leaf.shape) < _MATRIX:
        return leaf
    run = decoder.model.served
    absorbs = isinstance(run, Decode) or decoder.model.selects_tokens
    is_absorbed = name == "key_up" and absorbs
    order = stored_order(ABSORBED if is_absorbed else name, len(leaf.shape))
    spec = PartitionSpec(*(leaf.sharding.spec[dimension] for dimension in order))
    sharding = leaf.sharding.update(spec=spec)
    shape = tuple(leaf.shape[dimension] for dimension in order)
    if dtype == F8:
        scale = decoder.divided.array(dtype=jnp.float32)
        return jax.ShapeDtypeStruct(shape, SMALL, sharding=sharding), scale
    values, scales = STORED_TYPES[dtype]
    group, own = FORMATS[dtype].group, sharding.shard_shape(shape)[-1]
    refuse(
        own % group and part_of(name) != "experts",
        f"{dtype} has groups of {group} numbers, and a device has {own} of those that {name} "
        "is summed over",
        "give a mesh with a smaller tp, or another weight_dtype",
    )
    # A device's experts have groups of their own, the last of a row shorter.
    groups = shape[-1] // own * -(-own // group)
    rounds = dtype == "nvfp4" and run.activation_dtype == dtype
    return Grouped(
        values=jax.ShapeDtypeStruct(shape, values, sharding=sharding),
        scales=jax.ShapeDtypeStruct((*shape[:-1], groups), scales, sharding=sharding),
        name=dtype,
        rounds_rows=rounds and own % group == 0,
    )


def _beside_unread(model: LanguageModel, tokens: jax.Array, layers: Any) -> jax.Array:
    """Hold the weights that would rate tokens in a step over too few to choose from."""
    latent = model.latent
    if latent is None or not latent.indexed_tokens or model.selects_tokens or model.masks_tokens:
        return tokens
    weights = [layer[name] for layer in layers for name in RATING if name in layer]
    tokens, _ = jax.lax.optimization_barrier((tokens, weights))
    return tokens


def _step(
    decoder: Transformer, weights: Any, caches: Any, inputs: Any
) -> tuple[jax.Array, list[Any]]:
    position, table = inputs["position"], inputs.get("pages")
    tokens = _beside_unread(decoder.model, inputs["tokens"], weights["layers_first"])
    places = position + jnp.arange(tokens.shape[1])
    positions = jnp.broadcast_to(places, tokens.shape)
    batch = {"inputs": tokens, "positions": positions}
    model, run = decoder.model, decoder.model.run
    x = decoder.embedded(weights, batch) if has_embedding(run) else inputs["activations"]
    rings = {kind: model.sizes_of(kind)["context"] for kind in model.kinds}
    starts = {size: position % size for size in {*rings.values()} - {model.context}}
    own = [
        Cache(
            arrays=arrays,
            position=starts.get(rings[kind], position),
            divided=decoder.divided,
            table=table,
        )
        for kind, arrays in zip(model.kinds, caches, strict=True)
    ]
    x, changed = decoder.through_cached_layers(x, weights, batch, own)
    arrays_of_caches = [cache.arrays for cache in changed]
    if not has_head(run):
        return x, arrays_of_caches
    if isinstance(run, Prefill):
        # The last token of a prompt alone has one to make.
        x = x[:, -1:]
    logits = decoder.logits(x, weights)
    with jax.named_scope("sampling"):
        new_tokens = jnp.argmax(logits, -1).astype(jnp.int32)
    return new_tokens, arrays_of_caches
