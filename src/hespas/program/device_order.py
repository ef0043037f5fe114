"""Which device runs each partition of a program, where that is not the one of its number.

JAX lays out the axes of a mesh over devices as the user orders them. A compiler numbers partitions
by the mesh, the last axis fastest, and the machine numbers its devices by where they stand, those
of a slice, or a node, together. The two differ where an axis between slices is not the slowest of
the mesh. Groups of a program are of partitions; on the network, their devices count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from math import prod

import msgspec

from hespas.errors import ProgramError
from hespas.program.groups import FoldedGroups

ORDER_KEY = "hespas.device_order"
"""The name of the module's attribute that keeps the order."""

_ORDER = re.compile(r"\[(\d+(?:,\d+)*)\]T\((\d+(?:,\d+)*)\)")


class DeviceOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of partitions: their numbers folded to ``dimensions``, then transposed.

    >>> order = DeviceOrder(dimensions=(2, 3), permutation=(1, 0))
    >>> print(order, order.devices())
    [2,3]T(1,0) (0, 3, 1, 4, 2, 5)
    """

    dimensions: tuple[int, ...]
    permutation: tuple[int, ...]

    def __post_init__(self) -> None:
        if sorted(self.permutation) != [*range(len(self.dimensions))] or self.count < 1:
            raise ProgramError(f"{self} is no order of devices")

    def __str__(self) -> str:
        shape, axes = (",".join(map(str, each)) for each in (self.dimensions, self.permutation))
        return f"[{shape}]T({axes})"

    @property
    def count(self) -> int:
        """How many devices there are."""
        return prod(self.dimensions)

    @property
    def is_ascending(self) -> bool:
        """Whether every partition runs on the device of its number."""
        longer = [axis for axis in self.permutation if self.dimensions[axis] > 1]
        return longer == sorted(longer)

    def devices(self) -> tuple[int, ...]:
        """Return the device of each partition, by the partition's number."""
        return _devices(self)


@lru_cache(maxsize=16)
def _devices(order: DeviceOrder) -> tuple[int, ...]:
    shape, axes = order.dimensions, order.permutation
    folded = FoldedGroups(dimensions=shape, permutation=axes, group_size=1)
    return tuple([device for (device,) in folded.listed()])


def on_devices(
    groups: Iterable[tuple[int, ...]], order: DeviceOrder | None
) -> tuple[tuple[int, ...], ...]:
    """Return groups of partitions as those of the devices that run them.

    >>> on_devices(((0, 1), (2, 3)), DeviceOrder(dimensions=(2, 2), permutation=(1, 0)))
    ((0, 2), (1, 3))
    """
    if order is None:
        return tuple(groups)
    devices = order.devices()
    return tuple([tuple([devices[each] for each in group]) for group in groups])


def read_order(text: str) -> DeviceOrder | None:
    """Return the order that a text says; None for an empty one and the order of numbers.

    Raises `ProgramError` for any other text: without it the devices of groups are not known.

    >>> read_order("[2,4]T(1,0)").devices()
    (0, 4, 1, 5, 2, 6, 3, 7)
    """
    if not text:
        return None
    match = _ORDER.fullmatch(text)
    if match is None:
        raise ProgramError(
            f"{ORDER_KEY} is {text[:80]!r}", hint="write it as in [2,4]T(1,0), or drop it"
        )
    sizes, axes = (tuple(map(int, part.split(","))) for part in match.groups())
    order = DeviceOrder(dimensions=sizes, permutation=axes)
    return None if order.is_ascending else order
