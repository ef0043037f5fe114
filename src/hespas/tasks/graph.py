"""Define the task graph of a program: tasks with dependencies.

One graph describes all devices that run the same program. A device takes part in a collective
if a group names it, sends if a pair starts at it, receives if a pair ends at it. It skips any
other task, and the tasks that depend on a skipped task inherit its dependencies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import assert_never

from hespas.base.frozen import frozen
from hespas.errors import TraceError
from hespas.program.collectives import CollectiveKind


@frozen
class ComputeTask:
    """Computation of a known duration on the device's compute stream.

    ``label`` groups tasks in reports: the kind of the most expensive operation. With ``is_on_host``
    the task runs on the CPU, which also runs one task at a time. ``operations`` and
    ``tensor_bytes`` are the work and the traffic, if a trace has them. Without ``has_duration`` a
    trace gave only these, and a roofline gives the duration. ``arithmetic_share`` is the share of
    the duration that arithmetic bounds.
    """

    id: int
    name: str
    depends_on: tuple[int, ...]
    duration_ps: int
    label: str = ""
    is_on_host: bool = False
    operations: int | None = None
    tensor_bytes: int | None = None
    has_duration: bool = True
    arithmetic_share: float = 1.0


HOST_LAUNCH = "host launch"
"""The label of the host's work to launch a kernel or a collective."""


def is_host_launch(task: Task) -> bool:
    """Return whether a task launches another one from the host."""
    return isinstance(task, ComputeTask) and task.is_on_host and task.label == HOST_LAUNCH


@frozen
class CollectiveTask:
    """A collective among the devices of one group.

    ``group_table`` indexes `TaskGraph.group_tables`; None means one group of all devices.
    ``size_bytes`` is one rank's input: its shard for all-gather, its full buffer otherwise.
    ``involved_dimensions`` limits a collective of all devices to some network dimensions.
    ``recorded_ps`` is the duration in a recorded trace: the task then takes that long and waits for
    no other device. Recorded sends, receives and memory accesses are such tasks too; for receives
    ``takes_slot`` is False, since a device may have any number of them in flight. ``order_only`` is
    the part of ``depends_on`` that only keeps the program's order of communication: see `needs`.
    ``kernel`` is the algorithm of a compiler's own all-reduce kernel: with ``one_shot`` each device
    reads the buffers of all others, with ``two_shot`` each adds up its part and reads the sums of
    the others.
    """

    id: int
    name: str
    depends_on: tuple[int, ...]
    kind: CollectiveKind
    size_bytes: int
    group_table: int | None
    involved_dimensions: tuple[bool, ...] | None = None
    recorded_ps: int | None = None
    takes_slot: bool = True
    order_only: tuple[int, ...] = ()
    kernel: str = ""


@frozen
class SendTask:
    """Every source in ``pairs`` sends ``size_bytes`` to its target.

    A device is the source of at most one pair. ``order_only``: see `CollectiveTask`.
    """

    id: int
    name: str
    depends_on: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    size_bytes: int
    tag: int
    order_only: tuple[int, ...] = ()


@frozen
class ReceiveTask:
    """Every target in ``pairs`` receives ``size_bytes`` from its source.

    A device is the target of at most one pair. A receive matches the send with the same source,
    target, tag and size; of several, the first matches the first. ``order_only``: see
    `CollectiveTask`.
    """

    id: int
    name: str
    depends_on: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    size_bytes: int
    tag: int
    order_only: tuple[int, ...] = ()


@frozen
class MemoryTask:
    """Every device accesses memory outside the devices.

    It moves ``size_bytes``. With ``duration_ps`` it is the host's memory: each device has its own
    link to it, on which the transfers of one direction run one at a time, beside all other work.
    Without it the system describes the memory.
    """

    id: int
    name: str
    depends_on: tuple[int, ...]
    size_bytes: int
    is_store: bool
    duration_ps: int | None = None


