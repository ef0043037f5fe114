"""Chart a simulated step, one process per device class.

Its tracks, from top to bottom: phases and layers of the model; loops, round by round; computation,
with the kernels of each region inside of it; the CPU; communication, one track for each stream;
receives, as many tracks as overlap; communication that no computation hides; and the causes of
waiting while the device doesn't compute. Computation and waiting together fill the step. A counter
has the memory in use.

A pipeline has a track for each stage with a slice for each pass, and one for its exchange with the
same stage of other data-parallel parts. Arrows lead from a pass to the one of the next stage that
waits for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from hespas.base.figures import MOST_SLICES
from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.figures.communication import exposed_communication
from hespas.prediction.result import Prediction, computation_alone
from hespas.report.timeline.details import NOWHERE, Piece, Place, ProgramDetails, program_details
from hespas.report.timeline.waits import Flows, Partners, arrivals, flows_of, waits_of
from hespas.report.timeline.write import (
    Arguments,
    Chart,
    Counter,
    Process,
    Slice,
    Track,
    joined,
    whole_ns,
)
from hespas.simulate.timeline import ClassTimeline, Interval, Timeline
from hespas.split.regions import LoopRound
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    devices_text,
    short_devices_text,
)
from hespas.tasks.pipelining.schedule import Action, Pass

Timed = tuple[Task, Interval]


def prediction_chart(prediction: Prediction | PipelinePrediction) -> Chart:
    """Return the chart of a predicted step."""
    if not isinstance(prediction, Prediction):
        return pipeline_chart(prediction)
    timeline = prediction.timeline or computation_alone(prediction.tasks)
    return step_chart(timeline, program_details(prediction))


def step_chart(
    timeline: Timeline, details: ProgramDetails | None = None, *, most_slices: int = MOST_SLICES
) -> Chart:
    """Return a timeline's chart, with about ``most_slices`` slices.

    If there are more, those inside of tasks are left out, then classes except the slowest, then
    slices are joined; notes say so. ``details`` holds the program's details of tasks.
    """
    partners = Partners(timeline=timeline)
    shown_classes = _shown_classes(timeline, details, most_slices)
    flows = flows_of(partners, shown_classes)
    processes = [
        _process(partners, number, flows, details, has_pieces=has_pieces)
        for number, has_pieces in shown_classes.items()
    ]
    notes = tuple(_notes(timeline, shown_classes, most_slices))
    return joined(Chart(processes=tuple(processes), notes=notes), most_slices=most_slices)


def _shown_classes(
    timeline: Timeline, details: ProgramDetails | None, most_slices: int
) -> dict[int, bool]:
    """Choose the classes to show; True shows their tasks' pieces.

    A task counts as two slices: itself, and a wait or the part of it that is exposed.
    """
    classes = timeline.classes
    slowest = classes.index(timeline.slowest)
    has_pieces: dict[int, bool] = {}
    slices_left = most_slices
    for number in sorted(range(len(classes)), key=lambda number: number != slowest):
        nodes = classes[number].nodes
        needed = 2 * len(nodes)
        if has_pieces and needed > slices_left:
            break
        # The inside of a task stands on the tracks of layers too.
        piece_slices_count = 0 if details is None else 2 * sum(map(details.size, nodes))
        has_pieces[number] = needed + piece_slices_count <= slices_left
        slices_left -= needed + (piece_slices_count if has_pieces[number] else 0)
    return dict(sorted(has_pieces.items()))


def _notes(timeline: Timeline, shown: Mapping[int, bool], most_slices: int) -> Iterator[str]:
    unexpanded = [timeline.classes[number].devices for number in shown if not shown[number]]
    if unexpanded:
        device_texts = ", ".join(map(short_devices_text, unexpanded[:3]))
        others_text = f" and {len(unexpanded) - 3} more classes" if len(unexpanded) > 3 else ""
        yield (
            f"what is inside of tasks of {device_texts}{others_text} is not shown: a timeline has "
            f"up to {most_slices:,} slices"
        )
    left_out = len(timeline.classes) - len(shown)
    if left_out:
        yield (
            f"{left_out} of {len(timeline.classes)} classes of devices are not shown: the slowest "
            f"and the first are, up to {most_slices:,} slices"
        )


def _process(
    partners: Partners,
    number: int,
    flows: Flows,
    details: ProgramDetails | None,
    *,
    has_pieces: bool,
) -> Process:
    device_class = partners.timeline.classes[number]
    timed = [(task, device_class.nodes[task.id]) for task in partners.tasks[number].values()]
    timed.sort(key=lambda pair: (pair[1], pair[0].id))
    late = arrivals(partners, number)
    slices: dict[str, list[Slice]] = defaultdict(list)
    places: list[PlacedTime] = []
    for (task, interval), track in zip(timed, _tracks(timed, device_class), strict=True):
        task_arguments: Arguments = {} if details is None else details.arguments(task.id)
        slices[track].append(_slice(task, interval, task_arguments, flows.of(number, task.id)))
        if task.id in late:
            slices[track].append(late[task.id])
        if isinstance(task, ComputeTask) and not task.is_on_host:
            pieces = details.pieces(task.id) if details is not None and has_pieces else ()
            slices[track].extend(piece_slices(pieces, interval))
            place = NOWHERE if details is None else details.place(task.id)
            places.extend(piece_places(pieces, interval) if pieces else [(interval, place)])
    slices[_PHASES] = list(phase_slices(places))
    slices[_LAYERS] = list(layer_slices(places))
    slices[_LOOPS] = (
        [] if details is None else list(loop_slices(details.rounds(), device_class.nodes))
    )
    slices[_EXPOSED] = [
        _slice(task, interval, {}, category="exposed")
        for task, interval in exposed_communication(device_class)
    ]
    slices[_WAITING] = list(waits_of(partners, number))
    return Process(
        name=short_devices_text(device_class.devices),
        tracks=tuple(
            [Track(name=name, slices=tuple(slices[name])) for name in _track_order(slices)]
        ),
        counters=() if details is None else tuple(_memory(timed, details)),
    )


def _memory(timed: Iterable[Timed], details: ProgramDetails) -> Iterator[Counter]:
    """Yield the counter of memory in use, if known.

    Memory is held in the program's order. Computation holds it from its start, communication from
    the end of the computation before it, however early or late other streams run it.
    """
    levels: dict[int, int] = {}
    held_ps = computed_ps = 0
    for task, (start_ps, end_ps) in sorted(timed, key=lambda pair: pair[0].id):
        size_bytes = details.memory_bytes(task.id)
        if size_bytes is None:
            continue
        is_computed = isinstance(task, ComputeTask)
        held_ps = max(held_ps, start_ps if is_computed else computed_ps)
        if is_computed:
            computed_ps = max(computed_ps, end_ps)
        levels[held_ps] = max(levels.get(held_ps, 0), size_bytes)
    points = list(levels.items())
    changes = [
        point
        for before, point in zip([(0, -1), *points], points, strict=False)
        if point[1] != before[1]
    ]
    if changes:
        yield Counter(name="memory", points=tuple(changes))


_COMPUTE, _HOST, _COMMUNICATION, _RECEIVE = "compute", "CPU", "communication", "receive"
_EXPOSED, _WAITING = "exposed communication", "waiting"
_PHASES, _LAYERS, _LOOPS = "phases", "layers", "loops"
_FIRST = (_PHASES, _LAYERS, _LOOPS, _COMPUTE, _HOST, _COMMUNICATION)
_LAST = (_EXPOSED, _WAITING)


def _track_order(slices: Mapping[str, Sequence[Slice]]) -> list[str]:
    other_names = [name for name in slices if name not in (*_FIRST, *_LAST)]
    # Receives come last, the second before the tenth.
    other_names.sort(key=lambda name: (len(name) if name.startswith(_RECEIVE) else 0, name))
    return [name for name in (*_FIRST, *other_names, *_LAST) if slices.get(name)]


def _tracks(timed: Iterable[Timed], device_class: ClassTimeline) -> Iterator[str]:
    lane_ends_ps: dict[str, list[int]] = defaultdict(list)
    for task, (start_ps, end_ps) in timed:
        stream = _stream(task, device_class)
        ends_ps = lane_ends_ps[stream]
        free_lanes = (lane for lane, lane_end_ps in enumerate(ends_ps) if lane_end_ps <= start_ps)
        lane = next(free_lanes, len(ends_ps))
        ends_ps[lane : lane + 1] = [end_ps]
        yield stream if lane == 0 and stream != _RECEIVE else f"{stream} {lane + 1}"


def _stream(task: Task, device_class: ClassTimeline) -> str:
    """Return a task's stream; tasks that receive may overlap."""
    is_recorded = isinstance(task, CollectiveTask) and not task.takes_slot
    if isinstance(task, ReceiveTask) or is_recorded:
        return _RECEIVE
    if isinstance(task, ComputeTask):
        return _HOST if task.is_on_host else _COMPUTE
    return device_class.streams.get(task.id, _COMMUNICATION)


