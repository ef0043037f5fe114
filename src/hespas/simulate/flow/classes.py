"""Devices, places and links of a job on a network, in classes of which one is simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hespas.schedule.roles import Roles
from hespas.schedule.tasks import Job
from hespas.simulate.astra.folding import DeviceClass
from hespas.simulate.flow.arrangement import Group, message_count
from hespas.simulate.flow.colours import Colours, Joins, numbered, refine
from hespas.simulate.flow.footprints import Footprint, footprint, joined, same_links
from hespas.simulate.flow.merging import Merging, Uses, merged, split
from hespas.simulate.flow.patterns import Pattern
from hespas.simulate.flow.places import Places, Use, find_places, shapes_of
from hespas.simulate.flow.plans import Plan, Planner
from hespas.simulate.flow.rates import rate_units
from hespas.simulate.flow.ways import Wiring
from hespas.simulate.room import BYTES_PER_TASK, check_room

if TYPE_CHECKING:
    from hespas.simulate.flow.ways import Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceClass:
    """Places that are alike.

    ``members`` are the numbers of the device classes that meet there, ``devices`` those of one
    place. ``uses`` are the links that the messages of a pattern cross, at all places of the class
    together; ``rivals`` the plans in which several places of the class load the same link.
    """

    members: frozenset[int]
    devices: tuple[int, ...]
    plans: Mapping[Use, Plan]
    uses: Mapping[Pattern, Uses]
    rivals: frozenset[Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """All of a job's devices and places, in the order of their first ones.

    ``capacities`` gives the bandwidth of links by class, in units of rates. ``world`` is the class
    of the place of all devices.
    """

    devices: tuple[DeviceClass, ...]
    places: tuple[PlaceClass, ...]
    world: int | None
    capacities: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Places that are alike but for where they are."""

    group: Group
    places: Integers
    members: Integers
    plans: Mapping[Use, Plan]


def find_classes(
    job: Job,
    roles: list[Roles],
    wiring: Wiring,
    planner: Planner,
    *,
    is_irregular: bool,
    is_folded: bool,
) -> Classes:
    """Return the classes of a job's devices and places.

    ``is_irregular`` tells that links of one dimension differ in bandwidth or latency. Unless
    ``is_folded``, every device is a class of its own. Raises `SimulationError` for groups of one
    and what has no algorithm, and for what would take more memory than there is.
    """
    places = find_places(job, roles)
    blocks = list(_blocks(places, planner, is_irregular=is_irregular))
    check_room(sum(_messages(block) for block in blocks))
    return _Classes(job, roles, wiring, places, blocks).run(is_folded=is_folded)


def _blocks(places: Places, planner: Planner, *, is_irregular: bool) -> Iterable[_Block]:
    import numpy as np  # noqa: PLC0415 - numpy takes 60 ms to import

    fabric = planner.fabric
    kinds_of_uses: dict[frozenset[Use], int] = {}
    count = 0
    for numbers, members in places.blocks:
        shapes = shapes_of(members, fabric, is_irregular=is_irregular)
        listed: list[int] = numbers.tolist()
        uses = [
            kinds_of_uses.setdefault(places.uses[number], len(kinds_of_uses)) for number in listed
        ]
        alike = numbered(shapes * (len(kinds_of_uses) + 1) + np.array(uses, dtype=np.int64))
        order = np.argsort(alike, kind="stable")
        starts = np.flatnonzero(np.diff(alike[order], prepend=-1))
        for chosen in np.split(order, starts[1:]):
            group = Group(number=count, members=members[chosen[0]], fabric=fabric)
            count += 1
            yield _Block(
                group=group,
                places=numbers[chosen],
                members=members[chosen],
                plans={
                    use: _plan(planner, group, use)
                    for use in sorted(places.uses[numbers[chosen[0]]])
                },
            )


def _plan(planner: Planner, group: Group, use: Use) -> Plan:
    kind, size_bytes = use
    if kind == "send_recv":
        return planner.message(group, size_bytes)
    return planner.collective(group, kind, size_bytes)


def _messages(block: _Block) -> int:
    """Return about how many messages the places of a block have in all patterns."""
    each = sum(message_count(pattern, block.group) for pattern in _patterns(block))
    return len(block.places) * each


def _patterns(block: _Block) -> tuple[Pattern, ...]:
    found = [pattern for plan in block.plans.values() for pattern in plan.patterns]
    return tuple(dict.fromkeys(found))


