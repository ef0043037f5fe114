"""The cache of keys and values: contiguous, or in pages.

Arrays are (batch, heads, tokens, size), or (pages, heads, page size, size); a step is given them
for good and writes its new tokens in place. Pages of a sequence are in any order: the table says
which, (batch, pages of a sequence). Of a window or a chunk the last tokens are cached, in a ring: a
token is at its position, modulo the ring's length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hespas.base.frozen import frozen
from hespas.models.architecture import LayerKind
from hespas.models.language import LanguageModel
from hespas.models.steps.products import SMALL
from hespas.models.steps.sharding import Divided, dtype_named
from hespas.models.weights import state_shapes

Arrays = Mapping[str, Any]
F8 = "f8"


def cache_shapes(model: LanguageModel, divided: Divided, kind: LayerKind) -> dict[str, Any]:
    """Return the abstract arrays of a layer's cache, by name."""
    run = model.served
    dtype = SMALL if run.cache_dtype == F8 else dtype_named(run.cache_dtype)
    if kind.mixer in {"state_space", "delta"}:
        return {
            name: divided.array(
                *dimensions, dtype=jnp.float32 if name == "states" else dtype_named(run.dtype)
            )
            for name, dimensions in state_shapes(kind.mixer).items()
        }
    if kind.mixer == "none" or kind.keys == "shared":
        return {}
    tokens = ("pages", "kv_heads", "page") if run.page_size else ("batch", "kv_heads", "context")
    if model.latent is not None:
        latents = divided.array(tokens[0], "one", tokens[2], "latent", dtype=dtype)
        if not model.latent.indexed_tokens:
            return {"latents": latents}
        # Kernels that rate tokens read keys of 8 bits.
        rated = SMALL if run.attention == "flashmla" else dtype
        keys = divided.array(tokens[0], "one", tokens[2], "index_size", dtype=rated)
        return {"latents": latents, "index_keys": keys}
    array = divided.array(*tokens, "head_size", dtype=dtype)
    return {"keys": array, "values": array}


@frozen
class Cache:
    """The caches of a layer, by name."""

    arrays: Arrays
    position: jax.Array
    divided: Divided
    table: jax.Array | None = None

    def written(self, **new: jax.Array) -> Cache:
        """Return the cache with new tokens."""
        arrays = {name: self._with_tokens(self.arrays[name], array) for name, array in new.items()}
        return replace(self, arrays={**self.arrays, **arrays})

    def replaced(self, **new: jax.Array) -> Cache:
        """Replace arrays of a cache, such as states."""
        arrays = {name: array.astype(self.arrays[name].dtype) for name, array in new.items()}
        return replace(self, arrays={**self.arrays, **arrays})

    def read(self, name: str) -> jax.Array:
        """Return all that is cached, (batch, heads, tokens, size)."""
        array = self.arrays[name]
        if self.table is None or name == "states" or name.endswith("_rows"):
            return array
        return self._local(_gathered, array, self.table)

    def _with_tokens(self, array: jax.Array, new: jax.Array) -> jax.Array:
        with jax.named_scope("cache"):
            if self.table is None:
                zero = jnp.zeros((), jnp.int32)
                if (length := new.shape[2]) > (size := array.shape[2]):
                    return jnp.roll(new[:, :, -size:], length % size, 2).astype(array.dtype)
                starts = (zero, zero, self.position, zero)
                return lax.dynamic_update_slice(array, new.astype(array.dtype), starts)
            return self._local(_scattered, array, self.table, new, self.position)

    def _local(self, function: Any, array: jax.Array, table: jax.Array, *more: Any) -> jax.Array:
        """Apply a function to a device's pages and new tokens."""
        heads = "kv_heads" if array.shape[1] > 1 else "one"
        pages = self.divided.spec("batch", heads, None, None)
        rows = self.divided.spec("batch", None)
        everywhere = self.divided.spec()
        mapped = jax.shard_map(
            function,
            in_specs=(pages, rows, *((pages, everywhere) if more else ())),
            out_specs=pages,
            check_vma=False,
        )
        return mapped(array, table, *more)


def _gathered(pages: jax.Array, table: jax.Array) -> jax.Array:
    pages_of_sequences = jnp.swapaxes(pages[table], 1, 2)
    batch, heads, count, size, width = pages_of_sequences.shape
    return pages_of_sequences.reshape(batch, heads, count * size, width)


def _scattered(
    pages: jax.Array, table: jax.Array, new: jax.Array, position: jax.Array
) -> jax.Array:
    size, batch = pages.shape[2], len(table)
    places = position + jnp.arange(new.shape[2])
    page = jnp.take_along_axis(table, jnp.broadcast_to(places // size, (batch, len(places))), 1)
    offset = jnp.broadcast_to(places % size, page.shape)
    rows = jnp.transpose(new, (0, 2, 1, 3)).astype(pages.dtype)
    return pages.at[page, :, offset].set(rows)