def _slice(
    task: Task,
    interval: Interval,
    arguments: Arguments,
    flows: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    *,
    category: str = "",
) -> Slice:
    computes = isinstance(task, ComputeTask)
    starts, ends = flows
    return Slice(
        name=task.name,
        start_ps=interval[0],
        end_ps=interval[1],
        category=category or ("compute" if computes else "communication"),
        arguments={**_arguments(task), **arguments},
        starts=starts,
        ends=ends,
    )


def _arguments(task: Task) -> Arguments:
    match task:
        case ComputeTask():
            return {"id": task.id, **({"label": task.label} if task.label else {})}
        case MemoryTask():
            return {"id": task.id, "size_bytes": task.size_bytes}
        case EmptyTask():
            return {"id": task.id}
        case CollectiveTask():
            return {"id": task.id, "kind": task.kind.name, "size_bytes": task.size_bytes}
        case SendTask() | ReceiveTask():
            return {"id": task.id, "tag": task.tag, "size_bytes": task.size_bytes}
        case _:
            assert_never(task)


PlacedTime = tuple[Interval, Place]


def piece_slices(pieces: Sequence[Piece], within: Interval) -> Iterator[Slice]:
    """Yield slices of pieces, each followed by its inner ones.

    They fill the interval. Pieces shorter than a nanosecond are left out.
    """
    for piece, (start_ps, end_ps) in _place_pieces(pieces, within):
        if whole_ns(start_ps) == whole_ns(end_ps):
            continue
        yield Slice(
            name=piece.name,
            start_ps=start_ps,
            end_ps=end_ps,
            category=piece.category,
            arguments=piece.arguments,
        )
        yield from piece_slices(piece.inside, (start_ps, end_ps))


