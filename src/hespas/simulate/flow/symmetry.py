"""Divide a job's devices, groups and links into symmetry classes.

First, groups that differ only in where they are get one layout and one plan per collective. Then
the links that their messages cross are counted, links that carry the same messages are joined, and
devices, groups and links are refined into classes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hespas.base.frozen import frozen
from hespas.collectives.patterns import Pattern
from hespas.simulate.astra.folding import DeviceClass
from hespas.simulate.flow.graph_links import Integers
from hespas.simulate.flow.groups import (
    GroupLayout,
    Groups,
    Signature,
    count_distinct,
    groups_of_job,
    layout_numbers,
)
from hespas.simulate.flow.planning import Plan, Planner
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
    """The classes of a job's devices and groups.

    ``capacities`` gives the bandwidth of links by class, in rate units.
    """

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
    blocks = list(_blocks(groups, planner, is_irregular=is_irregular))
    exclusive = frozenset[int]() if is_irregular else _exclusive_dimensions(blocks)
    check_memory(sum(block.message_count(exclusive) for block in blocks))
    return _Classes(job, roles, topology, groups, blocks, exclusive=exclusive).run(
        is_folded=is_folded
    )


_EVERY = 64
"""More dimensions than there are."""


def _exclusive_dimensions(blocks: Iterable[_Block]) -> frozenset[int]:
    """Return the dimensions that one disjoint block uses alone.

    A group's collectives follow each other, so nothing else loads its links meanwhile.
    """
    used: dict[int, list[_Block]] = {}
    for block in blocks:
        for line in block.dimensions:
            used.setdefault(line, []).append(block)
    return frozenset(line for line, own in used.items() if len(own) == 1 and own[0].is_apart)


@frozen
class _Block:
    """Groups of one layout (rows of members) and their plans."""

    layout: GroupLayout
    groups: Integers
    members: Integers
    plans: Mapping[Signature, Plan]

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The patterns of all plans, each once."""
        patterns = [pattern for plan in self.plans.values() for pattern in plan.patterns]
        return tuple(dict.fromkeys(patterns))

    def message_count(self, exclusive: Collection[int]) -> int:
        """Return about how many messages of the groups are routed."""
        simple = [self.simplest(pattern, exclusive)[0] for pattern in self.patterns]
        return len(self.groups) * sum(map(self.layout.message_count, simple))

    def simplest(self, pattern: Pattern, exclusive: Collection[int]) -> tuple[Pattern, int]:
        """Return a representative pattern and the factor to its messages.

        In the dimensions ``exclusive``, only this block's groups use the links.
        """
        if self.layout.paired_line(pattern) in exclusive:
            return self.layout.sample(pattern)
        return self.layout.simplest(pattern)

    @property
    def dimensions(self) -> frozenset[int]:
        """The dimensions of the network that the groups may use."""
        return frozenset(self.layout.lines or range(_EVERY))

    @property
    def is_apart(self) -> bool:
        """Whether no device is in two of the groups."""
        return count_distinct(self.members.ravel()) == self.members.size


def _blocks(groups: Groups, planner: Planner, *, is_irregular: bool) -> Iterator[_Block]:
    numbers_of_signatures: dict[frozenset[Signature], int] = {}
    count = 0
    for numbers, members in groups.by_size:
        layouts = layout_numbers(members, planner.dimensions, is_irregular=is_irregular)
        listed: list[int] = numbers.tolist()
        signatures = [groups.signatures[number] for number in listed]
        signature_numbers = [
            numbers_of_signatures.setdefault(item, len(numbers_of_signatures))
            for item in signatures
        ]
        base = len(numbers_of_signatures) + 1
        keys = layouts * base + np.array(signature_numbers, dtype=np.int64)
        for rows in split(numbered(keys)):
            layout = GroupLayout(
                number=count, members=members[rows[0]], dimensions=planner.dimensions
            )
            count += 1
            yield _Block(
                layout=layout,
                groups=numbers[rows],
                members=members[rows],
                plans={
                    signature: planner.plan(layout, *signature)
                    for signature in sorted(signatures[int(rows[0])])
                },
            )


@frozen
class _Loads:
    """The links that groups' messages cross, by pattern number.

    Entry k: ``messages[k]`` messages of a pattern and a group cross a link.
    """

    group: Integers
    pattern: Integers
    link: Integers
    messages: Integers

    @property
    def edges(self) -> Edges:
        """The loads as edges from groups to links."""
        weight = (self.pattern << 32) + self.messages
        return Edges(source=self.group, target=self.link, weight=weight)

    def selected(self, entries: Integers) -> _Loads:
        """Return some of the entries."""
        return _Loads(
            group=self.group[entries],
            pattern=self.pattern[entries],
            link=self.link[entries],
            messages=self.messages[entries],
        )

    def crosses_same_links(self, loads: _Loads) -> bool:
        """Return whether two patterns cross the same links equally often."""
        return (
            np.array_equal(self.group, loads.group)
            and np.array_equal(self.link, loads.link)
            and np.array_equal(self.messages, loads.messages)
        )


