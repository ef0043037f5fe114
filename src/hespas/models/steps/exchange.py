"""Send tokens to the devices of their experts, and back."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hespas.base.frozen import frozen
from hespas.models.steps.products import ACTIVATION_SCALE, in_8_bits


@frozen
class Exchange:
    """An all-to-all of (targets, places, ...), and back.

    Every device along ``axes`` sends each target its rows, and gets those of all others for its own
    targets. ``groups`` are the numbers along them of those that exchange; None where all do. Where
    a device is one target alone, ``is_even``, places stay apart by where they came from. ``sorts``
    says that a kernel of its own brings what arrived into the order of its targets, and back:
    ``sort_chunks_by_idxs`` of megatron-core 0.16.1, transformer/moe/token_dispatcher.py.
    """

    axes: tuple[str, ...]
    devices: int
    groups: tuple[tuple[int, ...], ...] | None = None
    is_even: bool = False
    sorts: bool = False

    def there(self, x: jax.Array) -> jax.Array:
        """Send rows to the targets' devices."""
        if not self.sorts:
            return self._exchanged(x, split=0, joined=0 if self.is_even else 1)
        arrived = self._exchanged(x, split=0, joined=0)
        chunks: jax.Array = _sorted(self._chunks(len(x)), arrived)
        return chunks.reshape(len(x) // self.devices, -1, *x.shape[2:])

    def back(self, x: jax.Array) -> jax.Array:
        """Send rows back to where they came from."""
        if not self.sorts:
            return self._exchanged(x, split=0 if self.is_even else 1, joined=0)
        chunks = x.reshape(len(x) * self.devices, -1, *x.shape[2:])
        order = tuple(np.argsort(self._chunks(len(chunks))).tolist())
        return self._exchanged(_sorted(order, chunks), split=0, joined=0)

    def _chunks(self, count: int) -> tuple[int, ...]:
        """Order arrived chunks by target, then by source."""
        return tuple(np.arange(count).reshape(self.devices, -1).T.ravel().tolist())

    def _exchanged(self, x: jax.Array, *, split: int, joined: int) -> jax.Array:
        if self.devices == 1:
            return x
        return lax.all_to_all(
            x,
            self.axes,
            split_axis=split,
            concat_axis=joined,
            axis_index_groups=self.groups,
            tiled=True,
        )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sorted(order: tuple[int, ...], chunks: jax.Array) -> jax.Array:
    """Return chunks in an order, copied by a kernel."""
    return chunks.at[np.asarray(order)].get(mode="promise_in_bounds", unique_indices=True)


def _sorted_forward(order: tuple[int, ...], chunks: jax.Array) -> tuple[jax.Array, None]:
    return _sorted(order, chunks), None


def _sorted_backward(order: tuple[int, ...], _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (_sorted(tuple(np.argsort(order).tolist()), gradient),)


_sorted.defvjp(_sorted_forward, _sorted_backward)


def sent_to_experts(exchange: Exchange, dtype: str, x: jax.Array) -> jax.Array:
    """Send rows to experts, in 8 bits for f8.

    Gradients return unrounded.
    """
    return _sent((exchange, True), x) if dtype == "f8" else exchange.there(x)


def sent_back(exchange: Exchange, dtype: str, x: jax.Array) -> jax.Array:
    """Send rows back from experts."""
    return _sent((exchange, False), x) if dtype == "f8" else exchange.back(x)


_Way = tuple[Exchange, bool]
"""Between which devices rows go, and whether to experts."""


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sent(way: _Way, x: jax.Array) -> jax.Array:
    """Send rows to experts in 8 bits, or back unrounded.

    Gradients go the other way.
    """
    exchange, is_there = way
    if not is_there:
        return exchange.back(x)
    return exchange.there(in_8_bits(x)).astype(x.dtype) * jnp.asarray(ACTIVATION_SCALE, x.dtype)


def _sent_forward(way: _Way, x: jax.Array) -> tuple[jax.Array, None]:
    return _sent(way, x), None


def _sent_backward(way: _Way, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (_sent((way[0], not way[1]), gradient),)


_sent.defvjp(_sent_forward, _sent_backward)


@frozen
class Packing:
    """Which choices go to which target, in order.

    Each target has a count of them. Rows have as many choices each, side by side; a target has
    ``capacity`` places. The targets are one of ``parts`` equal ones, each of which gets as many
    choices; choices of other parts have numbers beyond the targets'.
    """

    order: jax.Array
    counts: jax.Array
    choices: int
    capacity: int
    parts: int = 1

    @classmethod
    def of(
        cls, chosen: jax.Array, *, targets: int, capacity_percent: int, parts: int = 1
    ) -> Packing:
        """Return the packing of chosen targets, (rows, choices).

        A target has ``capacity_percent`` of the places that it would need if all were chosen
        equally often.
        """
        order = jnp.argsort(chosen.reshape(-1), stable=True)
        counts = jnp.bincount(chosen.reshape(-1), length=targets)
        share = len(order) * capacity_percent / (100 * targets * parts)
        return cls(
            order=order,
            counts=counts,
            choices=chosen.shape[-1],
            capacity=max(1, round(share)),
            parts=parts,
        )

    def packed(self, rows: jax.Array) -> jax.Array:
        """Scatter rows to (targets, places, ...), one per choice."""
        return self._at_places(rows, self._choice_of_place() // self.choices)

    def packed_choices(self, values: jax.Array) -> jax.Array:
        """Scatter each choice's values to (targets, places, ...)."""
        return self._at_places(values, self._choice_of_place())

    def _choice_of_place(self) -> jax.Array:
        places = self._starts[:, None] + jnp.arange(self.capacity)[None]
        return self.order[jnp.minimum(places, len(self.order) - 1)]

    def _at_places(self, values: jax.Array, places: jax.Array) -> jax.Array:
        is_filled = jnp.arange(self.capacity)[None] < self.counts[:, None]
        return values[places] * is_filled[..., None].astype(values.dtype)

    def unpacked(self, packed: jax.Array) -> jax.Array:
        """Gather each choice's row from (targets, places, ...)."""
        rank = (
            jnp.zeros_like(self.order)
            .at[self.order]
            .set(jnp.arange(len(self.order), dtype=self.order.dtype))
        )
        target = jnp.searchsorted(jnp.cumsum(self.counts), rank, side="right")
        place = rank - self._starts[target]
        row = packed[target, jnp.minimum(place, self.capacity - 1)]
        return row * (place < self.capacity)[:, None].astype(row.dtype)

    @property
    def _starts(self) -> jax.Array:
        return jnp.cumsum(self.counts) - self.counts
