"""Times of a micro-batch's passes through a model's part.

The program has both passes of one micro-batch. Its computation is told apart by the phases of its
operations, and so is communication that no computation hides; so the two add up to the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from operator import add

from hespas.base.frozen import frozen
from hespas.hardware.system import System
from hespas.memory.usage import held_between
from hespas.models.model import EXPERT, PIPE, SHARED, MeshAxes, Part, PartProgram
from hespas.prediction.launches import Launch, launch_of, launch_waits_ps
from hespas.prediction.result import Prediction
from hespas.program.collectives import CollectiveKind
from hespas.program.devices import device_group_table
from hespas.program.groups import groups_along
from hespas.program.program import Op, Program
from hespas.program.rewrite import with_bodies, without_identities
from hespas.program.scopes import Phase
from hespas.program.types import DEVICE_MEMORY, HOST_MEMORY, size_bytes
from hespas.simulate.models import ModelChoice, simulate_job
from hespas.simulate.timeline import slower_ps
from hespas.split.names import operation_names
from hespas.split.regions import Collective, Compute, Region, operations_of
from hespas.tasks.build import regions_of_tasks
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    GroupTable,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
)
from hespas.tasks.pipelining.schedule import Pass

Groups = frozenset[frozenset[int]]


def without_sums(program: Program, part: Part) -> Program:
    """Return a part's program of one device without once-per-step sums."""
    dropped = _dropped(part)
    if not dropped:
        return program

    def is_sum(op: Op) -> bool:
        return op.kind == "all_reduce" and _groups(device_group_table(op, program)) in dropped

    return with_bodies(program, lambda body: without_identities(body, is_sum))


def tasks_without_sums(tasks: TaskGraph, part: Part) -> TaskGraph:
    """Return the tasks of a part's program without once-per-step sums."""
    dropped = _dropped(part)
    if not dropped:
        return tasks
    rewired: dict[int, tuple[int, ...]] = {}
    remaining: list[Task] = []

    def followed(needs: tuple[int, ...]) -> tuple[int, ...]:
        needed = (task for need in needs for task in rewired.get(need, (need,)))
        return tuple(sorted(set(needed)))

    for task in tasks.tasks:
        match task:
            case CollectiveTask(kind=CollectiveKind.ALL_REDUCE) if (
                groups_of_task(task, tasks) in dropped
            ):
                rewired[task.id] = followed(task.depends_on)
            case CollectiveTask() | SendTask() | ReceiveTask():
                order = followed(task.order_only)
                remaining.append(
                    replace(task, depends_on=followed(task.depends_on), order_only=order)
                )
            case _:
                remaining.append(replace(task, depends_on=followed(task.depends_on)))
    return replace(tasks, tasks=tuple(remaining))


def groups_of_task(task: CollectiveTask, tasks: TaskGraph) -> Groups:
    """Return the groups of devices of a collective."""
    if task.group_table is None:
        return frozenset({frozenset(range(tasks.device_count))})
    return _groups(tasks.group_tables[task.group_table])


def _dropped(part: Part) -> set[Groups]:
    """Return the device groups of a part's once-per-step sums."""
    if part.program is PartProgram.UPDATE:
        return set()
    present = [axis for axis in (*SHARED, EXPERT) if part.mesh.size(axis) > 1]
    return {
        _groups(groups_along(part.mesh.axes, axes))
        for count in range(1, len(present) + 1)
        for axes in combinations(present, count)
    }


def _groups(table: GroupTable) -> Groups:
    return frozenset(map(frozenset, table))


