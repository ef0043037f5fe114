"""Make a chart of a pipeline's step: a track for each stage, a slice for each pass.

Arrows lead from a pass to the one of the next stage that waits for it. A second track of a stage
has what it exchanges with the same stage of other data-parallel parts.
"""

from __future__ import annotations

from collections.abc import Iterator

from hespas.base.figures import MOST_SLICES
from hespas.prediction.answer import PipelinePrediction
from hespas.report.timeline.chart import Chart, Process, Slice, Track, joined
from hespas.tasks.graph import devices_text
from hespas.tasks.pipelining.schedule import Action, Pass
from hespas.tasks.pipelining.timing import Interval

_NAMES = {Pass.FORWARD: "forward", Pass.BACKWARD: "backward", Pass.WEIGHTS: "weights"}


def pipeline_chart(prediction: PipelinePrediction, *, most_slices: int = MOST_SLICES) -> Chart:
    """Return the chart of a pipeline, with about ``most_slices`` slices at most."""
    arrows = _arrows(prediction)
    tracks = [
        track
        for stage in range(prediction.cut.stages)
        for track in _tracks(prediction, stage, arrows)
    ]
    name = f"{prediction.cut.source.name}: {prediction.cut.schedule.name}"
    chart = Chart(processes=(Process(name=name, tracks=tuple(tracks)),))
    return joined(chart, most_slices=most_slices)


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


def _tracks(
    prediction: PipelinePrediction, stage: int, arrows: dict[tuple[_Key, _Key], int]
) -> Iterator[Track]:
    where = devices_text(prediction.cut.devices_of(stage))
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
    around = prediction.stages[stage]
    update = _slice("optimiser", around.update, "optimiser")
    yield Track(name=f"stage {stage}: {where}", slices=(*passes, update))
    exchanged = [
        _slice(name, each, "communication") for name, each in around.gathers if _lasts(each)
    ]
    exchanged += [_slice(name, each, "communication") for name, each in around.sums]
    if exchanged:
        yield Track(name=f"stage {stage}: data parallel", slices=tuple(exchanged))


def _name(action: Action) -> str:
    chunk = f", chunk {action.chunk}" if action.chunk else ""
    return f"{_NAMES[action.kind]} {action.micro_batch}{chunk}"


def _lasts(interval: Interval) -> bool:
    return interval[1] > interval[0]


def _slice(name: str, interval: Interval, category: str) -> Slice:
    return Slice(name=name, start_ps=interval[0], end_ps=interval[1], category=category)
