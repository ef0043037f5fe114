"""A step's communication, by kind, groups and network dimensions.

Figures are those of the slowest device, every device as specified. A moment without computation is
charged to the communication under way that started first, so that exposed times add up to the
step's; where nothing is under way, the device is idle, in a row of its own.

Bus bandwidth is what a device must send at least, over the time. Source: NVIDIA, nccl-tests,
doc/PERFORMANCE.md, for networks of one kind of link. Here a device has links along several
dimensions, and the limit is that of the narrowest cut: the devices that agree in the farther
dimensions, such as a node, have only their own links in these to exchange what the others need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, pairwise
from math import prod
from types import UnionType
from typing import TypeAlias, assert_never

from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_S
from hespas.hardware.interconnect import Dimension, Shape
from hespas.hardware.system import System, interconnect_of
from hespas.prediction.figures.schema import IDLE, SLOWED, CommunicationRow
from hespas.prediction.result import Prediction
from hespas.program.collectives import CollectiveKind
from hespas.program.groups import groups_along, on_devices
from hespas.simulate.timeline import ClassTimeline, Interval, exposed_parts
from hespas.tasks.graph import CollectiveTask, ComputeTask, GroupTable, ReceiveTask, SendTask


@frozen
class Bus:
    """A network's dimensions, nearest first, along which devices are numbered."""

    dimensions: tuple[Dimension, ...]

    def used(self, groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the numbers of the dimensions that groups extend along."""
        return tuple(
            number
            for number, (stride, dimension) in enumerate(self._with_strides())
            if any(
                len({member // stride % dimension.size for member in group}) > 1 for group in groups
            )
        )

    def limit_bytes_per_s(
        self, kind: CollectiveKind | None, members: Sequence[int]
    ) -> float | None:
        """Return a group's highest possible bus bandwidth, if known.

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

    def _with_strides(self) -> Iterator[tuple[int, Dimension]]:
        stride = 1
        for dimension in self.dimensions:
            yield stride, dimension
            stride *= dimension.size

    def _levels(self, kind: CollectiveKind | None, members: Sequence[int]) -> Iterator[_Level]:
        for stride, dimension in self._with_strides():
            shape, parameters = dimension.shape, dimension.parameters
            positions = [member // stride % dimension.size for member in members]
            along = len(set(positions))
            is_between = min(positions) < positions[0] < max(positions)
            from_both_sides = shape is Shape.LINE and kind in _ROOTED and is_between
            # The figures of a measured link are those of all links of a device together, or to one
            # other device where they are connected in pairs.
            is_total = dimension.measured is not None and shape is not Shape.FULLY_CONNECTED
            links = 2 if from_both_sides else _links(shape, along)
            yield _Level(
                members=along,
                links=1 if is_total else links,
                link_bytes_per_s=parameters.bandwidth_bytes_per_s,
                reduces_in_switch=parameters.reduces_in_switch,
            )


_ROOTED = {CollectiveKind.GATHER, CollectiveKind.SCATTER}
"""Kinds whose root sends or receives alone: on a line, perhaps to both sides."""


@frozen
class _Level:
    """A group's positions and links along one dimension."""

    members: int
    links: int
    link_bytes_per_s: float
    reduces_in_switch: bool


def bus_of(system: System, *, model: str) -> Bus | None:
    """Return the network as a model sees it, if any."""
    if model == "astra-sim":
        system = replace(system, interconnect=None)
    if system.interconnect is None and not system.dimensions:
        return None
    dimensions = interconnect_of(system).dimensions
    return Bus(dimensions=dimensions) if dimensions else None


def sent_bytes(kind: CollectiveKind, members: int, size_bytes: int) -> float:
    """Return the least bytes that a collective's device sends.

    In a gather or scatter it is what the one that has all must receive or send.

    >>> sent_bytes(CollectiveKind.ALL_REDUCE, 4, 1000)
    1500.0
    """
    match kind:
        case CollectiveKind.ALL_REDUCE:
            return 2 * (members - 1) / members * size_bytes
        case CollectiveKind.ALL_GATHER | CollectiveKind.GATHER:
            return float((members - 1) * size_bytes)
        case (
            CollectiveKind.REDUCE_SCATTER
            | CollectiveKind.REDUCE_SCATTER_BLOCK
            | CollectiveKind.ALL_TO_ALL
            | CollectiveKind.SCATTER
        ):
            return (members - 1) / members * size_bytes
        case _:
            return float(size_bytes)


def _links(shape: Shape, members: int) -> int:
    """Return a device's links to other members along a dimension."""
    match shape:
        case Shape.SWITCH | Shape.FAT_TREE | Shape.LINE:
            return 1
        case Shape.RING:
            return 2
        case Shape.FULLY_CONNECTED:
            return members - 1
        case _:
            assert_never(shape)


def _share(kind: CollectiveKind, members: int, blocks: int, *, reduces_in_switch: bool) -> float:
    """Return bus bandwidth per bandwidth of a block's links.

    All blocks together exchange at least ``blocks - 1`` times the data, twice to reduce it for
    all, or once each where switches add it up; all-to-all sends each byte by itself.
    """
    match kind:
        case CollectiveKind.ALL_REDUCE if reduces_in_switch:
            return 2 * (members - 1) / blocks
        case (
            CollectiveKind.ALL_REDUCE
            | CollectiveKind.ALL_GATHER
            | CollectiveKind.GATHER
            | CollectiveKind.REDUCE_SCATTER
            | CollectiveKind.REDUCE_SCATTER_BLOCK
            | CollectiveKind.SCATTER
        ):
            return (members - 1) / (blocks - 1)
        case CollectiveKind.ALL_TO_ALL:
            return (members - 1) / (members - members / blocks)
        case _:
            return members / blocks


_SUBSETS = 5
_PERMUTE = "collective_permute"
Communication = CollectiveTask | SendTask | ReceiveTask
_RowKey: TypeAlias = tuple[str, str, str]
"""A kind, mesh axes and dimensions."""


@dataclass(slots=True, kw_only=True)
class _Row:
    """Communication of one kind among the same groups."""

    size: int
    count: int = 0
    size_bytes: int = 0
    sent_bytes: float = 0.0
    time_ps: int = 0
    exposed_ps: int = 0
    waits_ps: int = 0
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    limits: set[float | None] = field(default_factory=set[float | None])

    @property
    def limit_bytes_per_s(self) -> float | None:
        """The highest limit, if all are known."""
        limits = [limit for limit in self.limits if limit is not None]
        return max(limits) if len(limits) == len(self.limits) > 0 else None


def communication_rows(prediction: Prediction) -> list[CommunicationRow]:
    """Return a row for each kind, groups and dimensions.

    The rows are sorted by their exposed time.
    """
    if prediction.timeline is None:
        return []
    device = prediction.timeline.as_specified or prediction.timeline.slowest
    own, names = device.devices[0], _Names(prediction, device)
    totals: dict[_RowKey, _Row] = {}
    consumers, waits_ps = _consumers(device), device.waits_ps or {}
    # A message between stages that nothing hides is a wait for another one, not communication.
    waited_ps: Mapping[int, int] = {}
    if prediction.stages:
        waited_ps = exposed_by_task(device, SendTask | ReceiveTask)
    exposed = exposed_by_task(device, CollectiveTask if prediction.stages else Communication)
    for task in _communication(device):
        kind = task.kind if isinstance(task, CollectiveTask) else None
        place = names.place(task)
        row = totals.setdefault(place.key, _Row(size=place.size))
        row.limits.add(place.limit_bytes_per_s)
        exposed_ps = exposed.get(task.id, 0)
        row.exposed_ps += exposed_ps
        if exposed_ps and task.id in consumers:
            waits = consumers[task.id]
            row.waiting[waits] = row.waiting.get(waits, 0) + exposed_ps
        # Where a device also sends in what it receives, the two are one permutation.
        if isinstance(task, ReceiveTask) and any(source == own for source, _ in task.pairs):
            continue
        start, end = device.nodes[task.id]
        size = place.size
        sent = float(task.size_bytes) if kind is None else sent_bytes(kind, size, task.size_bytes)
        row.count += 1
        row.size_bytes += task.size_bytes
        row.sent_bytes += sent
        row.time_ps += end - start - waited_ps.get(task.id, 0)
        row.waits_ps += max(0, waits_ps.get(task.id, 0) - waited_ps.get(task.id, 0))
    knows_waits = device.waits_ps is not None
    rows = [_finished(key, row, knows_waits=knows_waits) for key, row in totals.items()]
    idle_ps = device.exposed_communication_ps - sum(row.exposed_ps for row in totals.values())
    for kind, time_ps in ((SLOWED, device.slowed_ps), (IDLE, idle_ps - device.slowed_ps)):
        if time_ps > 0:
            rows.append(plain_row(kind, "", 1, time_ps / PS_PER_S, time_ps / PS_PER_S))
    return sorted(rows, key=lambda row: (-row.exposed_s, -row.time_s, row.kind, row.axis))


def _communication(device: ClassTimeline) -> Iterator[Communication]:
    for task in device.graph.tasks:
        if task.id in device.nodes and isinstance(task, Communication):
            yield task


def exposed_by_task(device: ClassTimeline, kinds: type | UnionType) -> Mapping[int, int]:
    """Return the time of each communication of some kinds that no computation hides."""
    exposed: Counter[int] = Counter()
    for task, (start, end) in exposed_communication(device, kinds):
        exposed[task.id] += end - start
    return exposed


def exposed_communication(
    device: ClassTimeline, kinds: type | UnionType = Communication
) -> Iterator[tuple[Communication, Interval]]:
    """Yield the intervals without computation, by their communication."""
    busy: list[Interval] = sorted(
        device.nodes[task.id]
        for task in device.graph.tasks
        if task.id in device.nodes and isinstance(task, ComputeTask) and not task.is_on_host
    )
    tasks = (task for task in _communication(device) if isinstance(task, kinds))
    ordered = sorted(tasks, key=lambda task: (device.nodes[task.id], task.id))
    until = 0
    spans: list[Interval] = []
    for task in ordered:
        start, end = device.nodes[task.id]
        spans.append((max(start, until), max(end, until)))
        until = max(until, end)
    for task, parts in zip(ordered, exposed_parts(busy, spans), strict=True):
        yield from ((task, part) for part in parts)


def _consumers(device: ClassTimeline) -> Mapping[int, str]:
    """Return the name of each task's waiter.

    It is the first computation that needs the task, else the first other task.
    """
    first: dict[int, tuple[bool, int, str]] = {}
    for task in device.graph.tasks:
        if task.id not in device.nodes:
            continue
        rank = (not isinstance(task, ComputeTask), device.nodes[task.id][0], task.name)
        for need in task.depends_on:
            if need not in first or rank < first[need]:
                first[need] = rank
    return {task: name for task, (_, _, name) in first.items()}


@frozen
class _Place:
    """Where a communication is: its row, the size of a group, and its highest bandwidth."""

    key: _RowKey
    size: int
    limit_bytes_per_s: float | None


class _Names:
    """Names of groups, by the mesh and the network.

    They are found once for each table of groups: those of a million devices are long.
    """

    def __init__(self, prediction: Prediction, device: ClassTimeline) -> None:
        self.tables, self.own = device.graph.group_tables, device.devices[0]
        self.places: dict[tuple[CollectiveKind | None, int | None], _Place] = {}
        self.devices, self.axes = prediction.devices, prediction.mesh
        self.order = prediction.graph.program.global_facts.device_order
        self.bus = _bus(prediction)
        self.axis, self.dimension = cache(self._axis), cache(self._dimension)

    def place(self, task: Communication) -> _Place:
        """Return where a communication is."""
        if isinstance(task, CollectiveTask):
            kind, number = task.kind, task.group_table
        else:
            kind, number = None, id(task.pairs)
        if (kind, number) not in self.places:
            groups = self._groups(task)
            name = _PERMUTE if kind is None else kind.text
            axis = self.axis(groups, is_whole=kind is not None)
            self.places[kind, number] = _Place(
                key=(name, axis, self.dimension(groups)),
                size=max(map(len, groups)),
                limit_bytes_per_s=self._limit(kind, groups, self.own),
            )
        return self.places[kind, number]

    def _groups(self, task: Communication) -> GroupTable:
        if not isinstance(task, CollectiveTask):
            return task.pairs
        if task.group_table is None:
            return (tuple(range(self.devices)),)
        return self.tables[task.group_table]

    def _axis(self, groups: GroupTable, *, is_whole: bool) -> str:
        """Return the mesh axes or the shape of groups."""
        if prod(size for _, size in self.axes) == self.devices:
            axes = [(name, size) for name, size in self.axes if size > 1]
            for count in range(1, min(len(axes), _SUBSETS) + 1):
                for used in combinations(axes, count):
                    if is_whole and prod(size for _, size in used) != len(groups[0]):
                        continue
                    names = [name for name, _ in used]
                    along = on_devices(groups_along(self.axes, names), self.order)
                    if _are_same(groups, along) if is_whole else _are_inside(groups, along):
                        return "+".join(names)
        return _shape(groups, self.devices, is_whole=is_whole)

    def _dimension(self, groups: GroupTable) -> str:
        """Return the numbers of a group's dimensions, nearest 0."""
        return "" if self.bus is None else "+".join(map(str, self.bus.used(groups)))

    def _limit(self, kind: CollectiveKind | None, groups: GroupTable, device: int) -> float | None:
        """Return a device's highest possible bandwidth, if known."""
        if self.bus is None:
            return None
        own = [group for group in groups if device in group]
        limits = [self.bus.limit_bytes_per_s(kind, group) for group in own]
        return max((limit for limit in limits if limit is not None), default=None)


def _are_same(groups: GroupTable, along: GroupTable) -> bool:
    """Return whether groups are those along mesh axes, in any order."""
    if groups == along:
        return True
    member, first = groups[0][0], frozenset(groups[0])
    if not any(member in group and first == frozenset(group) for group in along):
        return False
    return set(map(frozenset, groups)) == set(map(frozenset, along))


def _are_inside(pairs: GroupTable, along: GroupTable) -> bool:
    """Return whether the ends of each pair are in one group."""
    group_of = {member: number for number, group in enumerate(along) for member in group}
    return all(len({group_of[member] for member in pair}) <= 1 for pair in pairs)


def _bus(prediction: Prediction) -> Bus | None:
    """Return the dimensions that have all devices, if any."""
    if prediction.system is None or prediction.timeline is None:
        return None
    bus = bus_of(prediction.system, model=prediction.timeline.model)
    sizes = [] if bus is None else [dimension.size for dimension in bus.dimensions]
    return bus if prod(sizes) == prediction.devices else None


def _shape(groups: GroupTable, devices: int, *, is_whole: bool) -> str:
    """Describe groups by their size and stride.

    >>> _shape(((0, 4), (1, 5)), 8, is_whole=True), _shape(((0, 1, 2, 3),), 4, is_whole=True)
    ('groups of 2, stride 4', 'all 4')
    """
    if not is_whole:
        return f"{len(groups)} pairs"
    sizes = {len(group) for group in groups}
    if sizes == {devices}:
        return f"all {devices}"
    if len(sizes) > 1:
        return f"groups of {min(sizes)} to {max(sizes)}"
    strides = {after - before for group in groups for before, after in pairwise(group)}
    stride = f", stride {strides.pop()}" if len(strides) == 1 else ""
    return f"groups of {sizes.pop()}{stride}"


def _finished(key: _RowKey, row: _Row, *, knows_waits: bool) -> CommunicationRow:
    kind, axis, dimension = key
    sending_s = (row.time_ps - row.waits_ps) / PS_PER_S
    time_s = row.time_ps / PS_PER_S
    exposed_s = row.exposed_ps / PS_PER_S
    longest = max(row.waiting, key=lambda name: (row.waiting[name], name), default=None)
    return CommunicationRow(
        kind=kind,
        axis=axis,
        dimension=dimension,
        devices=row.size,
        count=row.count,
        bytes=float(row.size_bytes),
        bytes_per_s=row.sent_bytes / sending_s if sending_s > 0 else None,
        limit_bytes_per_s=row.limit_bytes_per_s,
        time_s=time_s,
        waiting_s=row.waits_ps / PS_PER_S if knows_waits else None,
        hidden_s=max(0.0, time_s - exposed_s),
        exposed_s=exposed_s,
        waits=longest,
    )


def plain_row(
    kind: str, axis: str, devices: int, time_s: float, exposed_s: float
) -> CommunicationRow:
    """Return a row that has only times."""
    return CommunicationRow(
        kind=kind,
        axis=axis,
        dimension="",
        devices=devices,
        count=0,
        bytes=0.0,
        bytes_per_s=None,
        limit_bytes_per_s=None,
        time_s=time_s,
        waiting_s=None,
        hidden_s=max(0.0, time_s - exposed_s),
        exposed_s=exposed_s,
        waits=None,
    )