class _Classes:
    def __init__(
        self,
        job: Job,
        roles: list[Roles],
        wiring: Wiring,
        places: Places,
        blocks: list[_Block],
    ) -> None:
        import numpy as np  # noqa: PLC0415 - as above

        self._job = job
        self._roles = roles
        self._places = places
        self._blocks = blocks
        self._numbers: dict[Pattern, int] = {}
        self._same: dict[tuple[int, Pattern], int] = {}
        self._block_of = np.zeros(places.count, dtype=np.int64)
        loads = joined([part for index in range(len(blocks)) for part in self._load(wiring, index)])
        links, link = np.unique(loads.link, return_inverse=True)
        bandwidths = wiring.bytes_per_ns(links)
        self._loads, kept = merged(replace(loads, link=link.reshape(-1)), bandwidths)
        self._bandwidths = bandwidths[kept]

    def _load(self, wiring: Wiring, index: int) -> list[Footprint]:
        """Return what the places of a block load, each set of links once."""
        block = self._blocks[index]
        self._block_of[block.places] = index
        found: list[Footprint] = []
        for pattern in _patterns(block):
            number = self._numbers.setdefault(pattern, len(self._numbers))
            new = footprint(
                wiring,
                block.group,
                pattern,
                places=block.places,
                members=block.members,
                number=number,
            )
            known = next((one for one in found if same_links(one, new)), None)
            if known is None:
                found.append(new)
            elif len(known.pattern):
                number = int(known.pattern[0])
            self._same[index, pattern] = number
        return found

    def run(self, *, is_folded: bool) -> Classes:
        colours = self._refined() if is_folded else self._each_alone()
        device_classes = self._device_classes(colours)
        tasks = sum(len(one.graph.tasks) for one in device_classes)
        check_room(tasks, "tasks", bytes_each=BYTES_PER_TASK)
        places = Merging(self._loads, colours)
        return Classes(
            devices=device_classes,
            places=tuple(self._place_classes(colours, places)),
            world=None if self._places.world is None else int(colours.places[self._places.world]),
            capacities={
                number: rate_units(float(self._bandwidths[link]))
                for number, link in enumerate(places.first_link)
            },
        )

    def _each_alone(self) -> Colours:
        import numpy as np  # noqa: PLC0415 - as above

        return Colours(
            devices=np.arange(self._job.device_count),
            places=np.arange(self._places.count),
            links=np.arange(len(self._bandwidths)),
        )

    def _refined(self) -> Colours:
        import numpy as np  # noqa: PLC0415 - as above

        weight = (self._loads.pattern << 32) + self._loads.messages
        return refine(
            np.array(self._job.graph_of_device, dtype=np.int64),
            self._block_of,
            numbered(self._bandwidths.view(np.int64)),
            self._role_joins(),
            Joins(one=self._loads.place, other=self._loads.link, weight=weight),
        )

    def _role_joins(self) -> Joins:
        import numpy as np  # noqa: PLC0415 - as above

        devices: list[Integers] = []
        places: list[Integers] = []
        weights: list[Integers] = []
        for graph, of_roles in enumerate(self._places.place_of):
            for role, place_of in enumerate(of_roles):
                (taking,) = np.nonzero(place_of >= 0)
                devices.append(taking)
                places.append(place_of[taking])
                weights.append(np.full(len(taking), (graph << 32) + role, dtype=np.int64))
        empty = [np.zeros(0, dtype=np.int64)]
        return Joins(
            one=np.concatenate(devices or empty),
            other=np.concatenate(places or empty),
            weight=np.concatenate(weights or empty),
        )

    def _device_classes(self, colours: Colours) -> tuple[DeviceClass, ...]:
        return tuple([self._device_class(devices, colours) for devices in split(colours.devices)])

    def _device_class(self, devices: Integers, colours: Colours) -> DeviceClass:
        first = int(devices[0])
        index = self._job.graph_of_device[first]
        own = [int(places[first]) for places in self._places.place_of[index]]
        return DeviceClass(
            devices=tuple(devices.tolist()),
            graph=self._job.graphs[index],
            roles=self._roles[index],
            places=tuple([None if one < 0 else int(colours.places[one]) for one in own]),
        )

    def _place_classes(self, colours: Colours, merging: Merging) -> Iterable[PlaceClass]:
        row_of: dict[int, tuple[int, int]] = {}
        first_places = [int(places[0]) for places in split(colours.places)]
        wanted = set(first_places)
        for index, block in enumerate(self._blocks):
            for row, place in enumerate(block.places.tolist()):
                if place in wanted:
                    row_of[place] = (index, row)
        for number, place in enumerate(first_places):
            index, row = row_of[place]
            block = self._blocks[index]
            members = block.members[row]
            uses = {
                pattern: merging.uses(number, self._same[index, pattern])
                for pattern in _patterns(block)
            }
            rivals = [
                plan
                for plan in block.plans.values()
                if merging.are_rivals(
                    number, {self._same[index, pattern] for pattern in plan.patterns}
                )
            ]
            yield PlaceClass(
                members=frozenset(colours.devices[members].tolist()),
                devices=tuple(members.tolist()),
                plans=block.plans,
                uses=uses,
                rivals=frozenset(rivals),
            )
