"""Groups of devices, and the device of each partition.

A program lists groups or folds an array of devices; both forms are kept, because the folded one is
compact for a million devices.

JAX lays out the axes of a mesh over devices as the user orders them. A compiler numbers partitions
by the mesh, the last axis fastest; the machine numbers the devices of a slice, or a node, together.
The two differ where an axis between slices is not the slowest of the mesh. Groups of a program are
of partitions; on the network, their devices count (`DeviceOrder`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from itertools import chain, pairwise, product
from math import prod

import msgspec

from hespas.base.figures import MOST_DEVICES
from hespas.errors import ProgramError, UnsupportedError, option


class GroupMode(Enum):
    """The meaning of the numbers in a replica group.

    Source: the StableHLO specification, section "Process groups".
    """

    CROSS_REPLICA = "cross_replica"
    CROSS_PARTITION = "cross_partition"
    CROSS_REPLICA_AND_PARTITION = "cross_replica_and_partition"
    FLATTENED_IDS = "flattened_ids"


class ListedGroups(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """Groups written out; an empty list means all devices."""

    groups: tuple[tuple[int, ...], ...]

    @property
    def group_size(self) -> int:
        """The size of the largest group; 0 for all devices."""
        return max(map(len, self.groups), default=0)

    def listed(self) -> tuple[tuple[int, ...], ...]:
        """Return the groups, each a tuple of numbers."""
        return self.groups


class FoldedGroups(msgspec.Struct, frozen=True, kw_only=True):
    """0..N-1 folded to ``dimensions``, transposed by ``permutation``, cut in rows.

    >>> FoldedGroups(dimensions=(4, 2), permutation=(1, 0), group_size=4).listed()
    ((0, 2, 4, 6), (1, 3, 5, 7))
    """

    dimensions: tuple[int, ...]
    permutation: tuple[int, ...]
    group_size: int

    def __post_init__(self) -> None:
        if prod(self.dimensions) > MOST_DEVICES:
            shape = "x".join(map(str, self.dimensions))
            message = f"the replica groups fold {shape} devices"
            raise ProgramError(message, hint=f"use at most {MOST_DEVICES}")
        is_order = sorted(self.permutation) == list(range(len(self.dimensions)))
        is_divided = self.group_size > 0 and prod(self.dimensions) % self.group_size == 0
        if min(self.dimensions, default=1) < 1 or not is_order or not is_divided:
            raise ProgramError(
                f"replica groups of {self.group_size} don't divide devices folded to "
                f"{self.dimensions} and transposed by {self.permutation}"
            )

    def listed(self) -> tuple[tuple[int, ...], ...]:
        """Return the groups, each a tuple of numbers."""
        strides = [prod(self.dimensions[axis + 1 :]) for axis in range(len(self.dimensions))]
        order = [0]
        for axis in self.permutation:
            steps = [strides[axis] * index for index in range(self.dimensions[axis])]
            order = [number + step for number in order for step in steps]
        size = self.group_size
        return tuple(tuple(order[start : start + size]) for start in range(0, len(order), size))


def groups_along(
    axes: Sequence[tuple[str, int]], names: Collection[str]
) -> tuple[tuple[int, ...], ...]:
    """Return the groups of devices along mesh axes.

    The devices of a group differ in their indices along the axes ``names`` only. The last axis
    numbers devices fastest.

    >>> groups_along((("data", 2), ("tp", 2)), ("data",))
    ((0, 2), (1, 3))
    """
    used = [number for number, (name, _) in enumerate(axes) if name in names]
    return folded_along([size for _, size in axes], used).listed()


def folded_along(sizes: Sequence[int], used: Sequence[int]) -> FoldedGroups:
    """Return a group per position on the unused axes."""
    unused = [axis for axis in range(len(sizes)) if axis not in used]
    return FoldedGroups(
        dimensions=tuple(sizes),
        permutation=(*unused, *used),
        group_size=prod(sizes[axis] for axis in used),
    )


ReplicaGroups = ListedGroups | FoldedGroups


@lru_cache(maxsize=256)
def device_groups(
    groups: ReplicaGroups, mode: GroupMode, *, replicas: int, partitions: int
) -> tuple[tuple[int, ...], ...]:
    """Return the groups as device numbers.

    A device's number is ``replica * partitions + partition``. Raises `ProgramError` if a number
    lies outside the program or is in two groups. Source: the StableHLO specification, section
    "Process groups".

    >>> listed = ListedGroups(groups=((0, 1),))
    >>> device_groups(listed, GroupMode.CROSS_REPLICA, replicas=2, partitions=2)
    ((0, 2), (1, 3))
    """
    listed = groups.listed()
    match mode:
        case GroupMode.FLATTENED_IDS:
            resolved = listed or (tuple(range(replicas * partitions)),)
        case GroupMode.CROSS_REPLICA:
            rows = listed or (tuple(range(replicas)),)
            resolved = tuple(
                tuple(replica * partitions + partition for replica in row)
                for row in rows
                for partition in range(partitions)
            )
        case GroupMode.CROSS_PARTITION:
            rows = listed or (tuple(range(partitions)),)
            resolved = tuple(
                tuple(replica * partitions + partition for partition in row)
                for replica in range(replicas)
                for row in rows
            )
        case GroupMode.CROSS_REPLICA_AND_PARTITION:
            rows = listed or (tuple(range(replicas)),)
            resolved = tuple(
                tuple(r * partitions + partition for partition in range(partitions) for r in row)
                for row in rows
            )
    _check_devices(resolved, replicas * partitions)
    return resolved


def _check_devices(groups: tuple[tuple[int, ...], ...], device_count: int) -> None:
    devices = [*chain.from_iterable(groups)]
    is_inside = min(devices, default=0) >= 0 and max(devices, default=-1) < device_count
    if is_inside and len({*devices}) == len(devices):
        return
    seen: set[int] = set()
    for group in groups:
        for device in group:
            if not 0 <= device < device_count:
                raise ProgramError(
                    f"replica group {list(group)} names device {device}, but the program has "
                    f"{device_count}",
                    hint=f"give the right number with {option('devices')}, or correct the groups",
                )
            if device in seen:
                raise ProgramError(f"device {device} is in two replica groups")
            seen.add(device)


ORDER_KEY = "hespas.device_order"
"""The name of the module's attribute that keeps the order."""

