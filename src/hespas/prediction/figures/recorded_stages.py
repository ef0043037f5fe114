"""The times and memory of a recorded pipeline's stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_S
from hespas.prediction.figures.schema import PipelineReport, StageRow
from hespas.prediction.result import Prediction, RecordedStage
from hespas.program.program import Recorded
from hespas.program.recorded import SCHEDULES, Pipeline
from hespas.simulate.timeline import ClassTimeline, Timeline, covered_ps, exposed_parts, union
from hespas.split.regions import Compute
from hespas.tasks.build import regions_of_tasks
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    ReceiveTask,
    SendTask,
    devices_text,
    is_host_launch,
)
from hespas.tasks.pipelining.schedule import ideal_bubble

_FORWARD, _BACKWARD = ("forward",), ("backward", "recompute")
_CLOSED_FORMS = {
    "ScheduleGPipe": "gpipe",
    "Schedule1F1B": "1f1b",
    "ScheduleInterleaved1F1B": "interleaved:{chunks}",
    "ScheduleLoopedBFS": "interleaved:{chunks}",
}
"""The schedules whose bubble has a closed form, which is that of these."""


@frozen
class _Stage:
    """A stage with its timeline and the times of its passes, in ps."""

    stage: RecordedStage
    recorded: Recorded
    pipeline: Pipeline
    timeline: ClassTimeline
    passes_ps: Mapping[str, int]
    last_pass_ps: int


def stage_rows(prediction: Prediction) -> PipelineReport | None:
    """Return the times and memory of a recorded step's stages."""
    timeline = prediction.timeline
    if timeline is None:
        return None
    stages = list(_stages(prediction, timeline))
    pipeline = stages[0].pipeline
    closed_form = _CLOSED_FORMS.get(pipeline.schedule)
    last_ps = max(stage.last_pass_ps for stage in stages)
    idle_ps = sum(_waiting_ps(stage, last_ps) for stage in stages)
    messages = [span for stage in stages for span in _sends(stage.timeline)]
    return PipelineReport(
        schedule=SCHEDULES[pipeline.schedule].format(chunks=pipeline.chunks),
        micro_batches=pipeline.micro_batches,
        micro_batch=None,
        chunks=pipeline.chunks,
        bubble=idle_ps / (len(stages) * last_ps) if last_ps else 0.0,
        ideal_bubble=None
        if closed_form is None
        else ideal_bubble(
            closed_form.format(chunks=pipeline.chunks),
            stages=len(stages),
            micro_batches=pipeline.micro_batches,
        ),
        message_s=min((end - start for start, end in messages), default=0) / PS_PER_S,
        hidden=[],
        stages=[
            _row(number, stage, timeline.finish_ps, prediction.memory_capacity_bytes)
            for number, stage in enumerate(stages)
        ],
    )


def _stages(prediction: Prediction, timeline: Timeline) -> Iterator[_Stage]:
    for stage in prediction.stages:
        recorded = stage.prediction.graph.program.recorded
        if recorded is None or recorded.pipeline is None:
            continue
        of_class = slowest_of(stage, timeline)
        passes_ps, last_ps = Counter[str](), 0
        regions = regions_of_tasks(stage.prediction.graph, stage.prediction.tasks)
        for task in stage.prediction.tasks.tasks:
            region = regions.get(task.id)
            if not isinstance(task, ComputeTask) or not isinstance(region, Compute):
                continue
            phase = region.operations[0].scope.partition("/")[0].removeprefix("torch.")
            passes_ps[phase] += task.duration_ps
            if phase in {*_FORWARD, *_BACKWARD}:
                last_ps = max(last_ps, of_class.nodes[task.id][1])
        yield _Stage(
            stage=stage,
            recorded=recorded,
            pipeline=recorded.pipeline,
            timeline=of_class,
            passes_ps=passes_ps,
            last_pass_ps=last_ps,
        )