def piece_places(pieces: Sequence[Piece], within: Interval) -> Iterator[PlacedTime]:
    """Yield the times and places of the innermost pieces."""
    for piece, interval in _place_pieces(pieces, within):
        if piece.inside:
            yield from piece_places(piece.inside, interval)
        else:
            yield interval, piece.place


def _place_pieces(pieces: Sequence[Piece], within: Interval) -> Iterator[tuple[Piece, Interval]]:
    start_ps, end_ps = within
    total_ps = sum(piece.duration_ps for piece in pieces)
    elapsed_ps, piece_start_ps = 0, start_ps
    for piece in pieces:
        elapsed_ps += piece.duration_ps
        piece_end_ps = start_ps + (end_ps - start_ps) * elapsed_ps // total_ps
        yield piece, (piece_start_ps, piece_end_ps)
        piece_start_ps = piece_end_ps


def loop_slices(
    rounds: Iterable[tuple[LoopRound, tuple[int, ...]]], nodes: Mapping[int, Interval]
) -> Iterator[Slice]:
    """Yield loops with their rounds, without overlapping ones."""
    spans: list[tuple[int, int, int, str]] = []
    began_ps: dict[str, int] = {}
    for loop_round, tasks in rounds:
        times = [nodes[task] for task in tasks if task in nodes]
        if not times:
            continue
        start_ps, end_ps = min(times)[0], max(end for _, end in times)
        spans.append((start_ps, -end_ps, 1, f"round {loop_round.number} of {loop_round.count}"))
        if loop_round.number == 1:
            began_ps[loop_round.loop] = start_ps
        if loop_round.number == loop_round.count and loop_round.loop in began_ps:
            spans.append((began_ps.pop(loop_round.loop), -end_ps, 0, loop_round.loop))
    open_ends: list[int] = []
    for start_ps, negative_end_ps, _, name in sorted(spans):
        end_ps = -negative_end_ps
        while open_ends and open_ends[-1] <= start_ps:
            open_ends.pop()
        if not open_ends or end_ps <= open_ends[-1]:
            open_ends.append(end_ps)
            yield Slice(name=name, start_ps=start_ps, end_ps=end_ps, category="loop")


