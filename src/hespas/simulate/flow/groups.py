"""The groups of a job's devices: members of collectives, senders, receivers.

A message goes between a group of two, from source to target. A group's members are arrays, in
lines along the dimensions of the network where they fill a box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hespas.collectives.patterns import Along, Form, Pattern, ends, loop_through
from hespas.hardware.interconnect import Dimension, Shape
from hespas.simulate.astra.folding import Members, check_group, find_groups
from hespas.simulate.flow.graph_links import Integers
from hespas.tasks.graph import ALWAYS, CollectiveTask, Job, ReceiveTask, Roles, SendTask

Signature: TypeAlias = tuple[str, int]
"""A kind of collective, or ``send_recv``, and its size in bytes."""


def signature_of(task: CollectiveTask | SendTask | ReceiveTask) -> Signature:
    """Return what all sides of a collective or a message agree on."""
    if not isinstance(task, CollectiveTask):
        return "send_recv", task.size_bytes
    kind = task.kind.base.text
    return f"{kind}_{task.kernel}" if task.kernel else kind, task.size_bytes


@dataclass(slots=True, kw_only=True)
class Groups:
    """All groups of a job, numbered.

    ``by_size`` holds them as (numbers of groups, a row of members each), one entry a size.
    ``group_of`` gives, by graph and role, the group of each device, -1 for none. ``world`` is the
    group of all devices.
    """

    by_size: list[tuple[Integers, Integers]]
    group_of: list[list[Integers]]
    world: int | None
    signatures: list[frozenset[Signature]]

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.signatures)


def groups_of_job(job: Job, roles: list[Roles]) -> Groups:
    """Return the groups of a job."""
    found, by_graph = find_groups(job, roles)
    signatures: list[set[Signature]] = [set() for _ in found]
    group_of = [[np.array(groups, dtype=np.int64) for groups in of_graph] for of_graph in by_graph]
    everyone: Members = tuple(range(job.device_count))
    of_everyone: set[Signature] = set()
    for graph, of_roles, of_graph in zip(job.graphs, roles, group_of, strict=True):
        of_role: dict[int, set[Signature]] = {}
        for task, role in zip(graph.tasks, of_roles.role_of_task, strict=True):
            if isinstance(task, CollectiveTask | SendTask | ReceiveTask):
                does = of_everyone if role == ALWAYS else of_role.setdefault(role, set())
                does.add(signature_of(task))
        for role, does in of_role.items():
            for number in np.unique(of_graph[role][of_graph[role] >= 0], return_counts=True)[0]:
                signatures[number] |= does
    world = None
    if of_everyone:
        world = found.index(everyone) if everyone in found else len(found)
        if world == len(found):
            found.append(everyone)
            signatures.append(set())
        signatures[world] |= of_everyone
    by_size: dict[int, tuple[list[int], list[Members]]] = {}
    for number, group in enumerate(found):
        check_group(group)
        members = group if isinstance(group, tuple) else (group.source, group.target)
        numbers, rows = by_size.setdefault(len(members), ([], []))
        numbers.append(number)
        rows.append(members)
    return Groups(
        by_size=[
            (np.array(numbers, dtype=np.int64), np.array(rows, dtype=np.int64))
            for numbers, rows in by_size.values()
        ],
        group_of=group_of,
        world=world,
        signatures=[frozenset(each) for each in signatures],
    )


def layout_numbers(
    members: Integers, dimensions: Sequence[Dimension], *, is_irregular: bool
) -> Integers:
    """Return a number for each row of members; equal numbers use links alike.

    That is so where all members are equally far from the first one along every dimension, on a line
    as far from its end, and where no hash chooses their spines. ``is_irregular`` says that links of
    one dimension differ: then no two groups are alike.
    """
    if is_irregular or not dimensions:
        return np.arange(len(members), dtype=np.int64)
    columns: list[Integers] = []
    rest = members
    for dimension in dimensions:
        own = rest % dimension.size
        columns.append((own - own[:, :1]) % dimension.size)
        if dimension.shape is Shape.FAT_TREE:
            columns.append(own[:, :1] % (dimension.leaf_size or 1))
        if dimension.shape is Shape.LINE:
            columns.append(own[:, :1])
        if dimension.is_hashed:
            goes_through = (own != own[:, :1]).any(axis=1, keepdims=True)
            columns.append(np.where(goes_through, np.arange(len(own))[:, None], -1))
        rest = rest // dimension.size
    table = np.concatenate(columns, axis=1)
    if (table == table[0]).all():
        return np.zeros(len(members), dtype=np.int64)
    _, numbers = np.unique(table, axis=0, return_inverse=True)
    return numbers.reshape(-1).astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupLayout:
    """Where a group's members are, in order; it stands for equal groups.

    ``number`` distinguishes layouts. ``dimensions`` are those that devices are numbered along.
    """

    number: int
    members: Integers
    dimensions: tuple[Dimension, ...]

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.members)

    @cached_property
    def _coordinates(self) -> dict[int, Integers]:
        """Positions along each dimension that members differ in; empty without a box."""
        coordinates: dict[int, Integers] = {}
        rest = self.members
        for index, dimension in enumerate(self.dimensions):
            own = rest % dimension.size
            # Seen from the first member, so that alike groups are alike wherever they are.
            first = own.min() if dimension.shape is Shape.LINE else own[0]
            own = (own - first) % dimension.size
            if own.any():
                coordinates[index] = own
            rest = rest // dimension.size
        filled = prod(count_distinct(own) for own in coordinates.values()) == len(self.members)
        return coordinates if filled else {}

    @cached_property
    def lines(self) -> dict[int, Integers]:
        """Positions along each dimension that members differ in, one row a line.

        Empty unless the members fill a box: every combination of their coordinates.
        """
        return {index: self._rows([index]) for index in self._coordinates}

    def _rows(self, along: Sequence[int]) -> Integers:
        """Return the positions of members along some dimensions together, the first fastest."""
        coordinates = self._coordinates
        others = [own for other, own in coordinates.items() if other not in along]
        order = np.lexsort((*[coordinates[index] for index in along], *others))
        return order.reshape(-1, prod(count_distinct(coordinates[index]) for index in along))

    @cached_property
    def axes(self) -> dict[int, Integers]:
        """Loops along each of the `lines` of a torus or mesh.

        Its links go from neighbour to neighbour.
        """
        return {
            index: rows[:, loop_through([rows.shape[1]], is_closed=self._is_closed(index))]
            for index, rows in self.lines.items()
            if self.dimensions[index].shape in {Shape.RING, Shape.LINE}
        }

    def _is_closed(self, axis: int) -> bool:
        """Return whether members along an axis form a ring."""
        dimension, own = self.dimensions[axis], self._coordinates[axis]
        gap, rest = divmod(dimension.size, count_distinct(own))
        return dimension.shape is Shape.RING and not rest and not (own % gap).any()

    @cached_property
    def loops(self) -> Integers:
        """Members along loops through all `axes`, one row a loop."""
        axes = list(self.axes)
        if len(axes) == 1:
            return self.axes[axes[0]]
        return self._rows(axes)[:, loop_through([self.members_along(axis) for axis in axes])]

    @cached_property
    def rails(self) -> Integers:
        """Members by their position within a node, a row per position.

        Devices along the first dimension are a node.
        """
        return self._rows([line for line in self.lines if line > 0])

    def members_along(self, line: int | Along | None) -> int:
        """Count the members along a line, loop, axes or rail.

        None means all members.
        """
        match line:
            case None:
                return self.size
            case Along.RAILS:
                return self.rails.shape[1]
            case Along():
                return self.loops.shape[1]
            case int():
                return self.lines[line].shape[1]

    def _shifted(self, pattern: Pattern) -> tuple[int, Shape] | None:
        """Return the single dimension of shifts and its shape, if any."""
        line = pattern.line
        if line is None and len(self.lines) == 1:
            (line,) = self.lines
        if pattern.form is not Form.SHIFT or not isinstance(line, int):
            return None
        return line, self.dimensions[line].shape

    def simplest(self, pattern: Pattern) -> tuple[Pattern, int]:
        """Return a pattern across the same links, and how many times less often.

        Through a switch, everyone's message to any one other crosses everyone's two links once.
        """
        shifted = self._shifted(pattern)
        if shifted is None or shifted[1] is not Shape.SWITCH:
            return pattern, 1
        return replace(pattern, first=1, last=1), pattern.last - pattern.first + 1

    def sample(self, pattern: Pattern) -> tuple[Pattern, int]:
        """Return a pattern with equal message times, and how many times fewer crossings.

        Where each pair has a link of its own, messages to any one other are like those to all.
        """
        simple, times = self.simplest(pattern)
        line = self.paired_line(simple)
        return (simple, times) if line is None else (replace(simple, first=1, last=1), times)

    def paired_line(self, pattern: Pattern) -> int | None:
        """Return the dimension with a link for each message, if any."""
        shifted = self._shifted(pattern)
        return shifted[0] if shifted and shifted[1] is Shape.FULLY_CONNECTED else None

    def message_count(self, pattern: Pattern) -> int:
        """Return about how many messages are looked at for a pattern."""
        simple, _ = self.simplest(pattern)
        if simple.form is Form.SHIFT:
            return self.size * (simple.last - simple.first + 1)
        axes = len(self.axes) if simple.line is Along.EVERY_AXIS else 1
        return _MESSAGES_EACH.get(simple.form, 1) * axes * self.size

    def positions(self, pattern: Pattern) -> tuple[Integers, Integers]:
        """Return the positions of sources and targets, along lines if so patterned."""
        match pattern.line:
            case None:
                return ends(pattern, self.size)
            case Along.LOOP:
                return _along(self.loops, pattern)
            case Along.RAILS:
                return _along(self.rails, pattern)
            case Along.EVERY_AXIS:
                both = [_along(rows, pattern) for rows in self.axes.values()]
                return np.concatenate([one for one, _ in both]), np.concatenate(
                    [to for _, to in both]
                )
            case int() as line:
                is_loop = pattern.form is Form.NEIGHBOURS and line in self.axes
                return _along(self.axes[line] if is_loop else self.lines[line], pattern)


def _along(rows: Integers, pattern: Pattern) -> tuple[Integers, Integers]:
    sources, targets = ends(pattern, rows.shape[1])
    return rows[:, sources].ravel(), rows[:, targets].ravel()


_MESSAGES_EACH = {Form.NEIGHBOURS: 2, Form.BOTH_TREES: 4}


def count_distinct(values: NDArray[np.int64] | NDArray[np.uint64]) -> int:
    """Return how many values differ."""
    # Without counts, numpy imports what it needs for masked arrays, which takes 10 ms.
    return len(np.unique(values, return_counts=True)[0])