@frozen
class EmptyTask:
    """A task that ends when it starts.

    As in ASTRA-sim, tasks that depend on it start only when another task of the device ends. It
    starts when the device has no communication running, or, with ``is_compute``, no computation.
    """

    id: int
    name: str
    depends_on: tuple[int, ...]
    is_compute: bool = False


Task = ComputeTask | CollectiveTask | SendTask | ReceiveTask | MemoryTask | EmptyTask


def needs(task: Task) -> tuple[int, ...]:
    """Return a task's dependencies if communication may overtake communication.

    A device with one stream for all communication follows ``depends_on``, which keeps the program's
    order; a device with a stream for each group follows only the dependencies returned.

    >>> send = SendTask(id=3, name="", depends_on=(1, 2), pairs=((0, 1),), size_bytes=1, tag=0,
    ...                 order_only=(2,))
    >>> needs(send)
    (1,)
    """
    match task:
        case CollectiveTask() | SendTask() | ReceiveTask() if task.order_only:
            return tuple([dep for dep in task.depends_on if dep not in task.order_only])
        case _:
            return task.depends_on


GroupTable = tuple[tuple[int, ...], ...]


@frozen
class TaskGraph:
    """Tasks with unique ids, in order: dependencies come first.

    A device that can start several tasks starts the one with the lowest id. ``group_tables`` holds
    each distinct division of the devices into groups once.
    """

    name: str
    device_count: int
    tasks: tuple[Task, ...]
    group_tables: tuple[GroupTable, ...]


@frozen
class Job:
    """A cluster's task graphs, and each device's graph index.

    An SPMD program is one graph that every device follows.
    """

    graphs: tuple[TaskGraph, ...]
    graph_of_device: tuple[int, ...]

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return len(self.graph_of_device)


def as_job(work: Job | TaskGraph) -> Job:
    """Return ``work`` as a job; every device follows a graph."""
    if isinstance(work, Job):
        return work
    return Job(graphs=(work,), graph_of_device=(0,) * work.device_count)


_LONGEST_NAME = 60


def devices_text(devices: Iterable[int]) -> str:
    """Return devices as text, in ranges.

    >>> devices_text([0, 1, 2, 3, 8, 10, 11]), devices_text([5])
    ('devices 0-3, 8, 10-11', 'device 5')
    """
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and device == runs[-1][1] + 1:
            runs[-1][1] = device
        else:
            runs.append([device, device])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    is_one = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"{'device' if is_one else 'devices'} {', '.join(texts)}"


def short_devices_text(devices: tuple[int, ...]) -> str:
    """Return the devices of a class as a short text.

    >>> short_devices_text((0, 1, 2)), short_devices_text(tuple(range(0, 200, 2)))
    ('devices 0-2', '100 devices, the first one device 0')
    """
    text = devices_text(devices)
    if len(text) <= _LONGEST_NAME:
        return text
    return f"{len(devices)} devices, the first one device {min(devices)}"


ALWAYS = -1


@frozen
class Roles:
    """Which devices take part in which tasks of one graph.

    ``role_of_task`` gives, per task, an index into ``partners``, or `ALWAYS`. A map of
    ``partners`` holds the devices that take part: a collective's map gives a device the index
    of its group, a send's the target, a receive's the source.
    """

    role_of_task: tuple[int, ...]
    partners: tuple[Mapping[int, int], ...]

    def key(self, device: int) -> tuple[int | None, ...]:
        """Return the device's part in each role.

        Devices with equal keys have equal traces.
        """
        return tuple([partner.get(device) for partner in self.partners])


