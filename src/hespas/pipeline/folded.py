"""Predictions of programs whose loops are long: one round of each is priced and simulated."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from hespas.options import PredictOptions
from hespas.pipeline.caches import store_of
from hespas.pipeline.checks import checked
from hespas.pipeline.composition import divide, divide_whole, finish, load_settled, price
from hespas.prediction import Prediction
from hespas.schedule.build import regions_of_tasks
from hespas.schedule.tasks import TaskGraph
from hespas.simulate.rounds import Stretch, multiplied
from hespas.split.regions import RegionGraph


def predict_folded(options: PredictOptions) -> Prediction:
    """Predict one step as `predict` does, with one round of each loop where all are alike.

    The figures of the step are the same; ``timeline``, ``tasks`` and ``graph`` have one round of
    each loop. Takes a fraction of the time and memory for programs with long loops.
    """
    options = checked(options)
    system, program = load_settled(options)
    folded = divide(program, options, system=system, folded=True)
    store = store_of(options.estimate)
    if folded.graph.counts and not folded.graph.host_transfers:
        prediction = finish(folded, price(folded, options, store=store), options)
        if prediction.timeline is None:
            return prediction
        stretches = _stretches(folded.graph, prediction.tasks)
        whole = multiplied(prediction.timeline, stretches)
        if whole is not None:
            return replace(prediction, timeline=whole)
    prepared = divide_whole(program, options, system)
    return finish(prepared, price(prepared, options, store=store), options)


def _stretches(graph: RegionGraph, tasks: TaskGraph) -> list[Stretch]:
    """Return the tasks between beginnings and ends of rounds, and how often they run."""
    limits = {0, len(graph.regions)}
    limits |= {number for each in graph.rounds for number in (each.first, each.last + 1)}
    regions = regions_of_tasks(graph, tasks)
    inside: dict[int, list[int]] = {first: [] for first in sorted(limits)}
    firsts = list(inside)
    for task, region in regions.items():
        inside[firsts[bisect_right(firsts, region.id) - 1]].append(task)
    return [
        Stretch(tasks=frozenset(numbers), count=graph.counts[first])
        for first, numbers in inside.items()
        if numbers
    ]
