"""The task graph of an estimated program."""

from __future__ import annotations

from hespas.estimate.graph import GraphEstimate
from hespas.split.regions import RegionGraph
from hespas.trace.build import RegionTime, build_task_graph
from hespas.trace.tasks import TaskGraph


def estimated_tasks(graph: RegionGraph, estimates: GraphEstimate) -> TaskGraph:
    """Make the task graph of all devices from what every region costs."""
    times = [
        None
        if estimate is None
        else RegionTime(duration_ps=estimate.duration_ps, label=estimate.dearest_kind)
        for estimate in estimates.estimate_of_region
    ]
    return build_task_graph(graph, times, name=graph.program.source)
