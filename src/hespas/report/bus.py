"""The bus bandwidth of collectives, and the most that a network lets a group of devices reach.

Bus bandwidth is what a device must send at least, over the time. Source: NVIDIA, nccl-tests,
doc/PERFORMANCE.md, for networks of one kind of link. Here a device has links along several
dimensions, and the limit is that of the narrowest cut: the devices that agree in the farther
dimensions, such as a node, have only their own links in these to exchange what the others need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import assert_never

from hespas.hardware.interconnect import Dimension, Dimensions, Shape, interconnect_of
from hespas.hardware.system import System
from hespas.tasks.graph import CommunicationKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus:
    """The dimensions of a network, nearest first, along which its devices are numbered."""

    dimensions: tuple[Dimension, ...]

    def used(self, groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the dimensions in which members of a group differ, the nearest is 0."""
        strides = self._strides()
        return tuple(
            number
            for number, (stride, each) in enumerate(zip(strides, self.dimensions, strict=True))
            if any(len({member // stride % each.size for member in one}) > 1 for one in groups)
        )

    def limit_bytes_per_s(
        self, kind: CommunicationKind | None, members: Sequence[int]
    ) -> float | None:
        """Return the most bus bandwidth that a group can reach; None where it is not known.

        Messages go from member to member, those of a permutation (``kind`` None) each on one link
        of a dimension. It is not known for groups that are no product of positions along the
        dimensions: their messages also take the links of other devices.
        """
        levels = [level for level in self._levels(kind, members) if level.members > 1]
        count = len(set(members))
        if kind is None:
            return min((level.link_bytes_per_s for level in levels), default=None)
        if not levels or prod(level.members for level in levels) != count:
            return None
        blocks, links, reduces = 1, 0.0, False
        limits: list[float] = []
        for level in reversed(levels):
            blocks *= level.members
            links += level.links * level.link_bytes_per_s
            reduces = reduces or level.reduces_in_switch
            share = _share(kind, count, blocks, reduces_in_switch=reduces)
            limits.append(share * links)
        return min(limits)

    def _strides(self) -> list[int]:
        sizes = [each.size for each in self.dimensions]
        return list(accumulate([1, *sizes[:-1]], int.__mul__)) if sizes else []

    def _levels(self, kind: CommunicationKind | None, members: Sequence[int]) -> Iterator[_Level]:
        for stride, each in zip(self._strides(), self.dimensions, strict=True):
            positions = [member // stride % each.size for member in members]
            along = len(set(positions))
            is_between = min(positions) < positions[0] < max(positions)
            from_both_sides = each.shape is Shape.LINE and kind in _ROOTED and is_between
            # The figures of a measured link are those of all links of a device together, or to one
            # other device where they are connected in pairs.
            is_whole = each.measured is not None and each.shape is not Shape.FULLY_CONNECTED
            links = 2 if from_both_sides else _links(each.shape, along)
            yield _Level(
                members=along,
                links=1 if is_whole else links,
                link_bytes_per_s=each.parameters.bandwidth_bytes_per_s,
                reduces_in_switch=each.parameters.reduces_in_switch,
            )


_ROOTED = {CommunicationKind.GATHER, CommunicationKind.SCATTER}
"""What the first member receives or sends alone: on a line, to both sides if others are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """A dimension as a group uses it: with how many positions, on how many links of a device."""

    members: int
    links: int
    link_bytes_per_s: float
    reduces_in_switch: bool


def bus_of(system: System, *, model: str) -> Bus | None:
    """Return the network as a model sees it; None where devices lie along no dimensions."""
    if model == "astra-sim":
        system = replace(system, interconnect=None)
    if system.interconnect is None and not system.dimensions:
        return None
    fabric = interconnect_of(system).fabric
    return Bus(dimensions=fabric.dimensions) if isinstance(fabric, Dimensions) else None


def sent_bytes(kind: CommunicationKind, members: int, size_bytes: int) -> float:
    """Return what a device must send at least in a collective, of so many bytes put in.

    In a gather or scatter it is what the one that has all must receive or send.

    >>> sent_bytes(CommunicationKind.ALL_REDUCE, 4, 1000)
    1500.0
    """
    match kind:
        case CommunicationKind.ALL_REDUCE:
            return 2 * (members - 1) / members * size_bytes
        case CommunicationKind.ALL_GATHER | CommunicationKind.GATHER:
            return float((members - 1) * size_bytes)
        case (
            CommunicationKind.REDUCE_SCATTER
            | CommunicationKind.REDUCE_SCATTER_BLOCK
            | CommunicationKind.ALL_TO_ALL
            | CommunicationKind.SCATTER
        ):
            return (members - 1) / members * size_bytes
        case _:
            return float(size_bytes)


def _links(shape: Shape, members: int) -> int:
    """Return on how many links a device sends to the other members along a dimension."""
    match shape:
        case Shape.SWITCH | Shape.FAT_TREE | Shape.LINE:
            return 1
        case Shape.RING:
            return 2
        case Shape.FULLY_CONNECTED:
            return members - 1
        case _:
            assert_never(shape)


def _share(kind: CommunicationKind, members: int, blocks: int, *, reduces_in_switch: bool) -> float:
    """Return the bus bandwidth for each byte/s of a member's links out of its block.

    All blocks together exchange at least ``blocks - 1`` times the data, twice to reduce it for
    all, or once each where switches add it up; all-to-all sends each byte by itself.
    """
    match kind:
        case CommunicationKind.ALL_REDUCE if reduces_in_switch:
            return 2 * (members - 1) / blocks
        case (
            CommunicationKind.ALL_REDUCE
            | CommunicationKind.ALL_GATHER
            | CommunicationKind.GATHER
            | CommunicationKind.REDUCE_SCATTER
            | CommunicationKind.REDUCE_SCATTER_BLOCK
            | CommunicationKind.SCATTER
        ):
            return (members - 1) / (blocks - 1)
        case CommunicationKind.ALL_TO_ALL:
            return (members - 1) / (members - members / blocks)
        case _:
            return members / blocks