def _loads_of(
    topology: Topology, block: _Block, pattern: Pattern, number: int, exclusive: Collection[int]
) -> _Loads:
    simple, times = block.simplest(pattern, exclusive)
    sources, targets = block.layout.positions(simple)
    routes = topology.routes(block.members[:, sources].ravel(), block.members[:, targets].ravel())
    row = routes.message // len(sources) if len(sources) else routes.message
    span = int(routes.link.max()) + 1 if len(routes.link) else 1
    key, count = np.unique(row * span + routes.link, return_counts=True)
    return _Loads(
        group=block.groups[key // span],
        pattern=np.full(len(key), number, dtype=np.int64),
        link=key % span,
        messages=count.astype(np.int64) * times,
    )


def _concatenated(parts: list[_Loads]) -> _Loads:
    empty = [np.zeros(0, dtype=np.int64)]
    return _Loads(
        group=np.concatenate([part.group for part in parts] or empty),
        pattern=np.concatenate([part.pattern for part in parts] or empty),
        link=np.concatenate([part.link for part in parts] or empty),
        messages=np.concatenate([part.messages for part in parts] or empty),
    )


def _joined(loads: _Loads, bandwidths: Reals) -> tuple[_Loads, Reals]:
    """Return loads and bandwidths with equally crossed links joined.

    The result numbers its links from 0.
    """
    numbers = equal_targets(bandwidths.view(np.int64), loads.edges)
    _, first = np.unique(numbers, return_index=True)
    is_first = np.zeros(len(numbers), dtype=bool)
    is_first[first] = True
    distinct = loads.selected(np.nonzero(is_first[loads.link])[0])
    return replace(distinct, link=numbers[distinct.link]), bandwidths[first]


class _Classes:
    def __init__(
        self,
        job: Job,
        roles: list[Roles],
        topology: Topology,
        groups: Groups,
        blocks: list[_Block],
        *,
        exclusive: frozenset[int],
    ) -> None:
        self._job = job
        self._roles = roles
        self._groups = groups
        self._blocks = blocks
        self._exclusive = exclusive
        self._block_of = np.zeros(groups.count, dtype=np.int64)
        self._pattern_numbers: dict[Pattern, int] = {}
        # The pattern that crosses the same links, by block and pattern.
        self._same_links: dict[tuple[int, Pattern], int] = {}
        loads = _concatenated([
            part for index in range(len(blocks)) for part in self._load(topology, index)
        ])  # fmt: skip
        links, link = np.unique(loads.link, return_inverse=True)
        loads = replace(loads, link=link.reshape(-1))
        self._loads, self._bandwidths = _joined(loads, topology.bytes_per_ns(links))

    def _load(self, topology: Topology, index: int) -> list[_Loads]:
        """Return the distinct loads of a block's groups."""
        block = self._blocks[index]
        self._block_of[block.groups] = index
        distinct: list[_Loads] = []
        for pattern in block.patterns:
            number = self._pattern_numbers.setdefault(pattern, len(self._pattern_numbers))
            loads = _loads_of(topology, block, pattern, number, self._exclusive)
            same = next((item for item in distinct if item.crosses_same_links(loads)), None)
            if same is None:
                distinct.append(loads)
            elif len(same.pattern):
                number = int(same.pattern[0])
            self._same_links[index, pattern] = number
        return distinct

    def run(self, *, is_folded: bool) -> Classes:
        numbers = self._refined() if is_folded else self._unfolded()
        devices = tuple(
            [self._device_class(members, numbers) for members in split(numbers.devices)]
        )
        tasks = sum(len(device.graph.tasks) for device in devices)
        check_memory(tasks, "tasks", bytes_each=BYTES_PER_TASK)
        class_loads = _ClassLoads(self._loads, numbers)
        world = self._groups.world
        return Classes(
            devices=devices,
            groups=tuple(self._group_classes(numbers, class_loads)),
            world=None if world is None else int(numbers.groups[world]),
            capacities={
                number: rate_units(float(self._bandwidths[link]))
                for number, link in enumerate(class_loads.first_link)
            },
        )

    def _unfolded(self) -> ClassNumbers:
        return ClassNumbers(
            devices=np.arange(self._job.device_count),
            groups=np.arange(self._groups.count),
            links=np.arange(len(self._bandwidths)),
        )

    def _refined(self) -> ClassNumbers:
        return refine(
            np.array(self._job.graph_of_device, dtype=np.int64),
            self._block_of,
            numbered(self._bandwidths.view(np.int64)),
            self._roles_of_devices(),
            self._loads.edges,
        )

    def _roles_of_devices(self) -> Edges:
        devices: list[Integers] = [np.zeros(0, dtype=np.int64)]
        groups: list[Integers] = [np.zeros(0, dtype=np.int64)]
        weights: list[Integers] = [np.zeros(0, dtype=np.int64)]
        for graph, groups_of_roles in enumerate(self._groups.group_of):
            for role, group_of in enumerate(groups_of_roles):
                (members,) = np.nonzero(group_of >= 0)
                devices.append(members)
                groups.append(group_of[members])
                weights.append(np.full(len(members), (graph << 32) + role, dtype=np.int64))
        return Edges(
            source=np.concatenate(devices),
            target=np.concatenate(groups),
            weight=np.concatenate(weights),
        )

    def _device_class(self, devices: Integers, numbers: ClassNumbers) -> DeviceClass:
        first = int(devices[0])
        index = self._job.graph_of_device[first]
        own = [int(groups[first]) for groups in self._groups.group_of[index]]
        return DeviceClass(
            devices=tuple(devices.tolist()),
            graph=self._job.graphs[index],
            roles=self._roles[index],
            groups=tuple([group if group < 0 else int(numbers.groups[group]) for group in own]),
        )

    def _group_classes(self, numbers: ClassNumbers, loads: _ClassLoads) -> Iterator[GroupClass]:
        first_groups = [int(groups[0]) for groups in split(numbers.groups)]
        representatives = set(first_groups)
        row_of = {
            group: (index, row)
            for index, block in enumerate(self._blocks)
            for row, group in enumerate(block.groups.tolist())
            if group in representatives
        }
        for number, group in enumerate(first_groups):
            index, row = row_of[group]
            block = self._blocks[index]
            members = block.members[row]
            numbers_of = {pattern: self._same_links[index, pattern] for pattern in block.patterns}
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

    def __init__(self, loads: _Loads, numbers: ClassNumbers) -> None:
        self.first_link = [int(links[0]) for links in split(numbers.links)]
        is_first = np.zeros(len(numbers.links), dtype=bool)
        is_first[self.first_link] = True
        representative = loads.selected(np.nonzero(is_first[loads.link])[0])
        self._uses: dict[tuple[int, int], dict[int, int]] = {}
        self._on_link: dict[tuple[int, int], set[tuple[int, int]]] = {}
        entries = zip(
            numbers.groups[representative.group].tolist(),
            representative.group.tolist(),
            representative.pattern.tolist(),
            numbers.links[representative.link].tolist(),
            representative.messages.tolist(),
            strict=True,
        )
        is_folded = len(split(numbers.groups)) < len(numbers.groups)
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


Hashes: TypeAlias = NDArray[np.uint64]


@frozen
class Edges:
    """Weighted edges between two sorts of nodes."""

    source: Integers
    target: Integers
    weight: Integers


@frozen
class ClassNumbers:
    """The class numbers of devices, groups and links."""

    devices: Integers
    groups: Integers
    links: Integers


def refine(
    devices: Integers, groups: Integers, links: Integers, roles: Edges, loads: Edges
) -> ClassNumbers:
    """Return the coarsest stable refinement of initial classes.

    ``roles`` goes from devices to groups, ``loads`` from groups to links.
    """
    device, group, link = _mixed(devices), _mixed(groups), _mixed(links)
    role, load = _mixed(roles.weight), _mixed(loads.weight)
    count = 0
    while True:
        previous, count = count, sum(map(count_distinct, (device, group, link)))
        if count == previous:
            return ClassNumbers(
                devices=numbered(device), groups=numbered(group), links=numbered(link)
            )
        group = _mix(
            group
            + _sums(device[roles.source], role, roles.target, len(group))
            + _sums(link[loads.target], load, loads.source, len(group))
        )
        link = _mix(link + _sums(group[loads.source], load, loads.target, len(link)))
        device = _mix(device + _sums(group[roles.target], role, roles.source, len(device)))


def equal_targets(kinds: Integers, edges: Edges) -> Integers:
    """Return target numbers, equal for equal kinds and edges."""
    own = _mixed(kinds)
    return numbered(own + _sums(_mixed(edges.source), _mixed(edges.weight), edges.target, len(own)))


def numbered(values: Integers | Hashes) -> Integers:
    """Return value numbers, from 0 by first appearance."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[inverse.reshape(-1)]


def split(numbers: Integers) -> list[Integers]:
    """Return the ascending positions of each number, by number."""
    if not len(numbers):
        return []
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    return np.split(order, starts[1:])


def _sums(values: Hashes, weights: Hashes, to: Integers, count: int) -> Hashes:
    """Return the order-independent sums of weighted values by target."""
    sums = np.zeros(count, dtype=np.uint64)
    np.add.at(sums, to, _mix(values ^ weights))
    return sums


def _mixed(values: Integers) -> Hashes:
    return _mix(values.astype(np.uint64))


def _mix(values: Hashes) -> Hashes:
    """Spread 64 bits, one to one. Source: S. Vigna, splitmix64."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
