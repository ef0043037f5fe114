"""Steps of prefill and decode: new tokens go through the layers, and into a cache in place."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from hespas.models.cache import F8, Cache, cache_shapes
from hespas.models.language import Decode, LanguageModel, Prefill, Training
from hespas.models.model import Step
from hespas.models.products import ABSORBED, SMALL, is_stored_small, stored_order
from hespas.models.sharding import Divided, dtype_named
from hespas.models.transformer import Transformer

_MATRIX = 2
"""Weights of as many dimensions are products' own; others are norms' and biases'."""


def build(settings: LanguageModel) -> Step:
    """Return the step: it is given tokens, and leaves the next of each sequence and the cache."""
    settings.check()
    run = settings.run
    assert not isinstance(run, Training)  # noqa: S101 - for the type checker
    decoder = Transformer(model=settings, divided=_divided(settings))
    divided = decoder.divided
    weights = _weights(decoder, run.weight_dtype)
    arguments: dict[str, Any] = {
        "tokens": divided.array("batch", "sequence", dtype=jnp.int32),
        "position": divided.array(dtype=jnp.int32),
    }
    if run.page_size:
        arguments["pages"] = divided.array("batch", "pages_of_sequence", dtype=jnp.int32)
    caches = [cache_shapes(settings, decoder.divided_of(kind), kind) for kind in settings.kinds]
    shardings = jax.tree.map(lambda leaf: leaf.sharding, caches)

    def step(weights: Any, caches: Any, given: Any) -> tuple[jax.Array, Any]:
        return _step(decoder, weights, caches, given)

    tokens = arguments["tokens"].sharding
    function = jax.jit(step, out_shardings=(tokens, shardings), donate_argnums=1)
    return Step(
        function=function,
        arguments=(weights, caches, arguments),
        mesh=run.mesh,
        platform=decoder.platform,
    )


def _divided(settings: LanguageModel) -> Divided:
    run = settings.run
    assert not isinstance(run, Training)  # noqa: S101 - for the type checker
    sizes, axes = settings.sizes, settings.axes
    if run.page_size:
        pages = sizes["context"] // run.page_size
        sizes |= {"pages_of_sequence": pages, "pages": sizes["batch"] * pages}
        sizes |= {"page": run.page_size}
        axes |= {"pages": axes["batch"]}
    return Divided(mesh=run.mesh, sizes=sizes, axes=axes)


def _weights(decoder: Transformer, name: str) -> Any:
    """Return the abstract weights; in 8 bits those of products of layers, each with a scale."""
    if name != F8:
        return decoder.weights(dtype_named(name))
    weights = decoder.weights(decoder.dtype)
    scale = decoder.divided.array(dtype=jnp.float32)

    def small(name: str, leaf: Any) -> Any:
        if len(leaf.shape) < _MATRIX:
            return leaf
        is_absorbed = name == "key_up" and isinstance(decoder.model.run, Decode)
        order = stored_order(ABSORBED if is_absorbed else name, len(leaf.shape))
        sharding = leaf.sharding
        spec = PartitionSpec(*(sharding.spec[at] for at in order))
        shape = tuple(leaf.shape[at] for at in order)
        return jax.ShapeDtypeStruct(shape, SMALL, sharding=sharding.update(spec=spec)), scale

    layers = [
        {each: small(each, leaf) if is_stored_small(each) else leaf for each, leaf in layer.items()}
        for layer in weights["layers_first"]
    ]
    return weights | {"layers_first": layers}


def _step(
    decoder: Transformer, weights: Any, caches: Any, given: Any
) -> tuple[jax.Array, list[Any]]:
    tokens, position, table = given["tokens"], given["position"], given.get("pages")
    places = position + jnp.arange(tokens.shape[1])
    positions = jnp.broadcast_to(places, tokens.shape)
    batch = {"inputs": tokens, "positions": positions}
    x = decoder.embedded(weights, batch)
    own = [
        Cache(arrays=arrays, position=position, divided=decoder.divided, table=table)
        for arrays in caches
    ]
    x, changed = decoder.through_cached_layers(x, weights, batch, own)
    if isinstance(decoder.model.run, Prefill):
        # The last token of a prompt alone has one to make.
        x = x[:, -1:]
    logits = decoder.logits(x, weights)
    with jax.named_scope("sampling"):
        made = jnp.argmax(logits, -1).astype(jnp.int32)
    return made, [cache.arrays for cache in changed]