@frozen
class Spent:
    """The times of a pass, in ps.

    All but ``compute_ps`` is exposed: ``tp_ps`` is tensor-parallel communication, ``exchange_ps``
    are all-to-alls between experts, ``exposed_ps`` other communication and idle time, ``slowed_ps``
    what collectives slow computation by, ``host_ps`` moves to and from the host's memory, and
    ``launch_ps`` waiting for the host to launch kernels.
    """

    compute_ps: int = 0
    tp_ps: int = 0
    exchange_ps: int = 0
    exposed_ps: int = 0
    slowed_ps: int = 0
    host_ps: int = 0
    launch_ps: int = 0

    @property
    def total_ps(self) -> int:
        """The duration of the pass."""
        return self.compute_ps + self.communication_ps + self.host_ps + self.launch_ps

    @property
    def communication_ps(self) -> int:
        """The exposed communication, idle time and slower computation included."""
        return self.tp_ps + self.exchange_ps + self.exposed_ps + self.slowed_ps

    def __add__(self, addend: Spent) -> Spent:
        return self._combined(addend, add)

    def less(self, subtrahend: Spent) -> Spent:
        """Subtract times, each down to zero."""
        return self._combined(subtrahend, lambda own, less: max(0, own - less))

    def times(self, count: int) -> Spent:
        """Multiply all times."""
        return self._combined(self, lambda own, _: own * count)

    def _combined(self, operand: Spent, combine: Callable[[int, int], int]) -> Spent:
        names = (part.name for part in fields(self))
        return Spent(
            **{name: combine(getattr(self, name), getattr(operand, name)) for name in names}
        )


NOTHING = Spent()


@frozen
class PassCost:
    """The times of one micro-batch's passes through a part.

    ``weights`` is the part of the backward pass that computes gradients of weights, where a
    schedule has it apart.
    """

    forward: Spent
    backward: Spent
    weights: Spent

    def of(self, kind: Pass) -> Spent:
        """Return the times of a kind of pass."""
        match kind:
            case Pass.FORWARD:
                return self.forward
            case Pass.BACKWARD:
                return self.backward
            case Pass.WEIGHTS:
                return self.weights


def side_by_side(backward: Spent, forward: Spent) -> tuple[int, int]:
    """Return the ps that two concurrent passes save.

    All-to-alls between experts run beside the computation of the other pass, and neither slows the
    other. Source: DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 3.2.1; NVIDIA,
    Megatron-Core, ``--overlap-moe-expert-parallel-comm``.

    >>> side_by_side(
    ...     Spent(compute_ps=20, exchange_ps=12), Spent(compute_ps=10, exchange_ps=8, tp_ps=1)
    ... )
    (10, 8)
    """
    return (
        min(backward.exchange_ps, forward.compute_ps),
        min(forward.exchange_ps, backward.compute_ps),
    )


def spread(tasks: TaskGraph, *, inner: MeshAxes, all_axes: MeshAxes) -> TaskGraph:
    """Return the tasks of all devices.

    Devices along the axes ``inner`` share a program; each such group runs a copy at the same time.

    """
    names = [axis for axis in inner.names if axis in all_axes.names]
    images = groups_along(all_axes.axes, names)
    tables = tuple(
        tuple(tuple(image[device] for device in group) for image in images for group in table)
        for table in tasks.group_tables
    )
    everyone = tuple(tuple(image) for image in images)
    changed: list[Task] = []
    for task in tasks.tasks:
        match task:
            case CollectiveTask() if task.group_table is None and len(images) > 1:
                changed.append(replace(task, group_table=len(tables)))
            case SendTask() | ReceiveTask():
                pairs = tuple(
                    (image[source], image[target])
                    for image in images
                    for source, target in task.pairs
                )
                changed.append(replace(task, pairs=pairs))
            case _:
                changed.append(task)
    return replace(
        tasks,
        device_count=all_axes.device_count,
        tasks=tuple(changed),
        group_tables=(*tables, everyone) if len(images) > 1 else tables,
    )


