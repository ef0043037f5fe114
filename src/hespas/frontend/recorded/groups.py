"""Derive the groups of all devices from the recorded rank's group."""

from __future__ import annotations

from itertools import pairwise, product

from hespas.errors import UnsupportedError
from hespas.program.groups import FoldedGroups, ReplicaGroups


def groups_of_all(ranks: tuple[int, ...], *, world_size: int) -> ReplicaGroups:
    """Return the groups of all ranks; ``ranks`` are the recorded rank's.

    Ranks of a mesh are numbered with the last axis fastest, so a group along axes has ranks at
    equal distances, or rows of such ranks at equal distances: all other groups have the same
    distances from another first rank. Raises `UnsupportedError` for a group without this pattern.

    >>> groups_of_all((1, 3), world_size=8).listed()
    ((0, 2), (1, 3), (4, 6), (5, 7))
    """
    axes = _axes(sorted(ranks), world_size)
    if axes is None:
        raise UnsupportedError(
            f"the group of ranks {list(ranks)} is not one of equal groups of {world_size}",
            hint="make groups along the axes of a device mesh",
        )
    sizes = tuple(size for size, _ in axes)
    used = [number for number, (_, is_used) in enumerate(axes) if is_used]
    unused = [number for number in range(len(axes)) if number not in used]
    return FoldedGroups(dimensions=sizes, permutation=(*unused, *used), group_size=len(set(ranks)))


def _axes(ranks: list[int], world_size: int) -> list[tuple[int, bool]] | None:
    """Return axes of the world, major first, as (size, used); or None.

    The group lies along the used ones.

    The distance of neighbours is the stride of the fastest used axis; the first larger distance
    ends it.
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
