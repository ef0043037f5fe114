"""Collect a job's groups: members of collectives, pairs of messages.

A message has a group of two, source and target. A group's members are arrays, in lines along the
network's dimensions if they fill a box.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import TypeAlias

import numpy as np

from hespas.base.frozen import frozen
from hespas.collectives.patterns import Along, Form, Pattern, ends, loop_through
from hespas.hardware.interconnect import Dimension, Shape
from hespas.simulate.communicators import (
    Group,
    Members,
    check_group,
    communicators,
    find_groups,
    tasks_of_roles,
)
from hespas.simulate.flow.graph_links import Integers
from hespas.simulate.flow.refinement import count_distinct, row_numbers
from hespas.tasks.graph import (
    ALWAYS,
    CollectiveTask,
    GroupTable,
    Job,
    ReceiveTask,
    Roles,
    SendTask,
    Task,
)

Signature: TypeAlias = tuple[str, int]
"""A kind of collective, or ``send_recv``, and its size in bytes."""


def signature_of(task: CollectiveTask | SendTask | ReceiveTask) -> Signature:
    """Return the signature of a collective or a message."""
    if not isinstance(task, CollectiveTask):
        return "send_recv", task.size_bytes
    kind = task.kind.base.text
    return f"{kind}_{task.kernel}" if task.kernel else kind, task.size_bytes


@dataclass(slots=True, kw_only=True, eq=False)
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


@frozen
class _Communication:
    """What the groups of a job follow from: equal for jobs that have equal ones.

    ``everyone`` has the signatures among all devices; ``roles`` by graph what its roles are among,
    and their signatures.
    """

    graph_of_device: tuple[int, ...]
    everyone: frozenset[Signature]
    roles: tuple[tuple[tuple[type[Task], GroupTable, frozenset[Signature]], ...], ...]
    job: Job = field(compare=False)
    job_roles: Sequence[Roles] = field(compare=False)

    def __hash__(self) -> int:
        return hash(len(self.graph_of_device))


def groups_of_job(job: Job, roles: Sequence[Roles]) -> Groups:
    """Return the groups of a job: the same value again where they are the last job's."""
    everyone: set[Signature] = set()
    of_graphs: list[tuple[tuple[type[Task], GroupTable, frozenset[Signature]], ...]] = []
    for graph, graph_roles in zip(job.graphs, roles, strict=True):
        signatures: dict[int, set[Signature]] = {}
        for task, role in zip(graph.tasks, graph_roles.role_of_task, strict=True):
            if isinstance(task, CollectiveTask | SendTask | ReceiveTask):
                own = everyone if role == ALWAYS else signatures.setdefault(role, set())
                own.add(signature_of(task))
        of_graphs.append(
            tuple(
                [
                    (type(task), communicators(graph, task), frozenset(signatures.get(role, ())))
                    for role, task in enumerate(tasks_of_roles(graph, graph_roles))
                ]
            )
        )
    return found_groups(
        _Communication(
            graph_of_device=job.graph_of_device,
            everyone=frozenset(everyone),
            roles=tuple(of_graphs),
            job=job,
            job_roles=roles,
        )
    )


@lru_cache(maxsize=1)
def found_groups(communication: _Communication) -> Groups:
    """Return the groups of a job. Predictions simulate one job several times."""
    groups, by_graph = find_groups(communication.job, communication.job_roles)
    signatures: list[frozenset[Signature]] = [frozenset()] * len(groups)
    group_of = [[np.array(numbers, dtype=np.int64) for numbers in table] for table in by_graph]
    for graph_roles, groups_of_roles in zip(communication.roles, group_of, strict=True):
        for (_, _, own), numbers in zip(graph_roles, groups_of_roles, strict=True):
            joined: dict[frozenset[Signature], frozenset[Signature]] = {}
            present: list[int] = np.unique(numbers[numbers >= 0], return_counts=True)[0].tolist()
            for number in present:
                before = signatures[number]
                if before not in joined:
                    joined[before] = before | own
                signatures[number] = joined[before]
    world = None
    if communication.everyone:
        everyone: Members = tuple(range(communication.job.device_count))
        if everyone not in groups:
            groups.append(everyone)
            signatures.append(frozenset())
        world = groups.index(everyone)
        signatures[world] |= communication.everyone
    return Groups(
        by_size=_by_size(groups),
        group_of=group_of,
        world=world,
        signatures=signatures,
    )


def _by_size(groups: Sequence[Group]) -> list[tuple[Integers, Integers]]:
    """Return the numbers and members of groups, by size."""
    by_size: defaultdict[int, tuple[list[int], list[Members]]] = defaultdict(lambda: ([], []))
    for number, group in enumerate(groups):
        members = group if isinstance(group, tuple) else (group.source, group.target)
        if len(members) < 2 or members[0] == members[1]:
            check_group(group)
        numbers, rows = by_size[len(members)]
        numbers.append(number)
        rows.append(members)
    return [
        (np.array(numbers, dtype=np.int64), np.array(rows, dtype=np.int64))
        for numbers, rows in by_size.values()
    ]


