"""Rows that are packed for where they go, as many places for each, and unpacked on their way back.

What comes behind the places of a target is dropped.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Which choices go to which target: ``order`` sorts choices by it, ``counts`` is of each.

    Rows have as many choices each, side by side; a target has ``capacity`` places.
    """

    order: jax.Array
    counts: jax.Array
    choices: int
    capacity: int

    @classmethod
    def of(cls, chosen: jax.Array, *, targets: int, capacity_percent: int) -> Packing:
        """Return the packing of (rows, choices), each the number of a target.

        A target has ``capacity_percent`` of the places that it would need if all were chosen
        equally often.
        """
        order = jnp.argsort(chosen.reshape(-1), stable=True)
        counts = jnp.bincount(chosen.reshape(-1), length=targets)
        share = len(order) * capacity_percent / (100 * targets)
        return cls(
            order=order, counts=counts, choices=chosen.shape[-1], capacity=max(1, round(share))
        )

    def packed(self, rows: jax.Array) -> jax.Array:
        """Return (targets, places, ...) of rows, one for each choice of it; zeros where none is."""
        return self._placed(rows, self._picked() // self.choices)

    def packed_choices(self, values: jax.Array) -> jax.Array:
        """Return (targets, places, ...) of what choices have, each its own."""
        return self._placed(values, self._picked())

    def _picked(self) -> jax.Array:
        places = self._starts[:, None] + jnp.arange(self.capacity)[None]
        return self.order[jnp.minimum(places, len(self.order) - 1)]

    def _placed(self, values: jax.Array, at: jax.Array) -> jax.Array:
        taken = jnp.arange(self.capacity)[None] < self.counts[:, None]
        return values[at] * taken[..., None].astype(values.dtype)

    def unpacked(self, packed: jax.Array) -> jax.Array:
        """Return the row of each choice of (targets, places, ...); zeros for what is dropped."""
        rank = (
            jnp.zeros_like(self.order)
            .at[self.order]
            .set(jnp.arange(len(self.order), dtype=self.order.dtype))
        )
        target = jnp.searchsorted(jnp.cumsum(self.counts), rank, side="right")
        at = rank - self._starts[target]
        row = packed[target, jnp.minimum(at, self.capacity - 1)]
        return row * (at < self.capacity)[:, None].astype(row.dtype)

    @property
    def _starts(self) -> jax.Array:
        return jnp.cumsum(self.counts) - self.counts
