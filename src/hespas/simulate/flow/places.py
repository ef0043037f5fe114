"""Where the devices of a job meet: groups of collectives, and pairs of messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hespas.errors import SimulationError
from hespas.hardware.interconnect import Dimensions, Fabric, Shape
from hespas.schedule.roles import ALWAYS, Roles
from hespas.schedule.tasks import (
    CollectiveTask,
    CommunicationKind,
    Job,
    ReceiveTask,
    SendTask,
    Task,
)

if TYPE_CHECKING:
    from hespas.simulate.flow.ways import Integers

Use = tuple[str, int]
"""A collective by its kind, or ``send_recv``, and its size."""

_KINDS = {kind: kind.name.lower() for kind in CommunicationKind} | {
    CommunicationKind.REDUCE_SCATTER_BLOCK: "reduce_scatter"
}


def use_of(task: CollectiveTask | SendTask | ReceiveTask) -> Use:
    """Return what a task of communication is."""
    kind = _KINDS[task.kind] if isinstance(task, CollectiveTask) else "send_recv"
    return kind, task.size_bytes


@dataclass(slots=True, kw_only=True)
class Places:
    """All places of a job, numbered; pairs are groups of two, from source to target.

    ``blocks`` holds them by size: (numbers of places, a row of members each). ``place_of`` gives,
    by graph and role, the place of each device, -1 for none. ``world`` is the place of all.
    ``uses`` gives what is done at a place.
    """

    blocks: list[tuple[Integers, Integers]]
    place_of: list[list[Integers]]
    world: int | None
    uses: list[frozenset[Use]]
    count: int


@dataclass(slots=True)
class _Finder:
    job: Job
    roles: list[Roles]
    numbers: dict[object, int] = field(default_factory=dict[object, int])
    members: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    uses: list[set[Use]] = field(default_factory=list[set[Use]])

    def number(self, members: tuple[int, ...], *, is_pair: bool) -> int:
        key = (members, is_pair)
        found = self.numbers.setdefault(key, len(self.members))
        if found == len(self.members):
            self.members.append(members)
            self.uses.append(set())
        return found


def find_places(job: Job, roles: list[Roles]) -> Places:
    """Return the places of a job.

    Raises `SimulationError` for a group of one device, and a device that sends to itself.
    """
    import numpy as np  # noqa: PLC0415 - numpy takes 60 ms to import

    finder = _Finder(job, roles)
    place_of = [_of_graph(finder, index) for index in range(len(job.graphs))]
    world = _world(finder)
    by_size: dict[int, list[int]] = {}
    for number, members in enumerate(finder.members):
        by_size.setdefault(len(members), []).append(number)
    blocks = [
        (
            np.array(numbers, dtype=np.int64),
            np.array([finder.members[number] for number in numbers], dtype=np.int64),
        )
        for numbers in by_size.values()
    ]
    return Places(
        blocks=blocks,
        place_of=place_of,
        world=world,
        uses=[frozenset(uses) for uses in finder.uses],
        count=len(finder.members),
    )


def _of_graph(finder: _Finder, index: int) -> list[Integers]:
    """Return the places of the devices in each role of a graph."""
    graph, roles = finder.job.graphs[index], finder.roles[index]
    first: dict[int, Task] = {}
    uses: dict[int, set[Use]] = {}
    for task, role in zip(graph.tasks, roles.role_of_task, strict=True):
        if role != ALWAYS and isinstance(task, CollectiveTask | SendTask | ReceiveTask):
            first.setdefault(role, task)
            uses.setdefault(role, set()).add(use_of(task))
    return [_of_role(finder, index, first[role], uses[role]) for role in range(len(first))]


def _of_role(finder: _Finder, index: int, task: Task, uses: set[Use]) -> Integers:
    import numpy as np  # noqa: PLC0415 - as above

    job = finder.job
    graph = job.graphs[index]
    found = np.full(job.device_count, -1, dtype=np.int64)
    follows = np.array(job.graph_of_device, dtype=np.int64) == index
    if isinstance(task, CollectiveTask):
        groups = graph.group_tables[task.group_table or 0]
        for group in groups:
            if len(group) < 2:
                message = f"the group {list(group)} has only one member"
                raise SimulationError(message, hint="leave collectives of one device out")
            number = finder.number(group, is_pair=False)
            found[list(group)] = number
            finder.uses[number] |= uses
    elif isinstance(task, SendTask | ReceiveTask):
        for source, target in task.pairs:
            if source == target:
                raise SimulationError(f"device {source} sends to itself")
            own = source if isinstance(task, SendTask) else target
            if follows[own]:
                number = finder.number((source, target), is_pair=True)
                found[own] = number
                finder.uses[number] |= uses
    return np.where(follows, found, -1)


def _world(finder: _Finder) -> int | None:
    """Return the place of all devices, if anything is done there."""
    uses = {
        use_of(task)
        for graph in finder.job.graphs
        for task in graph.tasks
        if isinstance(task, CollectiveTask) and task.group_table is None
    }
    if not uses:
        return None
    if finder.job.device_count < 2:
        raise SimulationError("a collective of all devices has only one member")
    number = finder.number(tuple(range(finder.job.device_count)), is_pair=False)
    finder.uses[number] |= uses
    return number


def shapes_of(members: Integers, fabric: Fabric, *, is_irregular: bool) -> Integers:
    """Return a number for each row of members; equal ones cross links of the same kinds alike.

    That is so where all members are equally far from the first one along every dimension.
    ``is_irregular`` tells that links of one dimension differ: no two groups are alike then.
    """
    import numpy as np  # noqa: PLC0415 - as above

    if is_irregular or not isinstance(fabric, Dimensions):
        return np.arange(len(members), dtype=np.int64)
    columns: list[Integers] = []
    rest = members
    for dimension in fabric.dimensions:
        own = rest % dimension.size
        columns.append((own - own[:, :1]) % dimension.size)
        if dimension.shape is Shape.FAT_TREE:
            columns.append(own[:, :1] % (dimension.leaf_size or 1))
        rest = rest // dimension.size
    table = np.concatenate(columns, axis=1)
    if (table == table[0]).all():
        return np.zeros(len(members), dtype=np.int64)
    _, shapes = np.unique(table, axis=0, return_inverse=True)
    return shapes.reshape(-1).astype(np.int64)
