"""The task graph of an estimated program."""

from __future__ import annotations

from hespas.errors import TraceError
from hespas.estimate.estimate import Estimate
from hespas.estimate.graph import GraphEstimate
from hespas.schedule.build import RegionTime, build_task_graph
from hespas.schedule.tasks import TaskGraph
from hespas.split.regions import Compute, Region, RegionGraph


def estimated_tasks(graph: RegionGraph, estimates: GraphEstimate) -> TaskGraph:
    """Make the task graph of all devices from what every region costs.

    Raises `TraceError` for estimates of another graph.
    """
    found = estimates.estimate_of_region
    is_computed = [isinstance(region, Compute) for region in graph.regions]
    if is_computed != [estimate is not None for estimate in found]:
        raise TraceError(
            f"these are estimates of another graph: {len(found)} regions, not {len(is_computed)}, "
            "or others of them communicate",
            location=graph.program.source,
            hint="estimate the graph that is traced",
        )
    times = [
        None
        if estimate is None
        else RegionTime(duration_ps=estimate.duration_ps, label=_label(region, estimate))
        for region, estimate in zip(graph.regions, found, strict=True)
    ]
    return build_task_graph(graph, times, name=graph.program.source)


def _label(region: Region, estimate: Estimate) -> str:
    """Return the kind of a region's only operation, or of the one that takes most of the time."""
    match region:
        case Compute(operations=(op,)):
            return op.name
        case _:
            return estimate.longest_kind
