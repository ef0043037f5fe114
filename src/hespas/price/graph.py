"""Estimate a graph's regions at a device's sustained clock.

Power limits act on the mean power over some 10 ms: products that were timed for less than that ran
at the boost clock, longer ones at a lower clock (`hespas.hardware.power.clock_in_loop`). The
kernels of a step take less than 10 ms, its layers about as long. So the mean is taken over the
whole computation of the step, which has one clock: the largest at which that mean is within the
limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from threading import Event
from time import perf_counter
from typing import Protocol, runtime_checkable

from hespas.base.frozen import frozen
from hespas.base.process import end_programs_on
from hespas.base.units import format_quantity
from hespas.base.version import __version__
from hespas.errors import CostError, HardwareError, option
from hespas.hardware.device import Device, table_of
from hespas.hardware.power import BoardPower, Draw, Sustained, mean_w, sustained_clock
from hespas.price.cache import ENTRY_VERSION, Store, decode_estimate, encode_estimate
from hespas.price.driver import Estimator
from hespas.price.estimate import Estimate, OpEstimate, sum_estimates
from hespas.split.modules import RegionModules
from hespas.split.regions import Compute, RegionGraph

Progress = Callable[[int], None]
"""Called with the number of regions that are newly done."""


@frozen
class ModuleEstimate:
    """The cost of a distinct region, and how it was obtained.

    ``module`` is its number in the `RegionModules`, ``region`` the first region that was estimated;
    ``uses`` counts the regions that equal it, in folded loops as often as they run, ``operations``
    the operations in one of them. ``elapsed_s`` is the time that the estimator took; 0 if a cache
    had the estimate.
    """

    module: int
    region: int
    uses: int
    operations: int
    estimate: Estimate
    elapsed_s: float
    from_store: bool


@frozen
class ReuseStatistics:
    """How much work was saved for regions that equal ones estimated before."""

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
        without_reuse_s = self.elapsed_without_reuse_s
        return 1 - self.elapsed_s / without_reuse_s if without_reuse_s > 0 else 0.0


@frozen
class GraphEstimate:
    """Estimates of a graph's distinct regions.

    ``assumptions`` are those that the estimator makes of every region, ``method`` is its name.
    ``estimator`` priced them; None where it is not kept. ``sustained`` is the clock that they are
    priced at; None where it doesn't follow from power.
    """

    modules: tuple[ModuleEstimate, ...]
    estimate_of_region: tuple[Estimate | None, ...]
    total: Estimate
    reuse: ReuseStatistics
    assumptions: tuple[str, ...] = ()
    method: str = ""
    estimator: Estimator | None = field(default=None, compare=False, repr=False)
    sustained: Sustained | None = None


def cache_keys(
    regions: Iterable[str],
    estimator: Estimator,
    *,
    is_scheduled: bool,
    rates: Mapping[str, float] | None = None,
) -> Iterator[str]:
    """Yield the cache key of each estimate.

    ``regions`` are the fingerprints of the regions' canonical texts. ``is_scheduled`` says that
    their operations are kernels of a compiled program, and launched. ``rates`` are factors on those
    of the estimator's device.
    """
    parts = {
        "method": estimator.method,
        "parameters": dict(estimator.parameters),
        "is_scheduled": is_scheduled,
        "version": __version__,
        "entry": ENTRY_VERSION,
    }
    if rates is not None:
        parts["rates"] = dict(rates)
    shared = json.dumps(parts, sort_keys=True)
    for region in regions:
        yield sha256(f"{region}\n{shared}".encode()).hexdigest()


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

    With a ``store``, equal regions are estimated once and estimates are stored there; with None
    each region is estimated on its own. ``threads`` estimators run at a time; the result doesn't
    depend on their number.
    """
    jobs = _jobs(graph, modules, reuse=store is not None)
    keys: dict[_Job, str] = {}
    cached: dict[_Job, Estimate] = {}
    if store is not None:
        fingerprints = (modules.modules[job.module].fingerprint for job in jobs)
        is_scheduled = graph.program.is_scheduled
        region_keys = cache_keys(fingerprints, estimator, is_scheduled=is_scheduled)
        keys.update(zip(jobs, region_keys, strict=True))
        texts = store.read(keys.values())
        for job in [job for job in jobs if keys[job] in texts]:
            cached[job] = decode_estimate(texts[keys[job]], location=store.location)
    missing = [job for job in jobs if job not in cached]
    if progress is not None:
        progress(sum(len(job.serves) for job in cached))
    fresh: dict[_Job, tuple[Estimate, float]] = {}
    try:
        fresh.update(zip(missing, _run(missing, graph, estimator, threads, progress), strict=True))
    finally:
        # What a profiler measured before it failed, or before Ctrl-C, is cached for the next run.
        if store is not None:
            store.write({keys[job]: encode_estimate(new) for job, (new, _) in fresh.items()})
    estimates: list[Estimate | None] = [None] * len(graph.regions)
    estimated: list[ModuleEstimate] = []
    for job in jobs:
        estimate, elapsed_s = fresh[job] if job in fresh else (cached[job], 0.0)
        for region in job.serves:
            estimates[region] = estimate
        is_known, counts = job not in fresh, graph.counts
        estimated.append(job.estimated(estimate, elapsed_s, counts=counts, from_store=is_known))
    return GraphEstimate(
        modules=tuple(estimated),
        estimate_of_region=tuple(estimates),
        total=_total(estimated),
        reuse=_statistics(estimated),
        assumptions=estimator.assumptions(graph.program),
        method=estimator.method,
        estimator=estimator,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Job:
    """A region to estimate, with the regions equal to it."""

    module: int
    region: Compute
    serves: tuple[int, ...]

    def estimated(
        self, estimate: Estimate, elapsed_s: float, *, counts: Sequence[int], from_store: bool
    ) -> ModuleEstimate:
        """Return the region's cost; ``counts`` are those of all regions, if repeated."""
        return ModuleEstimate(
            module=self.module,
            region=self.region.id,
            uses=sum([counts[region] if counts else 1 for region in self.serves]),
            operations=len(self.region.operations),
            estimate=estimate,
            elapsed_s=elapsed_s,
            from_store=from_store,
        )


def _jobs(graph: RegionGraph, modules: RegionModules, *, reuse: bool) -> list[_Job]:
    number = modules.module_of_region
    regions_of_job: dict[tuple[int, int], list[Compute]] = {}
    for region in graph.compute_regions:
        distinguisher = -1 if reuse else region.id
        regions_of_job.setdefault((number[region.id], distinguisher), []).append(region)
    return [
        _Job(module=module, region=regions[0], serves=tuple(region.id for region in regions))
        for (module, _), regions in regions_of_job.items()
    ]


def _run(
    jobs: list[_Job],
    graph: RegionGraph,
    estimator: Estimator,
    threads: int,
    progress: Progress | None,
) -> Generator[tuple[Estimate, float]]:

    def run(job: _Job) -> tuple[Estimate, float]:
        start_s = perf_counter()
        try:
            estimate = estimator.estimate(job.region, graph.program)
        except OverflowError as error:
            raise CostError(
                f"region {job.region.id} takes longer than can be computed with",
                location=graph.program.source,
                hint="check the rates that the device, its clock and its memory are said to have",
            ) from error
        if progress is not None:
            progress(len(job.serves))
        return estimate, perf_counter() - start_s

    if threads == 1:
        yield from map(run, jobs)
        return
    interrupted = Event()
    with ThreadPoolExecutor(threads, initializer=end_programs_on, initargs=(interrupted,)) as pool:
        try:
            yield from pool.map(run, jobs)
        except BaseException:
            # The pool waits for its threads, and the threads for their programs.
            interrupted.set()
            raise


def _total(modules: Iterable[ModuleEstimate]) -> Estimate:
    """Add up all regions, equal ones by multiplication."""
    of_module: dict[int, list[ModuleEstimate]] = {}
    for module in modules:
        of_module.setdefault(module.module, []).append(module)
    totals: list[Estimate] = []
    for equal_modules in of_module.values():
        uses: dict[str, int] = {}
        first: dict[str, Estimate] = {}
        for module in equal_modules:
            text = encode_estimate(module.estimate) if len(equal_modules) > 1 else ""
            uses[text] = uses.get(text, 0) + module.uses
            first.setdefault(text, module.estimate)
        totals += [first[text] * count for text, count in uses.items()]
    return sum_estimates(totals)


def _statistics(modules: Sequence[ModuleEstimate]) -> ReuseStatistics:
    hits = [module.uses - (0 if module.from_store else 1) for module in modules]
    return ReuseStatistics(
        regions=sum(module.uses for module in modules),
        region_hits=sum(hits),
        operations=sum(module.uses * module.operations for module in modules),
        operation_hits=sum(
            hit * module.operations for hit, module in zip(hits, modules, strict=True)
        ),
        elapsed_s=sum(module.elapsed_s for module in modules),
        elapsed_without_reuse_s=sum(module.elapsed_s * module.uses for module in modules),
    )


TF32_ASSUMPTION = (
    "f32 matrix products of default precision run as tf32 where the device has it, as XLA does"
)


def computation_assumptions(graph: RegionGraph, estimates: GraphEstimate) -> tuple[str, ...]:
    """Return the distinct assumptions of the computation alone."""
    assumptions = [*estimator_assumptions(estimates), *graph.assumptions, *estimates.total.notes]
    return tuple(dict.fromkeys(assumptions))


def estimator_assumptions(estimates: GraphEstimate) -> tuple[str, ...]:
    """Return the estimator's assumptions on every region."""
    types = {key for op in estimates.total.per_op.values() for key in op.per_type}
    return (*estimates.assumptions, *([TF32_ASSUMPTION] if "tf32" in types else []))


@runtime_checkable
class Clocked(Estimator, Protocol):
    """An estimator whose times follow the clock of its device."""

    @property
    def device(self) -> Device:
        """The device that it estimates for."""
        ...

    def at_clock(self, clock: float) -> Estimator:
        """Return the estimator at a part of the device's boost clock."""
        ...


def no_power(device: Device) -> HardwareError:
    """Return the error for a device without described power."""
    return HardwareError(
        "the power of the device is not described",
        location=device.name,
        hint=f"put power.json beside its node.json, or drop {option('power_limit_w')}",
    )


def draw_of(total: OpEstimate) -> Draw:
    """Return the activity of a device from which its power follows."""
    flops: dict[str, float] = {}
    for name, totals in total.per_type.items():
        table = table_of(name)
        flops[table] = flops.get(table, 0.0) + totals.flops
    return Draw(
        time_s=total.time_s,
        clocked_s=total.bound.compute_s,
        flops=flops,
        size_bytes=total.bytes_moved,
    )


def at_sustained_clock(
    estimator: Estimator,
    first: Callable[[Estimator], GraphEstimate],
    again: Callable[[Estimator], GraphEstimate],
) -> GraphEstimate:
    """Estimate a graph at the clock that its computation sustains.

    ``first`` estimates the graph at the boost clock, ``again`` at a lower one if the boost clock
    draws more than the limit. An estimator without a clock is used as it is. Raises `HardwareError`
    for a limit that no clock keeps.
    """
    if not isinstance(estimator, Clocked):
        return first(estimator)
    device = estimator.device
    power, limit_w = device.power, device.limit_w
    if power is None or limit_w is None:
        return first(estimator)
    at_boost = first(estimator.at_clock(1.0))
    drawn = draw_of(at_boost.total.total)
    try:
        clock = sustained_clock(power, drawn, limit_w)
    except HardwareError as error:
        error.location = error.location or device.name
        raise
    sustaining = at_boost if clock == 1.0 else again(estimator.at_clock(clock))
    sustained = Sustained(
        clock=clock,
        limit_w=limit_w,
        power_w=mean_w(power, draw_of(sustaining.total.total), clock),
        at_boost_w=mean_w(power, drawn, 1.0),
    )
    note = _note(sustained, power)
    noted = Estimate(notes=(note,), noted_s={note: sustaining.total.total.bound.compute_s})
    return replace(sustaining, total=sustaining.total + noted, sustained=sustained)


def _note(sustained: Sustained, power: BoardPower) -> str:
    boost_hz = power.boost_clock_hz
    boost = format_quantity(boost_hz, "Hz")
    if sustained.clock == 1.0:
        return (
            f"power: kernels run at the boost clock, {boost}, with which the board draws "
            f"{sustained.at_boost_w:.0f} W of {sustained.limit_w:g} W in the mean"
        )
    return (
        f"power: kernels run at {format_quantity(sustained.clock * boost_hz, 'Hz')}, with which "
        f"the board draws its limit of {sustained.limit_w:g} W in the mean; at the boost clock, "
        f"{boost}, it would be {sustained.at_boost_w:.0f} W"
    )
