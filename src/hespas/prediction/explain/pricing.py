"""A step's regions priced again, by other methods or rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from hespas.base.frozen import frozen
from hespas.prediction.result import Prediction
from hespas.price.cache import Store, decode_estimate, encode_estimate
from hespas.price.driver import OperationMethod, estimate_costs
from hespas.price.estimate import Estimate
from hespas.price.graph import cache_keys
from hespas.price.roofline import Rates, Roofline, Scalable, same_work
from hespas.program.work import CustomCallCost
from hespas.simulate.rounds import JoinedGraph, joined_graph
from hespas.split.modules import RegionModules
from hespas.split.regions import Compute, RegionGraph
from hespas.tasks.build import arithmetic_share, regions_of_tasks
from hespas.tasks.graph import ComputeTask, Task, TaskGraph

Prices = tuple[Estimate | None, ...]
"""The price of each region of a graph; None for one that communicates."""


def priced_again(
    graph: RegionGraph,
    before: Prices,
    methods: Sequence[OperationMethod],
    *,
    custom_calls: Mapping[str, CustomCallCost],
) -> list[Prices]:
    """Price all regions by several methods; raises their `CostError`."""
    if not methods:
        return []
    first: dict[int, Compute] = {}
    for region, old in zip(graph.regions, before, strict=True):
        if old is not None and isinstance(region, Compute):
            first.setdefault(id(old), region)
    again: list[dict[int, Estimate]] = [{} for _ in methods]
    functions, launches = graph.program.functions, graph.program.is_scheduled
    for number, region in first.items():
        costs = region.costs(functions, custom_calls)
        for prices, method in zip(again, methods, strict=True):
            key = same_work if isinstance(method, Roofline) else None
            prices[number] = estimate_costs(method, costs, launches=launches, key=key)
    return [tuple([None if old is None else prices[id(old)] for old in before]) for prices in again]


def priced_at_rates(
    graph: RegionGraph,
    modules: RegionModules,
    before: Prices,
    estimator: Scalable,
    changes: Sequence[Rates],
    *,
    custom_calls: Mapping[str, CustomCallCost],
    store: Store | None,
) -> list[Prices]:
    """Return all regions' prices at several rates, cached in ``store``."""
    cached: list[Prices | None] = [None] * len(changes)
    keys = [_keys_at(rates, graph, modules, before, estimator) for rates in changes]
    for index, of_modules in enumerate(keys):
        texts = {} if store is None else store.read(of_modules.values())
        if store is not None and all(key in texts for key in of_modules.values()):
            of_module = {
                module: decode_estimate(texts[key], location=store.location)
                for module, key in of_modules.items()
            }
            numbers = zip(modules.module_of_region, before, strict=True)
            cached[index] = tuple(
                [None if old is None else of_module[number] for number, old in numbers]
            )
    missing = [index for index, prices in enumerate(cached) if prices is None]
    priced = priced_again(
        graph,
        before,
        [estimator.at_rates(changes[index]) for index in missing],
        custom_calls=custom_calls,
    )
    for index, prices in zip(missing, priced, strict=True):
        cached[index] = prices
        if store is not None:
            estimates = dict(zip(modules.module_of_region, prices, strict=True))
            store.write(
                {
                    key: encode_estimate(estimate)
                    for module, key in keys[index].items()
                    if (estimate := estimates[module]) is not None
                }
            )
    return [prices for prices in cached if prices is not None]


def _keys_at(
    rates: Rates, graph: RegionGraph, modules: RegionModules, before: Prices, estimator: Scalable
) -> dict[int, str]:
    numbers = zip(modules.module_of_region, before, strict=True)
    computing = list(dict.fromkeys(number for number, old in numbers if old is not None))
    fingerprints = [modules.modules[number].fingerprint for number in computing]
    is_scheduled = graph.program.is_scheduled
    keys = cache_keys(fingerprints, estimator, is_scheduled=is_scheduled, rates=asdict(rates))
    return dict(zip(computing, keys, strict=True))


def with_first_kernel(graph: RegionGraph, before: Prices, after: Prices) -> Prices:
    """Return the prices after a change, except the first kernel's."""
    for region in graph.compute_regions:
        if len(region.operations) == 1 and not region.operations[0].traits.runs_operations:
            return (*after[: region.id], before[region.id], *after[region.id + 1 :])
    return after


@frozen
class Rows:
    """A prediction's rows of computations, and their regions."""

    chains: JoinedGraph
    regions: dict[int, int]

    def at(self, prices: Prices) -> TaskGraph:
        """Return the tasks with the durations of ``prices``."""
        distinct = {id(price): price for price in prices if price is not None}
        times = {
            number: (price.duration_ps, arithmetic_share(price))
            for number, price in distinct.items()
        }
        of_task = {task: times[id(prices[region])] for task, region in self.regions.items()}

        def repriced(task: Task) -> Task:
            if not isinstance(task, ComputeTask):
                return task
            row = [of_task[member.id] for member in self.chains.members.get(task.id, (task,))]
            total_ps = sum([duration_ps for duration_ps, _ in row])
            bound_ps = sum([duration_ps * share for duration_ps, share in row])
            share = row[0][1] if len(row) == 1 else bound_ps / (total_ps or 1)
            return replace(task, duration_ps=total_ps, arithmetic_share=share)

        tasks = tuple([repriced(task) for task in self.chains.graph.tasks])
        return replace(self.chains.graph, tasks=tasks)


def rows_of(prediction: Prediction) -> Rows:
    """Return the rows of a scheduled program's computations."""
    regions = regions_of_tasks(prediction.graph, prediction.tasks)
    tasks = {task.id for task in prediction.tasks.tasks if isinstance(task, ComputeTask)}
    return Rows(
        chains=joined_graph(prediction.tasks),
        regions={task: region.id for task, region in regions.items() if task in tasks},
    )
