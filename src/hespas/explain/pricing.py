"""The regions of a prediction, priced by other methods than the one that it was made by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hespas.cost.expand import expand
from hespas.cost.rules.custom_call import CustomCallCost
from hespas.estimate.driver import OperationMethod, estimate_costs
from hespas.estimate.estimate import Estimate
from hespas.estimate.roofline import Roofline, same_work
from hespas.split.regions import Compute, RegionGraph

Prices = tuple[Estimate | None, ...]
"""What each region of a graph costs; None for one that communicates."""

_OF_KERNELS = frozenset({"call", "case", "conditional", "if", "while"})


def priced_again(
    graph: RegionGraph,
    before: Prices,
    methods: Sequence[OperationMethod],
    *,
    custom_calls: Mapping[str, CustomCallCost],
) -> list[Prices]:
    """Return the prices of all regions by each of several methods.

    Regions that had one price are priced once. Raises `hespas.errors.CostError` as methods do.
    """
    first: dict[int, Compute] = {}
    for region, old in zip(graph.regions, before, strict=True):
        if old is not None and isinstance(region, Compute):
            first.setdefault(id(old), region)
    again: list[dict[int, Estimate]] = [{} for _ in methods]
    functions, launches = graph.program.functions, graph.program.is_scheduled
    for number, region in first.items():
        costs = expand(region.operations, functions, custom_calls=custom_calls)
        for made, method in zip(again, methods, strict=True):
            key = same_work if isinstance(method, Roofline) else None
            made[number] = estimate_costs(method, costs, launches=launches, key=key)
    return [tuple([None if old is None else made[id(old)] for old in before]) for made in again]


def with_first_kernel(graph: RegionGraph, before: Prices, after: Prices) -> Prices:
    """Return the prices after a change, but the first region that is one kernel as before.

    Something still launches where a graph of kernels is replayed.
    """
    for region in graph.compute_regions:
        if len(region.operations) == 1 and region.operations[0].kind not in _OF_KERNELS:
            return (*after[: region.id], before[region.id], *after[region.id + 1 :])
    return after
