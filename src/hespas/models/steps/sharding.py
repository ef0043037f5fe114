"""Arrays sharded by named dimensions; element types by name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from hespas.base.frozen import frozen
from hespas.models.division import Division
from hespas.models.model import CHOICES, MeshAxes, one_of

_TYPES: dict[str, Any] = {"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32}


def dtype_named(name: str) -> Any:
    """Return JAX's type for a name; `ConfigError` for another.

    >>> dtype_named("f16").dtype
    dtype('float16')
    """
    return _TYPES[one_of("dtype", name, CHOICES["dtype"])]


@frozen
class Divided(Division):
    """A division as JAX takes it."""

    def spec(self, *dimensions: str | None) -> PartitionSpec:
        """Return the axes of each dimension.

        An axis divides the first of the dimensions that name it.
        """
        parts = self.axes_of(*dimensions)
        return PartitionSpec(*[part[0] if len(part) == 1 else part or None for part in parts])

    def used(self, *dimensions: str | None) -> set[str]:
        """Return the mesh axes that divide these dimensions."""
        return {axis for name in dimensions for axis in self.present(name)}

    def without(self, axis: str) -> Divided:
        """Return each device's part along an axis of batches."""
        parts = self.mesh.size(axis)
        other_axes = tuple(axis_size for axis_size in self.mesh.axes if axis_size[0] != axis)
        return Divided(
            mesh=MeshAxes(axes=other_axes),
            sizes={**self.sizes, "batch": self.sizes["batch"] // parts},
            axes=self.axes,
        )

    def array(self, *dimensions: str, dtype: Any) -> jax.ShapeDtypeStruct:
        """Return an abstract array with these dimensions."""
        shape = tuple(self.sizes[name] for name in dimensions)
        sharding = NamedSharding(self.mesh.abstract(), self.spec(*dimensions))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def constrain(self, value: jax.Array, *dimensions: str | None) -> jax.Array:
        """Ask for a value divided by these dimensions."""
        return jax.lax.with_sharding_constraint(value, self.spec(*dimensions))
