"""Divide devices into classes that behave alike, so that one of each is simulated.

Devices and the places where they meet (groups, and channels from one device to another) are
coloured, and colours are refined until they are stable: two devices keep the same colour only
if they follow the same graph and meet alike coloured partners, in the same roles, at places of
equal timing. This is colour refinement of a bipartite graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from hespas.schedule.roles import ALWAYS, Roles, find_roles
from hespas.schedule.tasks import CollectiveTask, GroupTable, Job, SendTask, Task, TaskGraph

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Channel:
    """Where messages from one device to another pass."""

    source: int
    target: int


Place = Group | Channel
_PlaceFinder = Callable[[int, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """Devices that behave alike; the first one stands for all.

    ``places`` gives, per role of the graph, the number of the place class where the devices
    meet others (None where they take no part).
    """

    devices: tuple[int, ...]
    graph: TaskGraph
    roles: Roles
    places: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceClass:
    """Places that are alike: one of them, and the numbers of the device classes it joins."""

    place: Place
    members: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """A job's devices and places in classes; classes are in the order of their first device."""

    devices: tuple[DeviceClass, ...]
    places: tuple[PlaceClass, ...]


def fold(
    job: Job,
    timing: Callable[[Place], Hashable],
    *,
    each_alone: bool = False,
    in_order: bool = False,
) -> Folded:
    """Return the classes of a job's devices.

    ``timing`` gives what matters of a place to the clock. ``each_alone`` makes every device a
    class of its own; ``in_order`` tells groups apart by the order of their members, too. Raises
    `TraceError` if a graph contradicts itself.
    """
    return _Fold(job, timing, in_order=in_order).run(each_alone=each_alone)


class _Fold:
    def __init__(self, job: Job, timing: Callable[[Place], Hashable], *, in_order: bool) -> None:
        self._job = job
        self._in_order = in_order
        self._roles = [find_roles(graph) for graph in job.graphs]
        self._number_of: dict[Place, int] = {}
        self._number_of_group: dict[tuple[int, int], int] = {}
        finders = [
            self._place_finders(graph, roles)
            for graph, roles in zip(job.graphs, self._roles, strict=True)
        ]
        self._places_of = [
            self._find_places(device, self._roles[index], finders[index])
            for device, index in enumerate(job.graph_of_device)
        ]
        self._places = list(self._number_of)
        self._timing = _numbered(timing(place) for place in self._places)
        self._parts = self._find_parts()

    def _find_places(
        self, device: int, roles: Roles, finders: Sequence[_PlaceFinder]
    ) -> tuple[int | None, ...]:
        return tuple([
            None if partner is None else find(device, partner)
            for find, partner in zip(finders, roles.key(device), strict=True)
        ])  # fmt: skip

    def _place_finders(self, graph: TaskGraph, roles: Roles) -> list[_PlaceFinder]:
        first_task: dict[int, Task] = {}
        for task, role in zip(graph.tasks, roles.role_of_task, strict=True):
            if role != ALWAYS:
                first_task.setdefault(role, task)
        return [self._place_finder(graph, first_task[role]) for role in range(len(roles.partners))]

    def _place_finder(self, graph: TaskGraph, task: Task) -> _PlaceFinder:
        """Return what gives the number of the place where a device meets a partner."""
        match task:
            case CollectiveTask(group_table=int(table)):
                groups = graph.group_tables[table]
                return lambda _, group: self._group_number(groups, group)
            case SendTask():
                return lambda device, target: self._number(Channel(device, target))
            case _:
                return lambda device, source: self._number(Channel(source, device))

    def _group_number(self, groups: GroupTable, index: int) -> int:
        # Hashing a group takes time in its size, hashing a number doesn't.
        key = (id(groups), index)
        if key not in self._number_of_group:
            self._number_of_group[key] = self._number(groups[index])
        return self._number_of_group[key]

    def _number(self, place: Place) -> int:
        return self._number_of.setdefault(place, len(self._number_of))

    def _find_parts(self) -> list[dict[int, tuple[int, ...]]]:
        """Return, per place, the devices that meet there and the roles in which they do."""
        parts: list[dict[int, tuple[int, ...]]] = [{} for _ in self._places]
        for device, places in enumerate(self._places_of):
            for role, place in enumerate(places):
                if place is not None:
                    parts[place][device] = (*parts[place].get(device, ()), role)
        return parts

    def run(self, *, each_alone: bool) -> Folded:
        graphs = self._job.graph_of_device
        if each_alone:
            return self._result(list(range(len(graphs))), list(range(len(self._places))))
        colours = _numbered(zip(graphs, self._presence(), strict=True))
        while True:
            place_colours = self._colour_places(colours)
            finer = _numbered(
                (colour, *[None if place is None else place_colours[place] for place in places])
                for colour, places in zip(colours, self._places_of, strict=True)
            )
            if max(finer, default=0) == max(colours, default=0):
                return self._result(finer, self._colour_places(finer))
            colours = finer

    def _presence(self) -> Iterable[tuple[bool, ...]]:
        return (tuple([place is None for place in places]) for places in self._places_of)

    def _colour_places(self, colours: Sequence[int]) -> list[int]:
        return _numbered(
            (
                timing,
                frozenset((colours[device], roles) for device, roles in parts.items()),
                self._order(place, colours),
            )
            for timing, parts, place in zip(self._timing, self._parts, self._places, strict=True)
        )

    def _order(self, place: Place, colours: Sequence[int]) -> Group:
        if isinstance(place, Channel) or not self._in_order:
            return ()
        return tuple([colours[device] for device in place])

    def _result(self, colours: list[int], place_colours: list[int]) -> Folded:
        alike: list[list[int]] = [[] for _ in set(colours)]
        for device, colour in enumerate(colours):
            alike[colour].append(device)
        first_place = {colour: i for i, colour in reversed(list(enumerate(place_colours)))}
        return Folded(
            devices=tuple([self._device_class(devices, place_colours) for devices in alike]),
            places=tuple([
                self._place_class(self._places[first_place[number]], colours)
                for number in range(len(first_place))
            ]),
        )  # fmt: skip

    def _device_class(self, devices: list[int], place_colours: list[int]) -> DeviceClass:
        index = self._job.graph_of_device[devices[0]]
        places = self._places_of[devices[0]]
        return DeviceClass(
            devices=tuple(devices),
            graph=self._job.graphs[index],
            roles=self._roles[index],
            places=tuple([None if place is None else place_colours[place] for place in places]),
        )

    def _place_class(self, place: Place, colours: list[int]) -> PlaceClass:
        ends = (place.source, place.target) if isinstance(place, Channel) else place
        return PlaceClass(place=place, members=frozenset(colours[device] for device in ends))


def _numbered(values: Iterable[Hashable]) -> list[int]:
    """Return a number for each value, equal for equal ones, from 0 by first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]