def find_roles(graph: TaskGraph) -> Roles:
    """Return the roles of a graph's devices.

    Raises `TraceError` for an id used twice, and for groups and pairs that name absent devices or
    give a device two parts in one task.
    """
    _check_ids(graph)
    partners: list[dict[int, int]] = []
    role_of_key: dict[object, int] = {}
    role_of_task: list[int] = []
    for task in graph.tasks:
        role_key = _role_key(task)
        if role_key is not None and role_key not in role_of_key:
            role_of_key[role_key] = len(partners)
            partners.append(_partners(graph, task))
        role_of_task.append(ALWAYS if role_key is None else role_of_key[role_key])
    return Roles(role_of_task=tuple(role_of_task), partners=tuple(partners))


def _check_ids(graph: TaskGraph) -> None:
    ids: set[int] = set()
    for task in graph.tasks:
        if task.id in ids:
            raise TraceError("the id is used twice", location=_location(graph, task))
        ids.add(task.id)


def _role_key(task: Task) -> object:
    match task:
        case ComputeTask() | CollectiveTask(group_table=None) | MemoryTask() | EmptyTask():
            return None
        case CollectiveTask():
            return task.group_table
        case SendTask() | ReceiveTask():
            return (type(task), task.pairs)
        case _:
            assert_never(task)


def _partners(graph: TaskGraph, task: Task) -> dict[int, int]:
    match task:
        case CollectiveTask(group_table=int(table)):
            if not 0 <= table < len(graph.group_tables):
                raise TraceError(f"no group table {table}", location=_location(graph, task))
            groups = graph.group_tables[table]
            partners = {device: i for i, group in enumerate(groups) for device in group}
            count = sum(map(len, groups))
        case SendTask():
            partners, count = dict(task.pairs), len(task.pairs)
        case ReceiveTask():
            partners = {target: source for source, target in task.pairs}
            count = len(task.pairs)
        case _:
            return {}
    _check_partners(graph, task, partners, count)
    return partners


def _check_partners(graph: TaskGraph, task: Task, partners: dict[int, int], count: int) -> None:
    if min(partners, default=0) < 0 or max(partners, default=0) >= graph.device_count:
        absent = next(device for device in partners if not 0 <= device < graph.device_count)
        message = f"device {absent} is not among the {graph.device_count} devices"
        raise TraceError(message, location=_location(graph, task))
    if len(partners) != count:
        raise TraceError("a device takes part twice", location=_location(graph, task))


def _location(graph: TaskGraph, task: Task) -> str:
    return f"{graph.name}: task {task.id} ({task.name})"


def own_tasks(
    graph: TaskGraph, roles: Roles, key: tuple[int | None, ...], *, keeps_order: bool = True
) -> Iterator[tuple[Task, int, tuple[int, ...]]]:
    """Yield a device's tasks with partner and dependencies.

    Tasks in which the device takes no part are left out, and their dependents inherit their
    dependencies. `Roles` defines the partner; it is 0 for a task without a role. Unless
    ``keeps_order``, communication may overtake communication: see `hespas.tasks.graph.needs`.
    Raises `TraceError` for a dependency that doesn't come earlier.
    """
    earlier: set[int] = set()
    inherited: dict[int, tuple[int, ...]] = {}
    for task, role in zip(graph.tasks, roles.role_of_task, strict=True):
        depends_on = task.depends_on if keeps_order else needs(task)
        if not earlier.issuperset(depends_on):
            raise TraceError(
                "depends on a task that is not before it", location=_location(graph, task)
            )
        depends_on = inherit(depends_on, inherited)
        partner = 0 if role == ALWAYS else key[role]
        earlier.add(task.id)
        if partner is None:
            inherited[task.id] = depends_on
        else:
            yield task, partner, depends_on


def inherit(
    depends_on: tuple[int, ...], inherited: Mapping[int, tuple[int, ...]]
) -> tuple[int, ...]:
    """Replace dependencies on omitted tasks by those tasks' own dependencies."""
    if not inherited or inherited.keys().isdisjoint(depends_on):
        return depends_on
    return tuple(dict.fromkeys(d for dep in depends_on for d in inherited.get(dep, (dep,))))
