"""Divide a job's devices, groups and links into symmetry classes.

First, groups that differ only in where they are get one layout and one plan per collective. Then
the links that their messages cross are counted, links that carry the same messages are joined, and
devices, groups and links are refined into classes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from hespas.base.frozen import frozen
from hespas.collectives.patterns import Pattern
from hespas.hardware.interconnect import Dimension
from hespas.hardware.links import LinkParameters
from hespas.simulate.devices import DeviceClass
from hespas.simulate.flow.graph_links import Integers
from hespas.simulate.flow.groups import (
    GroupLayout,
    Groups,
    Signature,
    groups_of_job,
    layout_numbers,
)
from hespas.simulate.flow.planning import Planner
from hespas.simulate.flow.plans import Plan
from hespas.simulate.flow.refinement import (
    ClassNumbers,
    Edges,
    Flags,
    count_distinct,
    equal_targets,
    first_positions,
    numbered,
    refine,
    split,
)
from hespas.simulate.flow.topology import Reals, Topology
from hespas.simulate.flow.transfers import rate_units
from hespas.simulate.kernel import BYTES_PER_TASK, check_memory
from hespas.tasks.graph import Job, Roles

LinkUses: TypeAlias = tuple[tuple[int, int], ...]
"""Link classes, and how many messages cross each of their links at a time."""


@frozen
class GroupClass:
    """Groups that are alike.

    ``members`` are the numbers of the classes of their devices, ``devices`` those of one group.
    ``uses`` are the links that the messages of a pattern cross, in all groups of the class
    together; ``rivals`` the plans in which several groups of the class load the same link.
    """

    members: frozenset[int]
    devices: tuple[int, ...]
    plans: Mapping[Signature, Plan]
    uses: Mapping[Pattern, LinkUses]
    rivals: frozenset[Plan]


@frozen
class Classes:
    """The classes of a job's devices and groups; ``capacities`` are links' rate units."""

    devices: tuple[DeviceClass, ...]
    groups: tuple[GroupClass, ...]
    world: int | None
    capacities: Mapping[int, int]


def find_classes(
    job: Job,
    roles: list[Roles],
    topology: Topology,
    planner: Planner,
    *,
    is_irregular: bool,
    is_folded: bool,
) -> Classes:
    """Return the classes of a job's devices and groups.

    ``is_irregular`` says that links of one dimension differ in bandwidth or latency. Unless
    ``is_folded``, every device is a class of its own. Raises `SimulationError` for groups of one
    and collectives without an algorithm, and for what would take more memory than there is.
    """
    groups = groups_of_job(job, roles)
    # The times of links divide nothing into classes.
    shapes = tuple([
        replace(dimension, parameters=_ANY_LINK, measured=None) for dimension in planner.dimensions
    ])  # fmt: skip
    blocks = [
        _Block(
            placed=placed,
            plans={item: planner.plan(placed.layout, *item) for item in sorted(placed.signatures)},
        )
        for placed in placed_groups(groups, shapes, is_irregular)
    ]
    exclusive = frozenset[int]() if is_irregular else _exclusive_dimensions(blocks)
    check_memory(sum(block.message_count(exclusive) for block in blocks))
    question = _Question(
        groups=groups,
        graph_of_device=job.graph_of_device,
        shapes=shapes,
        bandwidth_classes=topology.bandwidth_classes,
        network=None if shapes and not is_irregular else topology,
        patterns=tuple([block.patterns for block in blocks]),
        exclusive=exclusive,
        is_folded=is_folded,
        blocks=blocks,
        topology=topology,
    )
    found = alike(question)
    devices = tuple([
        _device_class(members, job, roles, groups, found.numbers)
        for members in split(found.numbers.devices)
    ])  # fmt: skip
    tasks = sum(len(device.graph.tasks) for device in devices)
    check_memory(tasks, "tasks", bytes_each=BYTES_PER_TASK)
    bandwidths: list[float] = topology.bytes_per_ns(found.links).tolist()
    return Classes(
        devices=devices,
        groups=tuple(_group_classes(blocks, found)),
        world=None if groups.world is None else int(found.numbers.groups[groups.world]),
        capacities={number: rate_units(value) for number, value in enumerate(bandwidths)},
    )


_ANY_LINK = LinkParameters(bandwidth_bytes_per_s=1.0, latency_s=0.0)
_EVERY = 64
"""More dimensions than there are."""


def _exclusive_dimensions(blocks: Iterable[_Block]) -> frozenset[int]:
    """Return the dimensions that one disjoint block uses alone.

    A group's collectives follow each other, so nothing else loads its links meanwhile.
    """
    used: dict[int, list[_Placed]] = {}
    for block in blocks:
        for line in block.placed.dimensions:
            used.setdefault(line, []).append(block.placed)
    return frozenset(line for line, own in used.items() if len(own) == 1 and own[0].is_apart)


@frozen
class _Placed:
    """Groups of one layout (rows of members), which have the same collectives."""

    layout: GroupLayout
    groups: Integers
    members: Integers
    signatures: frozenset[Signature]

    @property
    def dimensions(self) -> frozenset[int]:
        """The dimensions of the network that the groups may use."""
        return frozenset(self.layout.lines or range(_EVERY))

    @property
    def is_apart(self) -> bool:
        """Whether no device is in two of the groups."""
        return count_distinct(self.members.ravel()) == self.members.size


@frozen
class _Block:
    """Groups of one layout and their plans."""

    placed: _Placed
    plans: Mapping[Signature, Plan]

    @property
    def layout(self) -> GroupLayout:
        """The layout of all groups."""
        return self.placed.layout

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The patterns of all plans, each once."""
        patterns = [pattern for plan in self.plans.values() for pattern in plan.patterns]
        return tuple(dict.fromkeys(patterns))

    def message_count(self, exclusive: Collection[int]) -> int:
        """Return about how many messages of the groups are routed."""
        simple = [self.simplest(pattern, exclusive)[0] for pattern in self.patterns]
        return len(self.placed.groups) * sum(map(self.layout.message_count, simple))

    def simplest(self, pattern: Pattern, exclusive: Collection[int]) -> tuple[Pattern, int]:
        """Return a representative pattern and the factor to its messages.

        In the dimensions ``exclusive``, only this block's groups use the links.
        """
        if self.layout.paired_line(pattern) in exclusive:
            return self.layout.sample(pattern)
        return self.layout.simplest(pattern)


