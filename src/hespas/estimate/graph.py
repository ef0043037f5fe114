"""Estimate every region of a graph, each distinct one once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from time import perf_counter

from hespas import __version__
from hespas.estimate.coding import decode_estimate, encode_estimate
from hespas.estimate.estimate import Estimate
from hespas.estimate.protocol import Estimator
from hespas.estimate.store import Store
from hespas.split.modules import RegionModules
from hespas.split.regions import Compute, RegionGraph

Progress = Callable[[int], None]
"""Told how many more regions are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleEstimate:
    """What a distinct region costs, and how the answer came about.

    ``uses`` counts the regions that equal it, ``operations`` the operations in one of them.
    ``elapsed_s`` is the time that the estimator took; 0 where a cache had the answer.
    """

    module: int
    first_region: int
    uses: int
    operations: int
    estimate: Estimate
    elapsed_s: float
    from_store: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseStatistics:
    """How much work the cache saved.

    A region is a hit if an equal one, of this run or an earlier one, was estimated before.
    """

    regions: int
    region_hits: int
    operations: int
    operation_hits: int
    elapsed_s: float
    elapsed_without_reuse_s: float

    @property
    def block_reuse_rate(self) -> float:
        """Hits per region."""
        return self.region_hits / self.regions if self.regions else 0.0

    @property
    def operator_reuse_factor(self) -> float:
        """Operations in hits per operation."""
        return self.operation_hits / self.operations if self.operations else 0.0

    @property
    def time_reduction(self) -> float:
        """The part of the estimator's time that reuse saved."""
        whole = self.elapsed_without_reuse_s
        return 1 - self.elapsed_s / whole if whole > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEstimate:
    """Estimates of a whole graph: one per distinct region, and which region has which."""

    modules: tuple[ModuleEstimate, ...]
    estimate_of_region: tuple[Estimate | None, ...]
    total: Estimate
    reuse: ReuseStatistics


def cache_key(canonical_text: str, estimator: Estimator) -> str:
    """Return the key of an estimate: region, estimator, its parameters and hespas's version."""
    parts = {
        "region": canonical_text,
        "method": estimator.method,
        "parameters": dict(estimator.parameters),
        "version": __version__,
    }
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def estimate_graph(
    graph: RegionGraph,
    modules: RegionModules,
    estimator: Estimator,
    *,
    store: Store | None,
    threads: int = 1,
    progress: Progress | None = None,
) -> GraphEstimate:
    """Estimate every compute region.

    With a ``store``, equal regions are estimated once and answers are kept there; with None
    each region is estimated by itself. ``threads`` estimators run at a time; the result
    doesn't depend on their number.
    """
    wanted = _wanted(graph, modules, reuse=store is not None)
    keys = {job.module: cache_key(_text(modules, job), estimator) for job in wanted}
    known = store.read(keys.values()) if store is not None else {}
    jobs = [job for job in wanted if keys[job.module] not in known]
    fresh = dict(
        zip(
            (job.region.id for job in jobs),
            _run(jobs, graph, estimator, threads, progress),
            strict=True,
        )
    )
    made: list[ModuleEstimate] = []
    for job in wanted:
        estimate, elapsed_s = fresh.get(job.region.id) or (
            decode_estimate(known[keys[job.module]]),
            0.0,
        )
        made.append(
            ModuleEstimate(
                module=job.module,
                first_region=job.region.id,
                uses=job.uses,
                operations=len(job.region.operations),
                estimate=estimate,
                elapsed_s=elapsed_s,
                from_store=job.region.id not in fresh,
            )
        )
    if store is not None:
        store.write({keys[job.module]: encode_estimate(fresh[job.region.id][0]) for job in jobs})
    return _gathered(graph, modules, made)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One region to estimate, and how many regions the answer serves."""

    module: int
    region: Compute
    uses: int


def _wanted(graph: RegionGraph, modules: RegionModules, *, reuse: bool) -> list[_Job]:
    regions = graph.compute_regions
    number = modules.module_of_region
    if not reuse:
        return [_Job(module=number[region.id], region=region, uses=1) for region in regions]
    uses = Counter(number[region.id] for region in regions)
    first = {number[region.id]: region for region in reversed(regions)}
    return [_Job(module=key, region=first[key], uses=count) for key, count in uses.items()]


def _text(modules: RegionModules, job: _Job) -> str:
    return modules.modules[job.module].canonical_text


def _run(
    jobs: list[_Job],
    graph: RegionGraph,
    estimator: Estimator,
    threads: int,
    progress: Progress | None,
) -> Iterable[tuple[Estimate, float]]:
    def one(job: _Job) -> tuple[Estimate, float]:
        start_s = perf_counter()
        estimate = estimator.estimate(job.region, graph.program)
        if progress is not None:
            progress(job.uses)
        return estimate, perf_counter() - start_s

    if threads == 1:
        return [one(job) for job in jobs]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, jobs))


def _gathered(
    graph: RegionGraph, modules: RegionModules, made: list[ModuleEstimate]
) -> GraphEstimate:
    by_module: Mapping[int, Estimate] = {each.module: each.estimate for each in made}
    estimates = tuple(
        by_module[modules.module_of_region[region.id]] if isinstance(region, Compute) else None
        for region in graph.regions
    )
    return GraphEstimate(
        modules=tuple(made),
        estimate_of_region=estimates,
        total=sum((each.estimate * each.uses for each in made), Estimate()),
        reuse=_statistics(made),
    )


def _statistics(made: list[ModuleEstimate]) -> ReuseStatistics:
    hits = {id(each): each.uses - (0 if each.from_store else 1) for each in made}
    return ReuseStatistics(
        regions=sum(each.uses for each in made),
        region_hits=sum(hits.values()),
        operations=sum(each.uses * each.operations for each in made),
        operation_hits=sum(hits[id(each)] * each.operations for each in made),
        elapsed_s=sum(each.elapsed_s for each in made),
        elapsed_without_reuse_s=sum(each.elapsed_s * each.uses for each in made),
    )
