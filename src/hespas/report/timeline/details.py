"""Details of a step's tasks, from the program."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from hespas.base.frozen import frozen
from hespas.memory.usage import memory_of_operations, operation_key
from hespas.prediction.figures.breakdown import all_operations
from hespas.prediction.result import Prediction
from hespas.price.driver import Priced, Rounds, Step
from hespas.price.estimate import Bound, OpEstimate
from hespas.program.program import Op
from hespas.report.text import plain_number
from hespas.report.timeline.write import Argument, Arguments
from hespas.split.names import OperationNames, operation_names
from hespas.split.regions import Compute, LoopRound, Region, operations_of
from hespas.tasks.build import regions_of_tasks

MOST_ROUNDS = 8
"""The most rounds that are shown one by one; longer loops get a summary."""


@frozen
class Place:
    """An operation's phase, and its layers from the outermost."""

    phase: str = ""
    layers: tuple[str, ...] = ()


NOWHERE = Place()


@frozen
class Piece:
    """A part of a task, timed on an unmodified device."""

    name: str
    duration_ps: int
    category: str
    place: Place = NOWHERE
    arguments: Arguments = field(default_factory=dict[str, Argument])
    inside: tuple[Piece, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProgramDetails:
    """Details of a prediction's tasks, by task id."""

    prediction: Prediction
    names: OperationNames
    regions: Mapping[int, Region]
    memory: Mapping[Hashable, int]
    steps_of_module: dict[int, tuple[Step, ...]] = field(
        default_factory=dict[int, tuple[Step, ...]]
    )

    def arguments(self, task: int) -> Arguments:
        """Return a computation's figures, and a single operation's source."""
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
        """Return a task's pieces in order; none for one kernel."""
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
        """Return the bytes in use during a task, if known."""
        region = self.regions.get(task)
        if region is None:
            return None
        return self.memory.get(operation_key(operations_of(region)[0]))

    def rounds(self) -> Sequence[tuple[LoopRound, tuple[int, ...]]]:
        """Return the rounds of communicating loops, with their computations."""
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
        """Yield the steps that take time.

        ``own`` maps the priced operations to those of the region that is shown.
        """
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
        """Return the first equal region, whose operations are priced."""
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
    """Return a loop with its rounds, summarized if many."""
    place = common_place(piece.place for piece in body)
    template = Piece(name="", duration_ps=step.round_ps, category="round", place=place, inside=body)

    def numbered(number: int) -> Piece:
        return replace(template, name=f"round {number} of {step.count}")

    if step.count <= MOST_ROUNDS:
        rounds = [numbered(number) for number in range(1, step.count + 1)]
    else:
        middle_rounds = Piece(
            name=f"rounds 2 to {step.count - 1}, each as the first",
            duration_ps=step.round_ps * (step.count - 2),
            category="round",
            place=place,
            arguments={"rounds": step.count - 2},
        )
        rounds = [numbered(1), middle_rounds, numbered(step.count)]
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
    distinct = set(places)
    phases = {place.phase for place in distinct}
    columns = zip(*(place.layers for place in distinct), strict=False)
    shared = takewhile(lambda column: len(set(column)) == 1, columns)
    return Place(
        phase=phases.pop() if len(phases) == 1 else "", layers=tuple([name for name, *_ in shared])
    )


def _source(op: Op) -> dict[str, Argument]:
    texts = {"scope": op.scope, "source": op.source_location, "operation": op.name}
    return {name: text for name, text in texts.items() if text}


def _figures(cost: OpEstimate) -> dict[str, Argument]:
    figures: dict[str, Argument] = {
        "flops": plain_number(cost.flops),
        "bytes": plain_number(cost.bytes_moved),
    }
    limits = _limits(cost.bound, cost.time_s)
    return figures | ({"limit": limits} if limits else {})


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