@lru_cache(maxsize=1)
def placed_groups(
    groups: Groups,
    dimensions: tuple[Dimension, ...],
    is_irregular: bool,
) -> tuple[_Placed, ...]:
    """Return the groups by layout and collectives."""
    numbers_of_signatures: dict[frozenset[Signature], int] = {}
    placed: list[_Placed] = []
    for numbers, members in groups.by_size:
        layouts = layout_numbers(members, dimensions, is_irregular=is_irregular)
        listed: list[int] = numbers.tolist()
        signatures = [groups.signatures[number] for number in listed]
        signature_numbers = [
            numbers_of_signatures.setdefault(item, len(numbers_of_signatures))
            for item in signatures
        ]
        base = len(numbers_of_signatures) + 1
        keys = layouts * base + np.array(signature_numbers, dtype=np.int64)
        placed += [
            _Placed(
                layout=GroupLayout(number=number, members=members[rows[0]], dimensions=dimensions),
                groups=numbers[rows],
                members=members[rows],
                signatures=signatures[int(rows[0])],
            )
            for number, rows in enumerate(split(numbered(keys)), start=len(placed))
        ]
    return tuple(placed)


_MESSAGES = (1 << 32) - 1
"""The bits of a load's weight that count messages; those above number their pattern."""


def _crosses_same_links(loads: Edges, other: Edges) -> bool:
    """Return whether two patterns cross the same links equally often."""
    return (
        np.array_equal(loads.source, other.source)
        and np.array_equal(loads.target, other.target)
        and np.array_equal(loads.weight & _MESSAGES, other.weight & _MESSAGES)
    )


_MESSAGES_AT_ONCE = 1 << 16
"""The messages that one pass routes, which stay in the processor's cache."""


