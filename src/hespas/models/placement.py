"""Which network dimensions the axes of a mesh lie on.

Devices are numbered along the dimensions of a network, the nearest one (0) first; a mesh numbers
them along its axes, the last one first. So the order of the axes says which dimension each uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, option, refuse
from hespas.models.model import MeshAxes

Place = tuple[tuple[str, tuple[int, ...]], ...]
"""Axes with the dimensions of each, those that change fastest first."""

_PLACED = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\d{1,2}(?:\+\d{1,2})*)\s*")
ORDER = ("pipe", "data", "fsdp", "expert", "context", "sequence", "tp")
"""From the axis that is farthest apart to the nearest one. Source: Megatron-Core, whose default
order of ranks is tp-cp-ep-dp-pp, the first fastest."""


def parse_place(text: str) -> Place:
    """Read axes with their dimensions.

    Raises `ConfigError` for other texts.

    >>> parse_place("tp=0,fsdp=0+1,pipe=1")
    (('tp', (0,)), ('fsdp', (0, 1)), ('pipe', (1,)))
    """
    matches = [_PLACED.fullmatch(part) for part in text.split(",")]
    refuse(
        not all(matches),
        f"{option('place')} {text!r} is not AXIS=DIMENSION,..",
        "write it as in tp=0,fsdp=0+1,pipe=1",
    )
    place: list[tuple[str, tuple[int, ...]]] = []
    for match in filter(None, matches):
        axis, dimensions = match[1], tuple(map(int, match[2].split("+")))
        if dimensions != tuple(range(dimensions[0], dimensions[0] + len(dimensions))):
            raise ConfigError(
                f"{option('place')} {axis}={match[2]} leaves dimensions out",
                hint="name neighbours in ascending order, as in 0+1",
            )
        refuse(axis in dict(place), f"{option('place')} names {axis} twice", "keep one")
        place.append((axis, dimensions))
    return tuple(place)


def in_default_order(mesh: MeshAxes) -> MeshAxes:
    """Order a mesh's axes as frameworks do; others are outermost.

    >>> str(in_default_order(MeshAxes(axes=(("tp", 8), ("pipe", 4), ("fsdp", 2)))))
    'pipe=4,fsdp=2,tp=8'
    """
    rank = {axis: number for number, axis in enumerate(ORDER)}
    return MeshAxes(axes=tuple(sorted(mesh.axes, key=lambda axis: rank.get(axis[0], -1))))


def placed(mesh: MeshAxes, place: Place, dimensions: Sequence[int]) -> MeshAxes:
    """Order a mesh's axes so that they lie on ``place``.

    ``dimensions`` are the sizes of those of the network, the nearest first. Raises `ConfigError`
    for axes that don't fit them.

    >>> mesh = MeshAxes(axes=(("tp", 4), ("fsdp", 8), ("pipe", 4)))
    >>> str(placed(mesh, parse_place("tp=0,fsdp=0+1,pipe=1"), (8, 16)))
    'pipe=4,fsdp=8,tp=4'
    """
    dimensions_of = dict(place)
    for axis in dimensions_of:
        if axis not in mesh.names:
            raise ConfigError(
                f"{option('place')} names {axis}, which the mesh {mesh} has not",
                hint=suggestion(axis, mesh.names),
            )
    missing = [axis for axis in mesh.names if axis not in dimensions_of]
    if missing:
        raise ConfigError(
            f"{option('place')} does not say where {missing[0]} of the mesh {mesh} lies",
            hint=f"add {missing[0]}=N, with N from 0 to {len(dimensions) - 1}",
        )
    for axis, used in place:
        if used[-1] >= len(dimensions):
            raise ConfigError(
                f"{option('place')} {axis}={used[-1]}: the network has {len(dimensions)} "
                f"dimension{'s' if len(dimensions) > 1 else ''}",
                hint=f"give one from 0 to {len(dimensions) - 1}",
            )
    ordered = sorted(place, key=lambda each: (each[1][0], each[1][-1]))
    sizes = dict(mesh.axes)
    for problem in _problems([(axis, sizes[axis], used) for axis, used in ordered], dimensions):
        raise ConfigError(f"{option('place')}: {problem}", hint=_fitting_hint(dimensions))
    return MeshAxes(axes=tuple((axis, sizes[axis]) for axis, _ in reversed(ordered)))


def _problems(
    ordered: Sequence[tuple[str, int, tuple[int, ...]]], dimensions: Sequence[int]
) -> Iterator[str]:
    stride = 1
    for axis, size, used in ordered:
        begins, ends = prod(dimensions[: used[0]]), prod(dimensions[: used[-1] + 1])
        where = "+".join(map(str, used))
        devices = prod(dimensions[number] for number in used)
        if stride < begins:
            yield _unfilled(used[0] - 1, stride, dimensions)
        elif ends % (stride * size):
            together = "" if stride == begins else " together with what lies there already"
            yield (f"{axis}={size} does not fit dimension {where} of {devices} devices{together}")
        stride *= size
    if stride != prod(dimensions):
        yield _unfilled(len(dimensions) - 1, stride, dimensions)


def _unfilled(dimension: int, stride: int, dimensions: Sequence[int]) -> str:
    inside = stride // prod(dimensions[:dimension]) or 1
    return (
        f"dimension {dimension} has {dimensions[dimension]} devices, and the axes that lie there "
        f"have {inside}"
    )


def _fitting_hint(dimensions: Sequence[int]) -> str:
    listed = ", ".join(f"{number}: {size}" for number, size in enumerate(dimensions))
    return f"the dimensions have {listed} devices; let an axis span two, as in fsdp=0+1"
