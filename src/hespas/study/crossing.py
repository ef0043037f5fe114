"""Network dimensions that messages of a group cross."""

from __future__ import annotations

from collections.abc import Sequence

from hespas.base.frozen import frozen
from hespas.hardware.interconnect import Dimension
from hespas.hardware.system import System, interconnect_of
from hespas.models.model import MeshAxes


@frozen
class Crossed:
    """A network dimension that a group's messages cross.

    ``number`` counts from the nearest dimension; ``nearer`` devices of the group are on this side.
    """

    number: int
    dimension: Dimension
    nearer: int

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """The bandwidth of a device's link, in one direction."""
        return self.dimension.bandwidth_bytes_per_s


def dimensions_of(system: System | None) -> tuple[Dimension, ...]:
    """Return the dimensions of a system's network, nearest first."""
    return () if system is None else interconnect_of(system).dimensions


def crossed_by(
    mesh: MeshAxes, system: System | None, axes: Sequence[str]
) -> tuple[int, tuple[Crossed, ...]]:
    """Return a group's number of devices, and what it crosses.

    >>> from hespas.study.space import system_named
    >>> mesh = MeshAxes(axes=(("data", 4), ("tp", 16)))
    >>> devices, crossed = crossed_by(mesh, system_named("64xH100_80GB"), ("tp",))
    >>> devices, [(dimension.number, dimension.nearer) for dimension in crossed]
    (16, [(0, 1), (1, 8)])
    """
    members, stride = [0], 1
    for axis, size in reversed(mesh.axes):
        if axis in axes:
            members = [member + index * stride for index in range(size) for member in members]
        stride *= size
    reach, crossed = 1, list[Crossed]()
    for number, dimension in enumerate(dimensions_of(system)):
        nearer = sum(member < reach for member in members)
        reach *= dimension.size
        if sum(member < reach for member in members) > nearer:
            crossed.append(Crossed(number=number, dimension=dimension, nearer=nearer))
    return len(members), tuple(crossed)