def _loads_of(
    topology: Topology, block: _Block, pattern: Pattern, number: int, exclusive: Collection[int]
) -> Edges:
    """Return how many messages of a pattern and a group cross each link."""
    simple, times = block.simplest(pattern, exclusive)
    sources, targets = block.layout.positions(simple)
    members, links = block.placed.members, topology.link_count
    keys = [np.zeros(0, dtype=np.int64)]
    step = max(1, _MESSAGES_AT_ONCE // len(members))
    for first in range(0, len(sources), step):
        own = slice(first, first + step)
        starts, goals = members[:, sources[own]], members[:, targets[own]]
        message, link = topology.crossed(starts.ravel(), goals.ravel())
        keys.append(message // starts.shape[1] * links + link)
    key, count = np.unique(np.concatenate(keys), return_counts=True)
    return Edges(
        source=block.placed.groups[key // links],
        target=key % links,
        weight=(number << 32) + count.astype(np.int64) * times,
    )


def _concatenated(parts: Sequence[Edges]) -> Edges:
    none = np.zeros(0, dtype=np.int64)
    return Edges(
        source=np.concatenate([none, *[part.source for part in parts]]),
        target=np.concatenate([none, *[part.target for part in parts]]),
        weight=np.concatenate([none, *[part.weight for part in parts]]),
    )


def _joined(loads: Edges, bandwidths: Reals) -> tuple[Edges, Integers]:
    """Return loads on joined links, numbered from 0, and a link of each."""
    numbers = equal_targets(bandwidths.view(np.int64), loads)
    first = first_positions(numbers)
    distinct = loads.selected(_flags(first, len(numbers))[loads.target])
    return replace(distinct, target=numbers[distinct.target]), first


def _flags(positions: Integers, count: int) -> Flags:
    flags = np.zeros(count, dtype=np.bool_)
    flags[positions] = True
    return flags


@frozen
class _Question:
    """What decides which devices, groups and links are alike: equal ones have one answer.

    Bandwidths count as far as they differ, unless a ``network`` is given.
    """

    groups: Groups
    graph_of_device: tuple[int, ...]
    shapes: tuple[Dimension, ...]
    bandwidth_classes: tuple[int, ...]
    network: Topology | None
    patterns: tuple[tuple[Pattern, ...], ...]
    exclusive: frozenset[int]
    is_folded: bool
    blocks: list[_Block] = field(compare=False)
    topology: Topology = field(compare=False)

    def __hash__(self) -> int:
        return hash((self.groups, self.patterns))


@frozen
class _Alike:
    """The numbers of classes, and what loads a link of each.

    ``links`` has a link of each class. ``same_links`` is the pattern that crosses the same links,
    by block and pattern.
    """

    numbers: ClassNumbers
    loads: _ClassLoads
    links: Integers
    same_links: Mapping[tuple[int, Pattern], int]


@lru_cache(maxsize=1)
def alike(question: _Question) -> _Alike:
    """Return which devices, groups and links are alike.

    A prediction asks several times: with other durations, and with faster links.
    """
    groups, topology = question.groups, question.topology
    every, same_links = _every_load(question)
    is_used = _flags(every.target, 1 + int(every.target.max(initial=-1)))
    links = np.flatnonzero(is_used)
    every = replace(every, target=(np.cumsum(is_used) - 1)[every.target])
    joined, first = _joined(every, topology.bytes_per_ns(links))
    del every  # It is large.
    links = links[first]
    block_of = np.zeros(groups.count, dtype=np.int64)
    for index, block in enumerate(question.blocks):
        block_of[block.placed.groups] = index
    if question.is_folded:
        numbers = refine(
            np.array(question.graph_of_device, dtype=np.int64),
            block_of,
            numbered(topology.bytes_per_ns(links).view(np.int64)),
            _roles_of_devices(groups),
            joined,
        )
    else:
        counts = len(question.graph_of_device), groups.count, len(links)
        devices, all_groups, all_links = map(np.arange, counts)
        numbers = ClassNumbers(devices=devices, groups=all_groups, links=all_links)
    class_loads = _ClassLoads(joined, numbers)
    return _Alike(
        numbers=numbers,
        loads=class_loads,
        links=links[class_loads.first_link],
        same_links=same_links,
    )


def _every_load(question: _Question) -> tuple[Edges, dict[tuple[int, Pattern], int]]:
    """Return all loads, and for each block and pattern the one with the same links."""
    pattern_numbers: dict[Pattern, int] = {}
    same_links: dict[tuple[int, Pattern], int] = {}
    parts: list[Edges] = []
    for index, block in enumerate(question.blocks):
        distinct: list[Edges] = []
        for pattern in block.patterns:
            number = pattern_numbers.setdefault(pattern, len(pattern_numbers))
            loads = _loads_of(question.topology, block, pattern, number, question.exclusive)
            same = next((item for item in distinct if _crosses_same_links(item, loads)), None)
            if same is None:
                distinct.append(loads)
            elif len(same.weight):
                number = int(same.weight[0]) >> 32
            same_links[index, pattern] = number
        parts += distinct
    return _concatenated(parts), same_links


def _roles_of_devices(groups: Groups) -> Edges:
    edges = [np.zeros((3, 0), dtype=np.int64)]
    for graph, groups_of_roles in enumerate(groups.group_of):
        for role, group_of in enumerate(groups_of_roles):
            (members,) = np.nonzero(group_of >= 0)
            weights = np.full(len(members), (graph << 32) + role, dtype=np.int64)
            edges.append(np.stack([members, group_of[members], weights]))
    devices, of_devices, weights = np.concatenate(edges, axis=1)
    return Edges(source=devices, target=of_devices, weight=weights)


def _device_class(
    devices: Integers, job: Job, roles: Sequence[Roles], groups: Groups, numbers: ClassNumbers
) -> DeviceClass:
    first = int(devices[0])
    index = job.graph_of_device[first]
    own = [int(groups_of_role[first]) for groups_of_role in groups.group_of[index]]
    return DeviceClass(
        devices=tuple(devices.tolist()),
        graph=job.graphs[index],
        roles=roles[index],
        groups=tuple([group if group < 0 else int(numbers.groups[group]) for group in own]),
    )


def _group_classes(blocks: Sequence[_Block], alike: _Alike) -> Iterator[GroupClass]:
    numbers, loads = alike.numbers, alike.loads
    first_groups: list[int] = first_positions(numbers.groups).tolist()
    representatives = set(first_groups)
    row_of = {
        group: (index, row)
        for index, block in enumerate(blocks)
        for row, group in enumerate(block.placed.groups.tolist())
        if group in representatives
    }
    for number, group in enumerate(first_groups):
        index, row = row_of[group]
        block = blocks[index]
        members = block.placed.members[row]
        numbers_of = {pattern: alike.same_links[index, pattern] for pattern in block.patterns}
        yield GroupClass(
            members=frozenset(numbers.devices[members].tolist()),
            devices=tuple(members.tolist()),
            plans=block.plans,
            uses={pattern: loads.uses(number, own) for pattern, own in numbers_of.items()},
            rivals=frozenset([
                plan
                for plan in block.plans.values()
                if loads.are_rivals(number, {numbers_of[pattern] for pattern in plan.patterns})
            ]),
        )  # fmt: skip


class _ClassLoads:
    """The loads of the first link of each class."""

    def __init__(self, loads: Edges, numbers: ClassNumbers) -> None:
        self.first_link = first_positions(numbers.links)
        is_first = _flags(self.first_link, len(numbers.links))
        representative = loads.selected(is_first[loads.target])
        self._uses: dict[tuple[int, int], dict[int, int]] = {}
        self._on_link: dict[tuple[int, int], set[tuple[int, int]]] = {}
        entries = zip(
            numbers.groups[representative.source].tolist(),
            representative.source.tolist(),
            (representative.weight >> 32).tolist(),
            numbers.links[representative.target].tolist(),
            (representative.weight & _MESSAGES).tolist(),
            strict=True,
        )
        is_folded = len(first_positions(numbers.groups)) < len(numbers.groups)
        for group_class, group, pattern, link, messages in entries:
            uses = self._uses.setdefault((group_class, pattern), {})
            uses[link] = uses.get(link, 0) + messages
            if is_folded:
                self._on_link.setdefault((group_class, link), set()).add((group, pattern))

    def uses(self, group_class: int, pattern: int) -> LinkUses:
        """Return the links that a pattern crosses in a class."""
        return tuple(sorted(self._uses.get((group_class, pattern), {}).items()))

    def are_rivals(self, group_class: int, patterns: set[int]) -> bool:
        """Return whether several groups of a class load one link."""
        links = {link for pattern in patterns for link, _ in self.uses(group_class, pattern)}
        loads_of_links = (self._on_link.get((group_class, link), ()) for link in links)
        return any(
            len({group for group, pattern in loads if pattern in patterns}) > 1
            for loads in loads_of_links
        )