_ORDER = re.compile(r"\[(\d+(?:,\d+)*)\]T\((\d+(?:,\d+)*)\)")


class DeviceOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The device of each partition.

    Numbers are folded to ``dimensions`` and transposed by ``permutation``.

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
        shape, axes = (
            ",".join(map(str, numbers)) for numbers in (self.dimensions, self.permutation)
        )
        return f"[{shape}]T({axes})"

    @property
    def count(self) -> int:
        """The number of devices."""
        return prod(self.dimensions)

    @property
    def is_ascending(self) -> bool:
        """Whether every partition runs on the device with its number."""
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
    """Map groups of partitions to the devices that run them.

    >>> on_devices(((0, 1), (2, 3)), DeviceOrder(dimensions=(2, 2), permutation=(1, 0)))
    ((0, 2), (1, 3))
    """
    if order is None:
        return tuple(groups)
    devices = order.devices()
    return tuple([tuple([devices[partition] for partition in group]) for group in groups])


def read_order(text: str) -> DeviceOrder | None:
    """Parse a device order; None if empty or ascending.

    Raises `ProgramError` for any other text, because the devices of groups would be unknown.

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


def groups_of_all(ranks: tuple[int, ...], *, world_size: int) -> ReplicaGroups:
    """Return the groups of all ranks from one group.

    ``ranks`` is the recorded rank's group. Ranks of a mesh are numbered with the last axis fastest,
    so a group along axes has ranks at equal distances, or rows of such ranks at equal distances:
    all other groups have the same distances from another first rank. Raises `UnsupportedError` for
    a group without this pattern.

    >>> groups_of_all((1, 3), world_size=8).listed()
    ((0, 2), (1, 3), (4, 6), (5, 7))
    """
    axes = _axes(sorted(ranks), world_size)
    if axes is None:
        raise UnsupportedError(
            f"the group of ranks {list(ranks)} is not one of equal groups of {world_size}",
            hint="make groups along the axes of a device mesh",
        )
    used = [axis for axis, (_, is_used) in enumerate(axes) if is_used]
    return folded_along([size for size, _ in axes], used)


def _axes(ranks: list[int], world_size: int) -> list[tuple[int, bool]] | None:
    """Return the world's axes as (size, used), or None.

    They stand major first; the group lies along the used ones. The distance of neighbours is the
    stride of the fastest used axis; the first larger distance ends it.
    """
    axes: list[tuple[int, bool]] = []
    covered, offsets = 1, [rank - ranks[0] for rank in ranks]
    while len(offsets) > 1:
        stride = offsets[1]
        size = next(
            (n for n, (a, b) in enumerate(pairwise(offsets), 1) if b - a != stride), len(offsets)
        )
        if stride % covered or len(offsets) % size:
            return None
        axes += [(stride // covered, False), (size, True)]
        covered, offsets = stride * size, offsets[::size]
    if world_size % covered or ranks[-1] >= world_size:
        return None
    axes.append((world_size // covered, False))
    axes = [axis for axis in reversed(axes) if axis[0] > 1 or axis[1]]
    return axes if _members(axes, ranks[0]) == ranks else None


def _members(axes: list[tuple[int, bool]], first: int) -> list[int]:
    """Return the group of ``first`` along the used axes."""
    base, stride, offsets = 0, 1, [range(1)]
    for size, is_used in reversed(axes):
        if is_used:
            offsets.append(range(0, size * stride, stride))
        else:
            base += first // stride % size * stride
        stride *= size
    return sorted(base + sum(combination) for combination in product(*offsets))