def slowest_of(stage: RecordedStage, timeline: Timeline) -> ClassTimeline:
    """Return the timeline of a stage's device that ends last, and waits least."""
    own = [item for item in timeline.classes if not set(stage.devices).isdisjoint(item.devices)]
    return max(own, key=lambda item: (item.finish_ps, -item.waited_ps))


def _sends(timeline: ClassTimeline) -> Iterator[tuple[int, int]]:
    for task in timeline.graph.tasks:
        if isinstance(task, SendTask) and task.id in timeline.nodes:
            yield timeline.nodes[task.id]


def _busy(timeline: ClassTimeline, *kinds: type[object]) -> list[tuple[int, int]]:
    return union(
        timeline.nodes[task.id]
        for task in timeline.graph.tasks
        if task.id in timeline.nodes and isinstance(task, kinds) and not is_host_launch(task)
    )


def _waiting_ps(stage: _Stage, last_ps: int) -> int:
    """Return how long a stage's device waits for messages until the last pass of all ends."""
    timeline, end_ps = stage.timeline, stage.last_pass_ps
    busy = _busy(timeline, ComputeTask, CollectiveTask)
    messages = [
        (min(start, end_ps), min(end, end_ps))
        for start, end in _busy(timeline, SendTask, ReceiveTask)
    ]
    waits = exposed_parts(busy, messages)
    return last_ps - end_ps + covered_ps(part for parts in waits for part in parts)


def _row(number: int, stage: _Stage, finish_ps: int, capacity_bytes: int | None) -> StageRow:
    timeline, pipeline = stage.timeline, stage.pipeline
    waiting_ps = timeline.without_collectives_ps
    memory = stage.stage.prediction.memory
    sizes = Counter[str]()
    for buffer in memory.held:
        sizes[buffer.role] += buffer.size_bytes
    weights = sizes["parameter"] + sizes["gathered_parameter"]
    known = weights + sizes["gradient"] + sizes["optimizer_state"] + sizes["activation"]
    peak = memory.peak_bytes
    return StageRow(
        stage=number,
        devices=devices_text(stage.stage.devices),
        layers=_layers(stage.recorded),
        parts=[],
        forward_s=_passes_s(stage, _FORWARD),
        backward_s=_passes_s(stage, _BACKWARD),
        compute_s=timeline.compute_ps / PS_PER_S,
        exposed_communication_s=(timeline.exposed_communication_ps - waiting_ps) / PS_PER_S,
        exposed_host_transfer_s=timeline.exposed_host_transfer_ps / PS_PER_S,
        launch_wait_s=timeline.launch_wait_ps / PS_PER_S,
        waiting_s=waiting_ps / PS_PER_S,
        sums_s=0.0,
        end_s=(finish_ps - timeline.finish_ps) / PS_PER_S,
        in_flight=pipeline.in_flight,
        peak_memory_bytes=peak,
        weight_bytes=weights,
        gradient_bytes=sizes["gradient"],
        state_bytes=sizes["optimizer_state"],
        kept_bytes=sizes["activation"],
        working_bytes=peak - known,
        host_memory_bytes=memory.host_bytes,
        fits=None if capacity_bytes is None else peak <= capacity_bytes,
    )


def _passes_s(stage: _Stage, phases: tuple[str, ...]) -> float:
    """Return the computation of one micro-batch's passes through all chunks."""
    total_ps = sum(stage.passes_ps[phase] for phase in phases)
    return total_ps / stage.pipeline.micro_batches / PS_PER_S


def _layers(recorded: Recorded) -> int:
    """Return how many numbered modules have parameters; chunks may have equal names."""
    found: Counter[tuple[str, str]] = Counter()
    for storage in recorded.storages:
        names = storage.name.split(".")
        number = next((place for place, name in enumerate(names) if name.isdigit()), None)
        if storage.role == "parameter" and number is not None:
            found[".".join(names[: number + 1]), storage.name] += 1
    most: dict[str, int] = {}
    for (module, _), count in found.items():
        most[module] = max(most.get(module, 0), count)
    return sum(most.values())
