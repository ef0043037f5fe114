"""Details of a step's tasks from the program: kernels, limits, layers, memory, waits.

Devices wait for others that come late to a collective, and for the task that a kernel depends on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from hespas.base.frozen import frozen
from hespas.memory.usage import memory_of_operations, operation_key
from hespas.prediction.figures.breakdown import all_operations
from hespas.prediction.result import Prediction
from hespas.price.driver import Priced, Rounds, Step
from hespas.price.estimate import Bound, OpEstimate
from hespas.program.program import Op
from hespas.report.timeline.write import Argument, Arguments, Slice
from hespas.simulate.timeline import ClassTimeline, Timeline
from hespas.split.names import OperationNames, operation_names
from hespas.split.regions import Compute, LoopRound, Region, operations_of
from hespas.tasks.build import regions_of_tasks
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    ReceiveTask,
    SendTask,
    Task,
    inherit,
    short_devices_text,
)

MOST_ROUNDS = 8
"""The most rounds that are shown one by one; longer loops get a summary."""


@frozen
class Place:
    """An operation's place in the model: phase, and layers from the outermost."""

    phase: str = ""
    layers: tuple[str, ...] = ()


NOWHERE = Place()


@frozen
class Piece:
    """A part of a task, ``duration_ps`` long on a device as specified."""

    name: str
    duration_ps: int
    category: str
    place: Place = NOWHERE
    arguments: Arguments = field(default_factory=dict[str, Argument])
    inside: tuple[Piece, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProgramDetails:
    """Details of tasks from a program and its estimates, by task id."""

    prediction: Prediction
    names: OperationNames
    regions: Mapping[int, Region]
    memory: Mapping[Hashable, int]
    steps_of_module: dict[int, tuple[Step, ...]] = field(
        default_factory=dict[int, tuple[Step, ...]]
    )

    def arguments(self, task: int) -> Arguments:
        """Return a computation's FLOPs, bytes and limits, and a single operation's source."""
        region = self.regions.get(task)
        if region is None:
            return {}
        estimate = self.prediction.estimates.estimate_of_region[region.id]
        figures = {} if estimate is None else _figures(estimate.total)
        operations = operations_of(region)
        return figures | (_source(operations[0]) if len(operations) == 1 else {})

    def place(self, task: int) -> Place:
        """Return the common place of a task's operations."""
        region = self.regions.get(task)
        return NOWHERE if region is None else common_place(map(self._place, operations_of(region)))

    def pieces(self, task: int) -> tuple[Piece, ...]:
        """Return the pieces that a task runs in sequence; empty for a single kernel."""
        region = self.regions.get(task)
        if not isinstance(region, Compute):
            return ()
        steps = self._steps(region)
        if len(steps) == 1 and isinstance(steps[0], Priced):
            return ()
        first = self._first_equal(region)
        pairs = zip(all_operations(first), all_operations(region), strict=True)
        pieces = tuple(self._pieces(steps, {} if first is region else dict(pairs)))
        # A loop that is a task of its own is shown as the task.
        return pieces[0].inside if len(steps) == 1 and pieces else pieces

    def size(self, task: int) -> int:
        """Estimate the number of slices in a task's pieces."""
        region = self.regions.get(task)
        return _size(self._steps(region)) if isinstance(region, Compute) else 0

    def memory_bytes(self, task: int) -> int | None:
        """Return the memory in use while a task runs; None if it is unknown."""
        region = self.regions.get(task)
        if region is None:
            return None
        return self.memory.get(operation_key(operations_of(region)[0]))

    def rounds(self) -> Sequence[tuple[LoopRound, tuple[int, ...]]]:
        """Return the rounds of loops that communicate, each with its computations."""
        tasks = {
            region.id: task for task, region in self.regions.items() if isinstance(region, Compute)
        }
        return [
            (
                loop_round,
                tuple(
                    tasks[number]
                    for number in range(loop_round.first, loop_round.last + 1)
                    if number in tasks
                ),
            )
            for loop_round in self.prediction.graph.rounds
        ]

    def _place(self, op: Op) -> Place:
        op_name = self.names.of(op)
        return Place(
            phase="" if op_name.phase is None else op_name.phase.value, layers=op_name.path
        )

    def _pieces(self, steps: Iterable[Step], own: Mapping[Op, Op]) -> Iterator[Piece]:
        """Yield the steps that take time; ``own`` maps operations to named ones."""
        for step in steps:
            if not step.duration_ps:
                continue
            op = own.get(step.op, step.op)
            match step:
                case Priced(cost=cost):
                    yield Piece(
                        name=op.instruction or op.kind,
                        duration_ps=step.duration_ps,
                        category="kernel" if op.instruction else "operation",
                        place=self._place(op),
                        arguments={**_figures(cost), **_source(op)},
                    )
                case Rounds():
                    yield _loop(step, op, tuple(self._pieces(step.body, own)))

    def _first_equal(self, region: Compute) -> Compute:
        """Return the first region that equals this one, whose operations are priced."""
        modules, graph = self.prediction.modules, self.prediction.graph
        number = modules.modules[modules.module_of_region[region.id]].first_region
        first = graph.regions[number]
        return first if isinstance(first, Compute) else region

    def _steps(self, region: Compute) -> tuple[Step, ...]:
        first = self._first_equal(region)
        if first.id not in self.steps_of_module:
            self.steps_of_module[first.id] = self.prediction.steps(first) or ()
        return self.steps_of_module[first.id]


def program_details(prediction: Prediction) -> ProgramDetails:
    """Return the program's details of each task of a prediction."""
    return ProgramDetails(
        prediction=prediction,
        names=operation_names(prediction.graph),
        regions=regions_of_tasks(prediction.graph, prediction.tasks),
        memory=memory_of_operations(prediction.graph.program),
    )


def _size(steps: Iterable[Step]) -> int:
    total = 0
    for step in steps:
        match step:
            case Priced():
                total += 1
            case Rounds(count=count, body=body):
                shown_rounds = count if count <= MOST_ROUNDS else 2
                total += 2 + shown_rounds * (1 + _size(body))
    return total


def _loop(step: Rounds, op: Op, body: tuple[Piece, ...]) -> Piece:
    """Return a loop with its rounds, or a summary of a long one's."""
    place = common_place(piece.place for piece in body)
    template = Piece(name="", duration_ps=step.round_ps, category="round", place=place, inside=body)

    def numbered(number: int) -> Piece:
        return replace(template, name=f"round {number} of {step.count}")

    if step.count <= MOST_ROUNDS:
        rounds = [numbered(number) for number in range(1, step.count + 1)]
    else:
        between = Piece(
            name=f"rounds 2 to {step.count - 1}, each as the first",
            duration_ps=step.round_ps * (step.count - 2),
            category="round",
            place=place,
            arguments={"rounds": step.count - 2},
        )
        rounds = [numbered(1), between, numbered(step.count)]
    return Piece(
        name=op.instruction or op.kind,
        duration_ps=step.duration_ps,
        category="loop",
        place=place,
        arguments={"rounds": step.count, **_source(op)},
        inside=tuple(rounds),
    )


def common_place(places: Iterable[Place]) -> Place:
    """Return the places' common phase and common outer layers."""
    common: Place | None = None
    for place in places:
        if common is None:
            common = place
        elif place != common:
            common = _shared_place(common, place)
        if common == NOWHERE:
            break
    return common or NOWHERE


def _shared_place(left: Place, right: Place) -> Place:
    pairs = zip(left.layers, right.layers, strict=False)
    same = next((number for number, (a, b) in enumerate(pairs) if a != b), None)
    length = min(len(left.layers), len(right.layers)) if same is None else same
    return Place(phase=left.phase if left.phase == right.phase else "", layers=left.layers[:length])


def _source(op: Op) -> dict[str, Argument]:
    texts = {"scope": op.scope, "source": op.source_location, "operation": op.name}
    return {name: text for name, text in texts.items() if text}


def _figures(cost: OpEstimate) -> dict[str, Argument]:
    figures: dict[str, Argument] = {
        "flops": _whole_number(cost.flops),
        "bytes": _whole_number(cost.bytes_moved),
    }
    limits = _limits(cost.bound, cost.time_s)
    return figures | ({"limit": limits} if limits else {})


def _whole_number(number: float) -> int | float:
    return int(number) if number == int(number) else number


def _limits(bound: Bound, time_s: float) -> str:
    """Return the limits of a time, the largest part first.

    >>> _limits(Bound(memory_s=3e-6, launch_s=1e-6), 4e-6)
    'memory 75 %, launch 25 %'
    """
    if time_s <= 0:
        return ""
    parts = {"compute": bound.compute_s, "memory": bound.memory_s, "launch": bound.launch_s}
    shares = {name: round(100 * part / time_s) for name, part in parts.items()}
    ordered = sorted(shares, key=lambda name: -shares[name])
    return ", ".join(f"{name} {shares[name]} %" for name in ordered if shares[name])


def _wait(start_ps: int, end_ps: int, reason: str) -> Slice:
    return Slice(name=f"waits for {reason}", start_ps=start_ps, end_ps=end_ps, category="wait")


def own_dependencies(one: ClassTimeline) -> Mapping[int, tuple[int, ...]]:
    """Return the dependencies of each task of a class.

    Tasks without the class pass on theirs.
    """
    own: dict[int, tuple[int, ...]] = {}
    skipped: dict[int, tuple[int, ...]] = {}
    for task in one.graph.tasks:
        (own if task.id in one.nodes else skipped)[task.id] = inherit(task.depends_on, skipped)
    return own


def last_before(one: ClassTimeline, dependencies: tuple[int, ...], start_ps: int) -> int | None:
    """Return the dependency that ended last, and not after ``start_ps``, if any."""
    ended = [dependency for dependency in dependencies if one.nodes[dependency][1] <= start_ps]
    return max(ended, key=lambda dependency: (one.nodes[dependency][1], -dependency), default=None)


def arrivals(partners: Partners, number: int) -> Mapping[int, Slice]:
    """Return a class's waits for later devices in collectives and receives, by task."""
    classes = partners.timeline.classes
    late: dict[int, Slice] = {}
    for task_id, task in partners.tasks[number].items():
        start_ps, end_ps = classes[number].nodes[task_id]
        latest = max(
            _starts_of_others(partners, number, task), key=lambda start: start[0], default=None
        )
        if latest is not None and latest[0] > start_ps:
            reason = short_devices_text(classes[latest[1]].devices)
            late[task_id] = _wait(start_ps, min(latest[0], end_ps), reason)
    return late


def _starts_of_others(partners: Partners, number: int, task: Task) -> Iterator[tuple[int, int]]:
    classes = partners.timeline.classes
    match task:
        case CollectiveTask(recorded_ps=None):
            for other_class in partners.others(number, task):
                yield classes[other_class].nodes[task.id][0], other_class
        case ReceiveTask():
            send = partners.send_of(number, task)
            if send is not None:
                yield classes[send[0]].nodes[send[1]][0], send[0]
        case _:
            return


def waits_of(partners: Partners, number: int) -> Iterator[Slice]:
    """Yield the times without computation, each with the task that ends it.

    The last is the wait for the end of the slowest devices.
    """
    timeline = partners.timeline
    device_class = timeline.classes[number]
    tasks = partners.tasks[number]
    needed = own_dependencies(device_class)
    computing = sorted(
        (device_class.nodes[task.id], task.id)
        for task in tasks.values()
        if isinstance(task, ComputeTask) and not task.is_on_host
    )
    reached = 0
    for (start_ps, end_ps), task_id in computing:
        if start_ps > reached:
            last = last_before(device_class, needed[task_id], start_ps)
            reason = "its turn" if last is None else tasks[last].name
            yield _wait(reached, start_ps, reason)
        reached = max(reached, end_ps)
    if reached < device_class.finish_ps:
        last = max(tasks, key=lambda task_id_of_class: device_class.nodes[task_id_of_class][1])
        yield _wait(reached, device_class.finish_ps, tasks[last].name)
        reached = device_class.finish_ps
    if reached < timeline.finish_ps:
        slowest = short_devices_text(timeline.slowest.devices)
        yield _wait(reached, timeline.finish_ps, f"the end of {slowest}")


TaskOfClass = tuple[int, int]
"""The number of a class, and the id of one of its tasks."""


@dataclass(frozen=True, kw_only=True)
class Partners:
    """The classes of a timeline, with lookups among them for all tasks."""

    timeline: Timeline
    partner_maps: dict[tuple[int, bool], Mapping[int, int]] = field(
        default_factory=dict[tuple[int, bool], Mapping[int, int]]
    )
    classes_of_group: dict[tuple[int, int], tuple[int, ...]] = field(
        default_factory=dict[tuple[int, int], tuple[int, ...]]
    )

    @cached_property
    def class_of_device(self) -> Mapping[int, int]:
        """The class that each device is in."""
        classes = enumerate(self.timeline.classes)
        return {
            device: number for number, device_class in classes for device in device_class.devices
        }

    @cached_property
    def tasks(self) -> tuple[Mapping[int, Task], ...]:
        """For each class, the tasks in which it takes part, by id."""
        return tuple([
            {task.id: task for task in device_class.graph.tasks if task.id in device_class.nodes}
            for device_class in self.timeline.classes
        ])  # fmt: skip

    @cached_property
    def sends(self) -> Mapping[tuple[int, int, int], tuple[SendTask, ...]]:
        """The sends of each class with one tag and size."""
        sends: dict[tuple[int, int, int], list[SendTask]] = {}
        for number, tasks in enumerate(self.tasks):
            for task in tasks.values():
                if isinstance(task, SendTask):
                    sends.setdefault((number, task.tag, task.size_bytes), []).append(task)
        return {key: tuple(tasks) for key, tasks in sends.items()}

    def others(self, number: int, task: CollectiveTask) -> tuple[int, ...]:
        """Return the other classes that take part in a class's collective."""
        if len(self.timeline.classes) == 1:
            return ()
        table = -1 if task.group_table is None else task.group_table
        if (number, table) not in self.classes_of_group:
            members = self._members(self.timeline.classes[number], table)
            classes = {self.class_of_device[device] for device in members} - {number}
            self.classes_of_group[number, table] = tuple(sorted(classes))
        return tuple([
            member_class
            for member_class in self.classes_of_group[number, table]
            if _is_same(task, self.tasks[member_class].get(task.id))
        ])  # fmt: skip

    def _members(self, one: ClassTimeline, table: int) -> Iterable[int]:
        if table < 0:
            return self.class_of_device
        device = one.devices[0]
        groups = one.graph.group_tables[table]
        return next((group for group in groups if device in group), ())

    def send_of(self, number: int, task: ReceiveTask) -> TaskOfClass | None:
        """Return the send whose message a class receives; None unless it is unique."""
        device = self.timeline.classes[number].devices[0]
        source = self._partner(task.pairs, device, is_target=True)
        if source is None:
            return None
        sender = self.class_of_device[source]
        sends = [
            send
            for send in self.sends.get((sender, task.tag, task.size_bytes), ())
            if self._partner(send.pairs, source, is_target=False) == device
        ]
        return (sender, sends[0].id) if len(sends) == 1 else None

    def _partner(
        self, pairs: tuple[tuple[int, int], ...], device: int, *, is_target: bool
    ) -> int | None:
        key = (id(pairs), is_target)
        if key not in self.partner_maps:
            of_device = {target: source for source, target in pairs} if is_target else dict(pairs)
            self.partner_maps[key] = of_device
        return self.partner_maps[key].get(device)


def _is_same(task: CollectiveTask, other: Task | None) -> bool:
    return isinstance(other, CollectiveTask) and other.kind is task.kind


_NONE: tuple[int, ...] = ()


@frozen
class Flows:
    """The numbers of flows from and to tasks, by class and task."""

    starts: Mapping[TaskOfClass, tuple[int, ...]]
    ends: Mapping[TaskOfClass, tuple[int, ...]]

    def of(self, number: int, task: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the flows from and to a task of a class."""
        return self.starts.get((number, task), _NONE), self.ends.get((number, task), _NONE)


def flows_of(partners: Partners, shown: Iterable[int]) -> Flows:
    """Return the flows among the shown classes; they lead forward in time.

    A communication has one from the task that it waited for last, and one to the first that waits
    for it; a message has one to its receive or, if that was posted before, to the task that waits
    for the receive.
    """
    starts: dict[TaskOfClass, tuple[int, ...]] = {}
    ends: dict[TaskOfClass, tuple[int, ...]] = {}
    classes = partners.timeline.classes
    count = 0
    for source, target in dict.fromkeys(_pairs(partners, frozenset(shown))):
        begun = classes[source[0]].nodes[source[1]][0]
        if begun >= classes[target[0]].nodes[target[1]][0]:
            continue
        count += 1
        starts[source] = (*starts.get(source, _NONE), count)
        ends[target] = (*ends.get(target, _NONE), count)
    return Flows(starts=starts, ends=ends)


def _pairs(partners: Partners, shown: frozenset[int]) -> Iterator[tuple[TaskOfClass, TaskOfClass]]:
    for number in sorted(shown):
        tasks = partners.tasks[number]
        device_class = partners.timeline.classes[number]
        needed = own_dependencies(device_class)
        waiting = _first_waiting(device_class.nodes, needed)
        for task_id, task in tasks.items():
            if not isinstance(task, CollectiveTask | SendTask | ReceiveTask):
                continue
            before = last_before(device_class, needed[task_id], device_class.nodes[task_id][0])
            if before is not None:
                yield (number, before), (number, task_id)
            if task_id in waiting:
                yield (number, task_id), (number, waiting[task_id])
            send = partners.send_of(number, task) if isinstance(task, ReceiveTask) else None
            if send is not None and send[0] in shown:
                sent_ps = partners.timeline.classes[send[0]].nodes[send[1]][0]
                is_posted = device_class.nodes[task_id][0] <= sent_ps
                reader = waiting.get(task_id, task_id) if is_posted else task_id
                yield send, (number, reader)


def _first_waiting(
    nodes: Mapping[int, tuple[int, int]], needed: Mapping[int, tuple[int, ...]]
) -> dict[int, int]:
    """Return, for each task that others need, the dependent that starts first."""
    first: dict[int, int] = {}
    for task, before in needed.items():
        for needed_task in before:
            earliest = first.get(needed_task)
            if earliest is None or nodes[task] < nodes[earliest]:
                first[needed_task] = task
    return first