def phase_slices(times: Iterable[PlacedTime]) -> Iterator[Slice]:
    """Yield a slice for each uninterrupted run of a phase."""
    return _runs(((place.phase,) if place.phase else (), interval) for interval, place in times)


def layer_slices(times: Iterable[PlacedTime]) -> Iterator[Slice]:
    """Yield a slice for each layer from entry to exit."""
    return _runs((place.layers, interval) for interval, place in times)


def _runs(times: Iterable[tuple[tuple[str, ...], Interval]]) -> Iterator[Slice]:
    """Yield runs of equal paths as nested slices, by start."""
    done: list[tuple[int, int, str, int]] = []
    opened: list[tuple[str, int]] = []
    reached_ps = 0
    for path, (start_ps, end_ps) in times:
        shared = 0
        while shared < min(len(path), len(opened)) and path[shared] == opened[shared][0]:
            shared += 1
        while len(opened) > shared:
            name, since_ps = opened.pop()
            done.append((since_ps, len(opened), name, reached_ps))
        opened.extend((name, start_ps) for name in path[shared:])
        reached_ps = end_ps
    while opened:
        name, since_ps = opened.pop()
        done.append((since_ps, len(opened), name, reached_ps))
    for since_ps, _, name, until_ps in sorted(done):
        yield Slice(name=name, start_ps=since_ps, end_ps=until_ps, category="layer")


_NAMES = {Pass.FORWARD: "forward", Pass.BACKWARD: "backward", Pass.WEIGHTS: "weights"}


def pipeline_chart(prediction: PipelinePrediction) -> Chart:
    """Return a pipeline's chart, with about `MOST_SLICES` slices."""
    arrows = _arrows(prediction)
    tracks = [
        track
        for stage in range(prediction.cut.stages)
        for track in _stage_tracks(prediction, stage, arrows)
    ]
    name = f"{prediction.cut.source.name}: {prediction.cut.schedule.name}"
    chart = Chart(processes=(Process(name=name, tracks=tuple(tracks)),))
    return joined(chart, most_slices=MOST_SLICES)


_Key = tuple[int, Action]


def _arrows(prediction: PipelinePrediction) -> dict[tuple[_Key, _Key], int]:
    schedule = prediction.cut.schedule
    pairs = (
        ((source, need), (stage, action))
        for stage, order in enumerate(schedule.order)
        for action in order
        for source, need in schedule.inputs(stage, action)
        if source != stage
    )
    return {pair: number for number, pair in enumerate(pairs, start=1)}


def _stage_tracks(
    prediction: PipelinePrediction, stage: int, arrows: dict[tuple[_Key, _Key], int]
) -> Iterator[Track]:
    devices = devices_text(prediction.cut.devices_of(stage))
    starts: dict[Action, list[int]] = {}
    ends: dict[Action, list[int]] = {}
    for ((source, need), (target, action)), number in arrows.items():
        if source == stage:
            starts.setdefault(need, []).append(number)
        if target == stage:
            ends.setdefault(action, []).append(number)
    passes = [
        Slice(
            name=_name(action),
            start_ps=start,
            end_ps=end,
            category=_NAMES[action.kind],
            arguments={"micro_batch": action.micro_batch, "chunk": action.chunk},
            starts=tuple(starts.get(action, ())),
            ends=tuple(ends.get(action, ())),
        )
        for action, (start, end) in prediction.times.passes[stage].items()
    ]
    stage_times = prediction.stages[stage]
    update = _plain_slice("optimiser", stage_times.update, "optimiser")
    yield Track(name=f"stage {stage}: {devices}", slices=(*passes, update))
    exchanges = [
        _plain_slice(name, interval, "communication")
        for name, interval in stage_times.gathers
        if interval[1] > interval[0]
    ]
    exchanges += [
        _plain_slice(name, interval, "communication") for name, interval in stage_times.sums
    ]
    if exchanges:
        yield Track(name=f"stage {stage}: data parallel", slices=tuple(exchanges))


def _name(action: Action) -> str:
    chunk = f", chunk {action.chunk}" if action.chunk else ""
    return f"{_NAMES[action.kind]} {action.micro_batch}{chunk}"


def _plain_slice(name: str, interval: Interval, category: str) -> Slice:
    return Slice(name=name, start_ps=interval[0], end_ps=interval[1], category=category)
