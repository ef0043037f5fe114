"""Predictions of programs whose loops are long: a few rounds of each are simulated."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import replace

from hespas.hardware.system import System
from hespas.prediction.caches import store_of
from hespas.prediction.checks import checked
from hespas.prediction.composition import divide, divide_whole, finish, load_settled, price
from hespas.prediction.machines import host_bandwidth
from hespas.prediction.options import PredictOptions
from hespas.prediction.result import Prediction
from hespas.price.cache import Store
from hespas.program.program import Program
from hespas.simulate.rounds import Repeat, extended
from hespas.simulate.timeline import Timeline
from hespas.split.flatten import unrolled_size
from hespas.split.regions import LoopRound, RegionGraph
from hespas.tasks.build import check_host_link, regions_of_tasks
from hespas.tasks.graph import TaskGraph

_FEW = 4
"""Rounds of each loop that are simulated; the third is held against the second."""


def predict_folded(options: PredictOptions, *, whole_up_to: int = 0) -> Prediction:
    """Predict one step as `predict` does, with a few rounds of each loop where that will do.

    The figures of the step are the same; ``timeline``, ``tasks`` and ``graph`` have those rounds
    of each loop. Takes a fraction of the time and memory for programs with long loops. Programs of
    at most ``whole_up_to`` operations, loops unrolled, are simulated whole.
    """
    options = checked(options)
    system, program = load_settled(options)
    store = store_of(options.estimate)
    # Only what is scheduled has rounds that stand for others.
    if not program.is_scheduled or (whole_up_to and unrolled_size(program) <= whole_up_to):
        return _whole(program, options, system, store)
    folded = divide(program, options, system=system, most_rounds=_FEW)
    is_whole = not folded.graph.is_folded
    if is_whole or not folded.graph.host_transfers:
        check_host_link(folded.graph, host_bandwidth(options.estimate))
        prediction = finish(folded, price(folded, options, store=store), options)
        if is_whole or prediction.timeline is None:
            return prediction
        whole = _extended(prediction.timeline, folded.graph, prediction.tasks)
        if whole is not None:
            return replace(prediction, timeline=whole)
    return _whole(program, options, system, store)


def _whole(
    program: Program, options: PredictOptions, system: System | None, store: Store | None
) -> Prediction:
    prepared = divide_whole(program, options, system)
    return finish(prepared, price(prepared, options, store=store), options)


def _extended(timeline: Timeline, graph: RegionGraph, tasks: TaskGraph) -> Timeline | None:
    regions = {task: region.id for task, region in regions_of_tasks(graph, tasks).items()}
    counts = {task: graph.counts[region] for task, region in regions.items()}
    return extended(timeline, _repeats(graph, regions), counts)


def _repeats(graph: RegionGraph, regions: Mapping[int, int]) -> list[Repeat]:
    """Return the second and the third round of each loop of which rounds are left out."""
    ordered = sorted(regions)
    of_region = [regions[task] for task in ordered]

    def tasks(one: LoopRound) -> tuple[int, ...]:
        first, last = bisect_left(of_region, one.first), bisect_right(of_region, one.last)
        return tuple(ordered[first:last])

    found: list[Repeat] = []
    ended: dict[tuple[str, int, int], LoopRound] = {}
    for one in graph.rounds:
        ended[one.loop, one.number, one.last + 1] = one
        if one.number == _FEW and one.count > _FEW:
            third = ended[one.loop, _FEW - 1, one.first]
            second = ended[one.loop, _FEW - 2, third.first]
            count = one.count - _FEW + 1
            found.append(Repeat(before=tasks(second), again=tasks(third), count=count))
    return found