def spent_by_phase(
    prediction: Prediction,
    *,
    pieces: int,
    expert_axes: Sequence[str] = (),
    host_launch_ps: int = 0,
) -> tuple[Spent, Spent]:
    """Return the times of the forward pass and the rest.

    All-to-alls along ``expert_axes`` are those between experts. With ``pieces`` above 1,
    tensor-parallel communication runs in as many pieces under the computation beside it: one piece
    stays exposed, and what that computation is too short for. What a pass moves to the host or from
    it runs beside all of it: what the pass is too short for is exposed. The host launches each
    kernel by itself in ``host_launch_ps``, 0 where it takes no part.
    """
    names = operation_names(prediction.graph)
    regions = regions_of_tasks(prediction.graph, prediction.tasks)
    forward, backward = NOTHING, NOTHING
    launches: list[Launch] = []
    are_forward: list[bool] = []
    exposed_as = _exposed_as(prediction, expert_axes)
    timeline = prediction.timeline
    exposed: Mapping[int, int] = {} if timeline is None else timeline.slowest.exposed_ps
    slower = {} if timeline is None else slower_ps(timeline.slowest)
    for task in prediction.tasks.tasks:
        amount = NOTHING
        if isinstance(task, ComputeTask):
            amount = Spent(compute_ps=task.duration_ps, slowed_ps=slower.get(task.id, 0))
        elif exposed.get(task.id, 0):
            amount = exposed_as(task, exposed[task.id])
        op = _first_operation(regions.get(task.id))
        is_forward = op is not None and names.of(op).phase is Phase.FORWARD
        if is_forward:
            forward += amount
        else:
            backward += amount
        launches.append(
            Launch(duration_ps=amount.total_ps, count=0)
            if op is None
            else launch_of(op, names.of(op), amount.total_ps)
        )
        are_forward.append(is_forward)
    if timeline is not None:
        on_device_ps = timeline.slowest.finish_ps - timeline.slowest.exposed_host_transfer_ps
        idle_ps = on_device_ps - forward.total_ps - backward.total_ps
        backward += Spent(exposed_ps=max(0, idle_ps))
    if host_launch_ps:
        waits = launch_waits_ps(launches, host_launch_ps)
        forward_ps = sum(
            wait for wait, is_forward in zip(waits, are_forward, strict=True) if is_forward
        )
        forward += Spent(launch_ps=forward_ps)
        backward += Spent(launch_ps=sum(waits) - forward_ps)
    return (
        _beside_host(_overlapped(forward, pieces), _host_ps(prediction.tasks, is_store=True)),
        _beside_host(_overlapped(backward, pieces), _host_ps(prediction.tasks, is_store=False)),
    )


def _host_ps(tasks: TaskGraph, *, is_store: bool) -> int:
    """Return the time of transfers to or from the host."""
    moves = (task for task in tasks.tasks if isinstance(task, MemoryTask))
    return sum(task.duration_ps or 0 for task in moves if task.is_store is is_store)


def _beside_host(spent: Spent, moves_ps: int) -> Spent:
    return replace(spent, host_ps=max(0, moves_ps - spent.total_ps))


def _exposed_as(prediction: Prediction, expert_axes: Sequence[str]) -> Callable[[Task, int], Spent]:
    """Return a function that classifies a task's exposed time."""
    tp, experts = _groups_of(prediction, "tp"), _groups_of(prediction, *expert_axes)

    def spent(task: Task, exposed_ps: int) -> Spent:
        if not isinstance(task, CollectiveTask):
            return Spent(exposed_ps=exposed_ps)
        groups = groups_of_task(task, prediction.tasks)
        if task.kind is CollectiveKind.ALL_TO_ALL and all(
            any(group <= outer for outer in experts) for group in groups
        ):
            return Spent(exchange_ps=exposed_ps)
        if groups == tp:
            return Spent(tp_ps=exposed_ps)
        return Spent(exposed_ps=exposed_ps)

    return spent


def _groups_of(prediction: Prediction, *axes: str) -> Groups:
    present = tuple(axis for axis in axes if axis in dict(prediction.mesh))
    return _groups(groups_along(prediction.mesh, present)) if present else frozenset()


def _overlapped(spent: Spent, pieces: int) -> Spent:
    if pieces < 2:
        return spent
    piece_ps = spent.tp_ps // pieces
    too_long_ps = max(0, spent.tp_ps - piece_ps - spent.compute_ps)
    return replace(spent, tp_ps=piece_ps + too_long_ps)


def _first_operation(region: Region | None) -> Op | None:
    match region:
        case Compute():
            return operations_of(region)[0]
        case Collective(operation=op):
            return op
        case _:
            return None


