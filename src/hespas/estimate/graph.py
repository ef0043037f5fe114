"""Estimate every region of a graph, each distinct one once."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from time import perf_counter

from hespas.errors import CostError
from hespas.estimate.coding import decode_estimate, encode_estimate
from hespas.estimate.estimate import Estimate
from hespas.estimate.protocol import Estimator
from hespas.estimate.store import Store
from hespas.split.modules import RegionModules
from hespas.split.regions import Compute, RegionGraph
from hespas.version import __version__

Progress = Callable[[int], None]
"""Told how many more regions are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleEstimate:
    """What a distinct region costs, and how the answer came about.

    ``module`` is its number in the `RegionModules`, ``region`` the first region that was
    estimated; ``uses`` counts the regions that equal it, ``operations`` the operations in one
    of them. ``elapsed_s`` is the time that the estimator took; 0 where a cache had the answer.
    """

    module: int
    region: int
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
    """Estimates of a whole graph: one per distinct region, and which region has which.

    ``assumptions`` are those that the estimator makes of every region.
    """

    modules: tuple[ModuleEstimate, ...]
    estimate_of_region: tuple[Estimate | None, ...]
    total: Estimate
    reuse: ReuseStatistics
    assumptions: tuple[str, ...] = ()


def cache_key(region: str, estimator: Estimator) -> str:
    """Return the key of an estimate: region, estimator, its parameters and hespas's version.

    ``region`` stands for what is computed: the fingerprint of the region's canonical text.
    """
    parts = {
        "region": region,
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
    keys = {} if store is None else {job: _key(modules, job, estimator) for job in wanted}
    known = {} if store is None else _known(store, list(keys.values()))
    jobs = [job for job in wanted if keys.get(job) not in known]
    fresh: dict[_Job, tuple[Estimate, float]] = {}
    try:
        fresh.update(zip(jobs, _run(jobs, graph, estimator, threads, progress), strict=True))
    finally:
        # What a profiler measured before it failed, or before Ctrl-C, is there the next time.
        if store is not None:
            store.write({keys[job]: encode_estimate(found) for job, (found, _) in fresh.items()})
    made = tuple(
        _made(job, *fresh[job], from_store=False)
        if job in fresh
        else _made(job, known[keys[job]], 0.0, from_store=True)
        for job in wanted
    )
    return _gathered(graph, wanted, made, estimator.assumptions)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Job:
    """One region to estimate, and the ids of the regions that the answer serves."""

    module: int
    region: Compute
    serves: tuple[int, ...]


def _wanted(graph: RegionGraph, modules: RegionModules, *, reuse: bool) -> list[_Job]:
    number = modules.module_of_region
    equal: dict[tuple[int, int], list[Compute]] = {}
    for region in graph.compute_regions:
        alone = -1 if reuse else region.id
        equal.setdefault((number[region.id], alone), []).append(region)
    return [
        _Job(
            module=module,
            region=regions[0],
            serves=tuple(region.id for region in regions),
        )
        for (module, _), regions in equal.items()
    ]


def _known(store: Store, keys: Iterable[str]) -> dict[str, Estimate]:
    found = store.read(keys)
    return {key: decode_estimate(text, location=store.location) for key, text in found.items()}


def _key(modules: RegionModules, job: _Job, estimator: Estimator) -> str:
    return cache_key(modules.modules[job.module].fingerprint, estimator)


def _made(job: _Job, estimate: Estimate, elapsed_s: float, *, from_store: bool) -> ModuleEstimate:
    return ModuleEstimate(
        module=job.module,
        region=job.region.id,
        uses=len(job.serves),
        operations=len(job.region.operations),
        estimate=estimate,
        elapsed_s=elapsed_s,
        from_store=from_store,
    )


def _run(
    jobs: list[_Job],
    graph: RegionGraph,
    estimator: Estimator,
    threads: int,
    progress: Progress | None,
) -> Generator[tuple[Estimate, float]]:
    def one(job: _Job) -> tuple[Estimate, float]:
        start_s = perf_counter()
        estimate = _estimated(job.region, graph, estimator)
        if progress is not None:
            progress(len(job.serves))
        return estimate, perf_counter() - start_s

    if threads == 1:
        yield from map(one, jobs)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(one, jobs)


def _estimated(region: Compute, graph: RegionGraph, estimator: Estimator) -> Estimate:
    try:
        return estimator.estimate(region, graph.program)
    except OverflowError as error:
        raise CostError(
            f"region {region.id} takes longer than can be computed with",
            location=graph.program.source,
            hint="check the rates that the device, its clock and its memory are said to have",
        ) from error


def _gathered(
    graph: RegionGraph,
    wanted: list[_Job],
    made: tuple[ModuleEstimate, ...],
    assumptions: tuple[str, ...],
) -> GraphEstimate:
    estimates: list[Estimate | None] = [None] * len(graph.regions)
    for job, each in zip(wanted, made, strict=True):
        for region in job.serves:
            estimates[region] = each.estimate
    return GraphEstimate(
        modules=made,
        estimate_of_region=tuple(estimates),
        total=_total(made),
        reuse=_statistics(made),
        assumptions=assumptions,
    )


def _total(made: Iterable[ModuleEstimate]) -> Estimate:
    """Add up all regions; equal ones by multiplication, so that reuse changes no bit."""
    equal: dict[tuple[int, str], list[ModuleEstimate]] = {}
    for each in made:
        equal.setdefault((each.module, encode_estimate(each.estimate)), []).append(each)
    parts = (group[0].estimate * sum(each.uses for each in group) for group in equal.values())
    return sum(parts, Estimate())


def _statistics(made: tuple[ModuleEstimate, ...]) -> ReuseStatistics:
    hits = [each.uses - (0 if each.from_store else 1) for each in made]
    return ReuseStatistics(
        regions=sum(each.uses for each in made),
        region_hits=sum(hits),
        operations=sum(each.uses * each.operations for each in made),
        operation_hits=sum(hit * each.operations for hit, each in zip(hits, made, strict=True)),
        elapsed_s=sum(each.elapsed_s for each in made),
        elapsed_without_reuse_s=sum(each.elapsed_s * each.uses for each in made),
    )