def layout_numbers(
    members: Integers, dimensions: Sequence[Dimension], *, is_irregular: bool
) -> Integers:
    """Return equal numbers for members that use links alike.

    Groups use links alike if their members are equally far from the first one along every
    dimension, on a line also from its end, and if no hash chooses their spines. ``is_irregular``
    says that links of one dimension differ: then no two groups are alike.
    """
    if is_irregular or not dimensions:
        return np.arange(len(members), dtype=np.int64)
    columns: list[Integers] = []
    quotient = members
    for dimension in dimensions:
        own = quotient % dimension.size
        columns.append((own - own[:, :1]) % dimension.size)
        if dimension.shape is Shape.FAT_TREE:
            columns.append(own[:, :1] % (dimension.leaf_size or 1))
        if dimension.shape is Shape.LINE:
            columns.append(own[:, :1])
        if dimension.is_hashed:
            goes_through = (own != own[:, :1]).any(axis=1, keepdims=True)
            columns.append(np.where(goes_through, np.arange(len(own))[:, None], -1))
        quotient = quotient // dimension.size
    table = np.concatenate(columns, axis=1)
    if (table == table[0]).all():
        return np.zeros(len(members), dtype=np.int64)
    return row_numbers(table)


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupLayout:
    """The ordered members of a group that represents equal ones.

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
        """Positions along each differing dimension, empty unless members fill a box."""
        coordinates: dict[int, Integers] = {}
        quotient = self.members
        for index, dimension in enumerate(self.dimensions):
            own = quotient % dimension.size
            # Seen from the first member, so that alike groups are alike wherever they are.
            first = own.min() if dimension.shape is Shape.LINE else own[0]
            own = (own - first) % dimension.size
            if own.any():
                coordinates[index] = own
            quotient = quotient // dimension.size
        filled = prod(count_distinct(own) for own in coordinates.values()) == len(self.members)
        return coordinates if filled else {}

    @cached_property
    def lines(self) -> dict[int, Integers]:
        """Positions along each dimension that members differ in, by line.

        Empty unless the members fill a box: every combination of their coordinates.
        """
        return {index: self._rows([index]) for index in self._coordinates}

    def _rows(self, along: Sequence[int]) -> Integers:
        """Return member positions along dimensions, the first one fastest."""
        coordinates = self._coordinates
        across = [own for index, own in coordinates.items() if index not in along]
        order = np.lexsort((*[coordinates[index] for index in along], *across))
        return order.reshape(-1, prod(count_distinct(coordinates[index]) for index in along))

    @cached_property
    def axes(self) -> dict[int, Integers]:
        """Loops along the `lines` of a torus or mesh.

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
        gap, remainder = divmod(dimension.size, count_distinct(own))
        return dimension.shape is Shape.RING and not remainder and not (own % gap).any()

    @cached_property
    def loops(self) -> Integers:
        """Members along loops through all `axes`, one row a loop."""
        axes = list(self.axes)
        if len(axes) == 1:
            return self.axes[axes[0]]
        return self._rows(axes)[:, loop_through([self.members_along(axis) for axis in axes])]

    @cached_property
    def rails(self) -> Integers:
        """Members by position within a node (the first dimension), a row per position."""
        return self._rows([line for line in self.lines if line > 0])

    def members_along(self, line: int | Along | None) -> int:
        """Count the members along a line, loop, axes or rail; None means all."""
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
        """Return the only dimension of shifts with its shape."""
        line = pattern.line
        if line is None and len(self.lines) == 1:
            (line,) = self.lines
        if pattern.form is not Form.SHIFT or not isinstance(line, int):
            return None
        return line, self.dimensions[line].shape

    def simplest(self, pattern: Pattern) -> tuple[Pattern, int]:
        """Return an equivalent pattern and its factor of crossings.

        Through a switch, everyone's message to any one other crosses everyone's two links once.
        """
        shifted = self._shifted(pattern)
        if shifted is None or shifted[1] is not Shape.SWITCH:
            return pattern, 1
        return replace(pattern, first=1, last=1), pattern.last - pattern.first + 1

    def sample(self, pattern: Pattern) -> tuple[Pattern, int]:
        """Return an equally fast pattern and its factor of crossings.

        If each pair has a link of its own, messages to one member are like those to all.
        """
        simple, times = self.simplest(pattern)
        line = self.paired_line(simple)
        return (simple, times) if line is None else (replace(simple, first=1, last=1), times)

    def paired_line(self, pattern: Pattern) -> int | None:
        """Return the dimension with a link for each message."""
        shifted = self._shifted(pattern)
        return shifted[0] if shifted and shifted[1] is Shape.FULLY_CONNECTED else None

    def message_count(self, pattern: Pattern) -> int:
        """Return about how many messages of a pattern are routed."""
        simple, _ = self.simplest(pattern)
        if simple.form is Form.SHIFT:
            return self.size * (simple.last - simple.first + 1)
        axes = len(self.axes) if simple.line is Along.EVERY_AXIS else 1
        return _MESSAGES_EACH.get(simple.form, 1) * axes * self.size

    def positions(
        self, pattern: Pattern, *, most_lines: int | None = None
    ) -> tuple[Integers, Integers]:
        """Return the positions of a pattern's sources and targets.

        Lines are alike where links are: a message stays in its line, and lines share no links. So
        a price needs only one (``most_lines``) of all that the pattern runs in.
        """
        if pattern.line is None:
            return ends(pattern, self.size)
        pairs = [_along(rows[:most_lines], pattern) for rows in self._lines(pattern.line, pattern)]
        sources, targets = zip(*pairs, strict=True)
        return np.concatenate(sources), np.concatenate(targets)

    def _lines(self, line: int | Along, pattern: Pattern) -> list[Integers]:
        """Return the members that a pattern runs among, a row for each line."""
        match line:
            case Along.LOOP:
                return [self.loops]
            case Along.RAILS:
                return [self.rails]
            case Along.EVERY_AXIS:
                return list(self.axes.values())
            case int():
                is_loop = pattern.form is Form.NEIGHBOURS and line in self.axes
                return [self.axes[line] if is_loop else self.lines[line]]


def _along(rows: Integers, pattern: Pattern) -> tuple[Integers, Integers]:
    sources, targets = ends(pattern, rows.shape[1])
    return rows[:, sources].ravel(), rows[:, targets].ravel()


_MESSAGES_EACH = {Form.NEIGHBOURS: 2, Form.BOTH_TREES: 4}
