"""Device meshes, and the replica groups that mesh axes stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from hespas.errors import ProgramError
from hespas.program.groups import FoldedGroups, ListedGroups, ReplicaGroups
from hespas.xla.mlir.text import (
    read_dense_integers,
    read_fields,
    read_mesh_axes,
    read_symbols,
    split_list,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Named axes, major first; ``device_ids`` is None where devices are numbered in order."""

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] | None = None

    @property
    def device_count(self) -> int:
        """The product of the axis sizes."""
        return prod(size for _, size in self.axes)


_LISTED_IDS = re.compile(r"device_ids\s*=\s*\[([\d, ]+)\]")
_DENSE_IDS = re.compile(r"device_ids\s*=\s*(dense<.*?> : tensor<[^>]*>)")
_SUB_AXIS = re.compile(r"\((\d+)\)(\d+)")


def read_mesh(text: str) -> Mesh:
    """Read ``#sdy.mesh<...>`` or ``#stablehlo.mesh<...>``.

    >>> read_mesh('#sdy.mesh<["a"=4, "b"=2]>').axes
    (('a', 4), ('b', 2))
    """
    axes = read_mesh_axes(text)
    listed, dense = _LISTED_IDS.search(text), _DENSE_IDS.search(text)
    if listed is not None:
        return Mesh(axes=axes, device_ids=tuple(map(int, listed[1].split(","))))
    if dense is not None:
        return Mesh(axes=axes, device_ids=read_dense_integers(dense[1])[1])
    return Mesh(axes=axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisPart:
    """``size`` of an axis, ``before`` devices apart from its major end."""

    name: str
    before: int
    size: int


def read_axis_groups(text: str, meshes: Mapping[str, Mesh]) -> ReplicaGroups:
    """Read ``#stablehlo.replica_group_mesh_axes<...>``: one group per position on the other axes.

    Raises `ProgramError` when the mesh or an axis is not defined.
    """
    fields = read_fields(text)
    mesh = _mesh_of(fields["mesh"], meshes)
    sizes = dict(mesh.axes)
    used: list[AxisPart] = []
    for reference in split_list(fields["axes"].strip("[]")):
        axis = read_fields(reference)
        name = axis["name"].strip('"')
        if name not in sizes:
            raise ProgramError(f"mesh axis {name!r} is not defined", hint=f"axes: {list(sizes)}")
        part = _SUB_AXIS.search(axis.get("sub_axis_info", ""))
        before, size = (int(part[1]), int(part[2])) if part else (1, sizes[name])
        used.append(AxisPart(name=name, before=before, size=size))
    return axis_groups(mesh, used)


def _mesh_of(text: str, meshes: Mapping[str, Mesh]) -> Mesh:
    if not text.startswith("@"):
        return read_mesh(text)
    name = read_symbols(text)[0]
    if name not in meshes:
        raise ProgramError(f"mesh @{name} is not defined")
    return meshes[name]


def axis_groups(mesh: Mesh, used: list[AxisPart]) -> ReplicaGroups:
    """Return one group for each position on the axes that are not ``used``."""
    parts = [part for name, size in mesh.axes for part in _split(name, size, used)]
    grouped = [parts.index(part) for part in used]
    others = [index for index in range(len(parts)) if index not in grouped]
    folded = FoldedGroups(
        dimensions=tuple(part.size for part in parts),
        permutation=(*others, *grouped),
        group_size=prod(part.size for part in used),
    )
    ids = mesh.device_ids
    if ids is None:
        return folded
    return ListedGroups(groups=tuple(tuple(ids[at] for at in row) for row in folded.listed()))


def _split(name: str, size: int, used: list[AxisPart]) -> list[AxisPart]:
    """Split an axis where a used part of it begins and ends."""
    cuts = {1, size}
    for part in used:
        if part.name == name:
            cuts |= {part.before, part.before * part.size}
    ordered = sorted(cuts)
    if len(ordered) == 1:
        return [AxisPart(name=name, before=1, size=1)]
    pairs = pairwise(ordered)
    return [AxisPart(name=name, before=low, size=high // low) for low, high in pairs]
