"""The members of groups, as arrays, and in lines along the dimensions of the network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from hespas.hardware.interconnect import Dimensions, Fabric, Shape
from hespas.simulate.flow.patterns import Form, Pattern, ends

if TYPE_CHECKING:
    from hespas.simulate.flow.ways import Integers


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """A group of devices: ``members`` in the order of its list.

    ``number`` tells it from others. ``fabric`` is what they are numbered along.
    """

    number: int
    members: Integers
    fabric: Fabric

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.members)

    @cached_property
    def lines(self) -> dict[int, Integers]:
        """The positions of members in lines, a row each, by dimension; see `positions_in_lines`."""
        return positions_in_lines(self.members, self.fabric)


def positions_in_lines(members: Integers, fabric: Fabric) -> dict[int, Integers]:
    """Return the positions of members along each dimension that they differ in, a row a line.

    Empty unless the members fill a box: every combination of their coordinates.
    """
    import numpy as np  # noqa: PLC0415 - numpy takes 60 ms to import

    if not isinstance(fabric, Dimensions):
        return {}
    coordinates: dict[int, Integers] = {}
    rest = members
    for index, dimension in enumerate(fabric.dimensions):
        # Seen from the first member, so that alike groups are alike wherever they are.
        own = (rest - rest[0]) % dimension.size
        if own.any():
            coordinates[index] = own
        rest = rest // dimension.size
    sizes = {index: len(np.unique(own)) for index, own in coordinates.items()}
    if prod(sizes.values()) != len(members):
        return {}
    lines: dict[int, Integers] = {}
    for index, size in sizes.items():
        others = [own for other, own in coordinates.items() if other != index]
        order = np.lexsort((coordinates[index], *others))
        lines[index] = order.reshape(-1, size)
    return lines


def simplest(pattern: Pattern, group: Group) -> tuple[Pattern, int]:
    """Return a pattern that crosses the same links, and how much less often it does.

    Through a switch, everyone's message to any one other crosses everyone's two wires once.
    """
    fabric = group.fabric
    if pattern.form is not Form.SHIFT or not isinstance(fabric, Dimensions):
        return pattern, 1
    line = pattern.line
    if line is None:
        if len(group.lines) != 1:
            return pattern, 1
        (line,) = group.lines
    if fabric.dimensions[line].shape is not Shape.SWITCH:
        return pattern, 1
    return replace(pattern, first=1, last=1), pattern.last - pattern.first + 1


def message_count(pattern: Pattern, group: Group) -> int:
    """Return about how many messages are looked at for a pattern."""
    simple, _ = simplest(pattern, group)
    if simple.form is Form.SHIFT:
        return group.size * (simple.last - simple.first + 1)
    return _MESSAGES_EACH.get(simple.form, 1) * group.size


_MESSAGES_EACH = {Form.NEIGHBOURS: 2, Form.BOTH_TREES: 4}


def pattern_ends(pattern: Pattern, group: Group) -> tuple[Integers, Integers]:
    """Return the devices that are the sources and the targets of a pattern's messages."""
    sources, targets = pattern_positions(pattern, group)
    return group.members[sources], group.members[targets]


def pattern_positions(pattern: Pattern, group: Group) -> tuple[Integers, Integers]:
    """Return the positions of the sources and the targets, along lines if the pattern says so."""
    if pattern.line is None:
        return ends(pattern, group.size)
    lines = group.lines[pattern.line]
    sources, targets = ends(pattern, lines.shape[1])
    return lines[:, sources].ravel(), lines[:, targets].ravel()