@frozen
class Footprint:
    """A device's bytes of a model's part or stage.

    ``gradient_bytes`` are those of sums over micro-batches. ``kept_bytes`` is what a micro-batch
    holds from its forward to its backward pass; of a stage, what the ``in_flight`` micro-batches
    hold where that is most. ``host_bytes`` is the same in the host's memory, and no part of the
    peak; a pass needs ``working_bytes`` beside. ``expert_bytes`` are those of ``weight_bytes`` that
    are divided over the devices of experts. ``frozen_bytes`` are those of weights that are not
    trained.
    """

    weight_bytes: int
    frozen_bytes: int = 0
    gradient_bytes: int = 0
    state_bytes: int = 0
    kept_bytes: int = 0
    working_bytes: int = 0
    host_bytes: int = 0
    expert_bytes: int = 0
    in_flight: int = 0

    @property
    def held_bytes(self) -> int:
        """The bytes of all weights, trained and frozen."""
        return self.weight_bytes + self.frozen_bytes

    @property
    def peak_bytes(self) -> int:
        """The device memory that is needed at once."""
        persistent_bytes = self.held_bytes + self.gradient_bytes + self.state_bytes
        return persistent_bytes + self.kept_bytes + self.working_bytes


def footprint_of_passes(prediction: Prediction, part: Part) -> Footprint:
    """Return the memory of a micro-batch's forward and backward pass."""
    program = prediction.graph.program
    names = operation_names(prediction.graph)

    def phase_of(op: Op) -> Phase | None:
        return names.of(op).phase

    kept_bytes, most_bytes = held_between(program, phase_of, space=DEVICE_MEMORY)
    host_bytes, _ = held_between(program, phase_of, space=HOST_MEMORY)
    results = [size_bytes(value.type) for value in program.main.results]
    passed = 1 if part.is_first else 2
    # What came in is as large as its gradient.
    input_bytes = 0 if part.is_first else results[1]
    return Footprint(
        weight_bytes=sum(results[passed:]),
        kept_bytes=kept_bytes + input_bytes,
        working_bytes=max(0, most_bytes - kept_bytes) + 2 * sum(results[:passed]),
        host_bytes=host_bytes,
    )


@dataclass(slots=True, kw_only=True)
class Exchange:
    """Cached times of communication on a system."""

    system: System
    choice: ModelChoice
    mesh: MeshAxes
    assumptions: list[str] = field(default_factory=list[str])
    _times_ps: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])

    def collective_ps(self, kind: CollectiveKind, size_bytes: int, axes: Sequence[str]) -> int:
        """Return the duration of a collective along mesh axes.

        ``size_bytes`` is what one device puts in.
        """
        present = tuple(axis for axis in axes if self.mesh.size(axis) > 1)
        if not present or size_bytes <= 0:
            return 0
        key = (kind, size_bytes, present)
        if key not in self._times_ps:
            table = groups_along(self.mesh.axes, present)
            everyone = len(table) == 1
            task = CollectiveTask(
                id=0,
                name=kind.name.lower(),
                depends_on=(),
                kind=kind,
                size_bytes=size_bytes,
                group_table=None if everyone else 0,
            )
            self._times_ps[key] = self._simulated((task,), () if everyone else (table,))
        return self._times_ps[key]

    def message_ps(self, size_bytes: int) -> int:
        """Return the time of all stages' messages to the next.

        The only stage of a pipeline sends nothing.
        """
        if self.mesh.size(PIPE) == 1:
            return 0
        key = ("message", size_bytes)
        if key not in self._times_ps:
            rings = groups_along(self.mesh.axes, (PIPE,))
            pairs = tuple(
                pair for ring in rings for pair in zip(ring, (*ring[1:], ring[0]), strict=True)
            )
            send = SendTask(
                id=0, name="send", depends_on=(), pairs=pairs, size_bytes=size_bytes, tag=0
            )
            receive = ReceiveTask(
                id=1, name="receive", depends_on=(), pairs=pairs, size_bytes=size_bytes, tag=0
            )
            self._times_ps[key] = self._simulated((send, receive), ())
        return self._times_ps[key]

    def _simulated(self, tasks: tuple[Task, ...], tables: tuple[GroupTable, ...]) -> int:
        graph = TaskGraph(
            name="pipeline",
            device_count=self.system.device_count,
            tasks=tasks,
            group_tables=tables,
        )
        timeline = simulate_job(graph, self.system, self.choice)
        self.assumptions.extend(
            assumption for assumption in timeline.assumptions if assumption not in self.assumptions
        )
        return timeline.finish_ps
