"""A device mesh as people write it: ``fsdp=4,tp=2``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from hespas.errors import ConfigError

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh

_AXIS = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\d+)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxes:
    """Named axes with their sizes, major first: neighbours along the last have adjacent ids."""

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) < len(names):
            raise ConfigError(f"mesh {self} names an axis twice")
        for name, size in self.axes:
            if size < 1:
                raise ConfigError(f"mesh axis {name} is {size}", hint="give 1 or more")

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)

    @property
    def device_count(self) -> int:
        """The product of the axis sizes."""
        return prod(size for _, size in self.axes)

    def size(self, *names: str) -> int:
        """Return the product of the sizes of these axes; one that is not there counts 1."""
        sizes = dict(self.axes)
        return prod(sizes.get(name, 1) for name in names)

    def abstract(self) -> AbstractMesh:
        """Return the mesh as JAX takes it, without devices."""
        from jax.sharding import AbstractMesh, AxisType  # noqa: PLC0415 - JAX is slow to import

        sizes = tuple(size for _, size in self.axes)
        names = tuple(name for name, _ in self.axes)
        return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))


def parse_mesh(text: str) -> MeshAxes:
    """Read a mesh.

    Raises `ConfigError` for what is none.

    >>> parse_mesh("data=2,fsdp=4").device_count
    8
    """
    found = [_AXIS.fullmatch(part) for part in text.split(",")]
    if not all(found):
        raise ConfigError(f"mesh {text!r} is not AXIS=SIZE,..", hint="write it as in fsdp=4,tp=2")
    return MeshAxes(axes=tuple((match[1], int(match[2])) for match in found if match))
