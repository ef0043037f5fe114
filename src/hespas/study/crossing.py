"""Which dimensions of a network the devices of a group send across."""

from __future__ import annotations

from collections.abc import Sequence

from hespas.base.frozen import frozen
from hespas.hardware.interconnect import Dimension
from hespas.hardware.system import System, interconnect_of
from hespas.models.model import MeshAxes


@frozen
class Crossed:
    """A dimension of a network by its ``number``, which messages of a group cross.

    ``nearer`` devices of the group are on the same side of it.
    """

    number: int
    dimension: Dimension
    nearer: int

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """One direction of a device's link."""
        return self.dimension.bandwidth_bytes_per_s


def dimensions_of(system: System | None) -> tuple[Dimension, ...]:
    """Return the dimensions of a system's network, the nearest first; none without a network."""
    return () if system is None else interconnect_of(system).dimensions


def crossed_by(
    mesh: MeshAxes, system: System | None, axes: Sequence[str]
) -> tuple[int, tuple[Crossed, ...]]:
    """Return how many devices a group along ``axes`` has, and what it crosses.

    >>> from hespas.study.space import system_named
    >>> mesh = MeshAxes(axes=(("data", 4), ("tp", 16)))
    >>> devices, crossed = crossed_by(mesh, system_named("64xH100_80GB"), ("tp",))
    >>> devices, [(each.number, each.nearer) for each in crossed]
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
