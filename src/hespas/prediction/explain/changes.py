"""A step priced again with one cause of time changed.

Each change is made to the values that the prediction was made from (the device's rates, the
system's links, the cluster's imperfections), and the step is priced and simulated again by the same
method and the same network model. What the method cannot answer has no row: cycles that a compiler
wrote don't change with the memory bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from hespas.base.frozen import frozen
from hespas.base.units import format_quantity, format_time
from hespas.compile.options import SLOP_FLAG
from hespas.hardware.faster_links import LinkFactors, with_links
from hespas.hardware.power import sustained_clock
from hespas.hardware.system import System, interconnect_of
from hespas.prediction.composition import predict
from hespas.prediction.explain.pricing import (
    Prices,
    Rows,
    priced_again,
    priced_at_rates,
    rows_of,
    with_first_kernel,
)
from hespas.prediction.machines import host_bandwidth, model_of, prices_of
from hespas.prediction.options import NetworkOptions
from hespas.prediction.recorded_stages import job_of_stages
from hespas.prediction.result import Prediction, computation_alone
from hespas.price.cache import MemoryStore
from hespas.price.estimate import Estimate, sum_estimates
from hespas.price.graph import Clocked, draw_of, estimate_graph
from hespas.price.roofline import Rates, Scalable
from hespas.simulate.models import step_times_s
from hespas.simulate.options import Model
from hespas.tasks.build import estimated_tasks
from hespas.tasks.graph import ComputeTask, MemoryTask, Task, TaskGraph, is_host_launch

_MUCH = 1e6
"""Stands for infinitely many times as fast: rates have to be finite."""


@frozen
class Change:
    """A step with one thing changed; ``gain`` is a share."""

    change: str
    step_time_s: float
    gain: float
    note: str = ""


MEMORY_DOUBLED = "memory bandwidth doubled"
ARITHMETIC_DOUBLED = "peak FLOP/s doubled"
LAUNCHES_FREE = "kernel launches free after the first"
LINKS_DOUBLED = "link bandwidth doubled"
HOST_LINK_DOUBLED = "host link bandwidth doubled"
HOST_LAUNCHES_FREE = "the host launches kernels in no time"
COMMUNICATION_HIDDEN = "communication hidden behind computation"
AS_SPECIFIED = "every device as specified"
AT_BOOST = "no power limit"
_RATES = {
    MEMORY_DOUBLED: Rates(memory=2.0),
    ARITHMETIC_DOUBLED: Rates(arithmetic=2.0),
    LAUNCHES_FREE: Rates(launch=0.0),
}
_MORE_RATES = {
    "memory bandwidth infinite": Rates(memory=_MUCH),
    "peak FLOP/s infinite": Rates(arithmetic=_MUCH),
}
_MORE_LINKS = {
    "link bandwidth infinite": LinkFactors(bandwidth=_MUCH),
    "link latency zero": LinkFactors(latency=0.0),
}


def main_changes(prediction: Prediction) -> tuple[Change, ...]:
    """Return the changes that compute fast, the largest gain first.

    Those of recorded stages of a pipeline are of all stages.
    """
    stages = _stages(prediction)
    if stages is not None:
        return ordered(list(stages.changes(_RATES)))
    step = _step(prediction)
    rates = (*step.rates(_RATES), *step.power())
    return ordered([*rates, *step.network(), *step.host(), *step.devices()])


def all_changes(prediction: Prediction) -> tuple[Change, ...]:
    """Return all changes, the largest gain first."""
    stages = _stages(prediction)
    if stages is not None:
        return ordered([*stages.changes(_RATES | _MORE_RATES), *stages.more_network()])
    step = _step(prediction)
    rates = (*step.rates(_RATES | _MORE_RATES), *step.power())
    network = (*step.network(), *step.more_network(), *step.host(), *step.devices())
    program = (*step.overlap(), *step.attention(), *step.kernels())
    return ordered([*rates, *network, *program])


def ordered(changes: list[Change]) -> tuple[Change, ...]:
    """Sort changes, the largest gain first.

    Changes of equal gain are sorted by name.
    """
    return tuple(sorted(changes, key=lambda change: (-change.gain, change.change)))


@frozen
class _Step:
    """The step that is changed, one thing at a time.

    ``rows`` are None unless it is scheduled and its devices as specified, ``retimed_s`` without
    a system.
    """

    prediction: Prediction
    rows: Rows | None
    retimed_s: Callable[[TaskGraph], float] | None

    def rates(self, changes: Mapping[str, Rates]) -> Iterator[Change]:
        """Yield the step at other rates of the device."""
        for name, prices in self.prices(changes):
            yield self._priced(name, prices)

    def prices(self, changes: Mapping[str, Rates]) -> Iterator[tuple[str, Prices]]:
        """Yield the prices at other rates of the device, by the change's name."""
        graph, estimates = self.prediction.graph, self.prediction.estimates
        estimator, before = estimates.estimator, estimates.estimate_of_region
        if not isinstance(estimator, Scalable):
            return
        requested = {
            name: rates
            for name, rates in changes.items()
            if name != LAUNCHES_FREE or graph.program.is_scheduled
        }
        options, modules = self.prediction.options.estimate, self.prediction.modules
        priced = partial(
            priced_at_rates,
            graph,
            modules,
            before,
            custom_calls=options.custom_calls,
            store=prices_of(options, modules) if graph.program.is_scheduled else None,
        )
        for name, after in zip(requested, self._limited(estimator, requested, priced), strict=True):
            replayed = name == LAUNCHES_FREE
            yield name, with_first_kernel(graph, before, after) if replayed else after

    def _limited(
        self,
        estimator: Scalable,
        requested: Mapping[str, Rates],
        priced: Callable[[Scalable, Sequence[Rates]], list[Prices]],
    ) -> list[Prices]:
        """Return prices at other rates, under the power limit.

        A faster device draws more power, and its clock falls. Infinite rates keep the clock.
        """
        sustained = self.prediction.estimates.sustained
        if sustained is None or not isinstance(estimator, Clocked):
            return priced(estimator, list(requested.values()))
        power, boost = estimator.device.power, estimator.at_clock(1.0)
        if power is None or not isinstance(boost, Scalable):
            return priced(estimator, list(requested.values()))
        limited = [rates for name, rates in requested.items() if name not in _MORE_RATES]
        prices_of_rates = dict(zip(limited, priced(boost, limited), strict=True))
        clocks: dict[Rates, float] = {}
        for rates, prices in prices_of_rates.items():
            total = _total(prices)
            clocks[rates] = sustained_clock(power, draw_of(total.total), sustained.limit_w)
        for rates, clock in clocks.items():
            slower = estimator.at_clock(clock)
            if clock < 1.0 and isinstance(slower, Scalable):
                (prices_of_rates[rates],) = priced(slower, [rates])
        unlimited = [rates for rates in requested.values() if rates not in prices_of_rates]
        prices_of_rates |= zip(unlimited, priced(estimator, unlimited), strict=True)
        return [prices_of_rates[rates] for rates in requested.values()]

    def power(self) -> Iterator[Change]:
        """Yield the step at the boost clock, without a limit."""
        sustained, prices = self.prediction.estimates.sustained, self.at_boost()
        if sustained is None or prices is None:
            return
        note = (
            f"the computation would draw {sustained.at_boost_w:.0f} W instead of "
            f"{sustained.limit_w:g} W"
        )
        yield replace(self._priced(AT_BOOST, prices), note=note)

    def at_boost(self) -> Prices | None:
        """Return the prices at the boost clock; None if that is the clock."""
        graph, estimates = self.prediction.graph, self.prediction.estimates
        sustained, estimator = estimates.sustained, estimates.estimator
        if sustained is None or sustained.clock == 1.0 or not isinstance(estimator, Clocked):
            return None
        # The search for the clock cached these prices.
        options, modules = self.prediction.options.estimate, self.prediction.modules
        store = prices_of(options, modules) if graph.program.is_scheduled else None
        at_boost = estimate_graph(
            graph, modules, estimator.at_clock(1.0), store=store or MemoryStore()
        )
        return at_boost.estimate_of_region

    def network(self) -> Iterator[Change]:
        """Yield the step with links doubled, and with communication hidden."""
        system = self.prediction.system
        if system is None or not self.prediction.communication_s:
            return
        yield self._on_links(LINKS_DOUBLED, with_links(system, LinkFactors(bandwidth=2.0)))
        longer_s = max(self.prediction.compute_s, self.prediction.communication_s)
        added_s = self.prediction.exposed_host_transfer_s + self.prediction.straggler_s
        step_s = longer_s + added_s + self.prediction.launch_wait_s
        yield self._row(COMMUNICATION_HIDDEN, step_s)

    def more_network(self) -> Iterator[Change]:
        """Yield the step with other links, by dimension too."""
        system = self.prediction.system
        if system is None or not self.prediction.communication_s:
            return
        for name, factors in _MORE_LINKS.items():
            yield self._on_links(name, with_links(system, factors))
        is_astra = model_of(self.prediction.options.network, system).model is Model.ASTRA_SIM
        dimensions = system.dimensions if is_astra else interconnect_of(system).dimensions
        sizes = [dimension.size for dimension in dimensions]
        if len(sizes) < 2:
            return
        for number, size in enumerate(sizes):
            name = f"{LINKS_DOUBLED} along dimension {number} ({size} devices)"
            faster = with_links(system, LinkFactors(bandwidth=2.0), dimension=number)
            yield self._on_links(name, faster)

    def host(self) -> Iterator[Change]:
        """Yield the step with faster links or launches of hosts."""
        if self.prediction.host_transfer_s:
            tasks = self.prediction.tasks if self.rows is None else self.rows.chains.graph
            yield self._row(HOST_LINK_DOUBLED, self._of_tasks_s(_retimed(tasks, _halved_transfer)))
        if self.prediction.launch_wait_s:
            tasks = _retimed(self.prediction.tasks, _free_launch)
            yield self._row(HOST_LAUNCHES_FREE, self._of_tasks_s(tasks))

    def devices(self) -> Iterator[Change]:
        """Yield the step with perfect devices, then with perfect links."""
        network, timeline = self.prediction.options.network, self.prediction.timeline
        imperfect = network.imperfect
        if imperfect is None or timeline is None or self.prediction.system is None:
            return
        if timeline.as_specified is not None:
            step_s = self.prediction.step_time_s - self.prediction.straggler_s
            yield self._row(AS_SPECIFIED, step_s)
        if imperfect.links:
            model = model_of(network, self.prediction.system).model
            perfect = replace(network, model=model, imperfect=replace(imperfect, links=()))
            step_s = self._simulated_s(self.prediction.tasks, self.prediction.system, perfect)
            yield self._row("every link as specified", step_s)

    def overlap(self) -> Iterator[Change]:
        """Yield the step with XLA's memory limit raised."""
        limit, options = self.prediction.graph.program.overlap, self.prediction.options
        if limit is None or limit.full_factor is None or not self.prediction.gave_up_overlap:
            return
        filled = options.compile.options.with_slop_factor(limit.full_factor)
        again = predict(replace(options, compile=replace(options.compile, options=filled)))
        needs, has = again.memory.peak_bytes, again.memory_capacity_bytes
        fits = "" if has is None else ", and fits" if needs <= has else ", and does not fit"
        capacity = "" if has is None else f" of {format_quantity(has, 'B')}"
        note = (
            f"overlap: the scheduler's limit was {format_quantity(limit.limit_bytes, 'B')}, and it "
            f"counted {format_quantity(limit.needed_bytes, 'B')}; with {SLOP_FLAG}="
            f"{limit.full_factor} the step needs {format_quantity(needs, 'B')}{capacity}{fits}"
        )
        row = self._row(f"{SLOP_FLAG}={limit.full_factor}", again.step_time_s)
        yield replace(row, note=note)

    def attention(self) -> Iterator[Change]:
        """Yield the step with attention fused, if it is not."""
        # A run doesn't ask for this, nor waits for what it takes.
        from hespas.prediction.explain.attention import (  # noqa: PLC0415
            Fused,
            Labelled,
            PricesAttention,
            passes_of,
            unfused,
        )

        graph, estimates = self.prediction.graph, self.prediction.estimates
        method, before = estimates.estimator, estimates.estimate_of_region
        scores = unfused(graph.program)
        if scores is None or not isinstance(method, PricesAttention):
            return
        custom_calls = self.prediction.options.estimate.custom_calls
        labelled = Labelled(method=method, scores=scores)
        (unfused_prices,) = priced_again(graph, before, [labelled], custom_calls=custom_calls)
        passes = passes_of(_total(unfused_prices))
        if passes is None:
            return
        each_s = passes.fused_s(scores, method) / (passes.forward + passes.backward)
        fused = Fused(method=method, scores=scores, each_s=each_s)
        (after,) = priced_again(graph, before, [fused], custom_calls=custom_calls)
        now, then = format_time(passes.time_s), format_time(passes.fused_s(scores, method))
        note = (
            f"attention is not fused: it takes {now} with its {scores.text} scores in memory, and "
            f"{then} without them, as one kernel for each of {passes.forward:g} forward and "
            f"{passes.backward:g} backward passes that computes {scores.computed}"
        )
        yield replace(self._priced("attention fused", after), note=note)

    def kernels(self) -> Iterator[Change]:
        """Yield the step with kernels at their memory limits."""
        from hespas.prediction.explain.kernels import AtLimit, ByKernel, pricer_of  # noqa: PLC0415 - as above

        graph, estimates = self.prediction.graph, self.prediction.estimates
        method, before = estimates.estimator, estimates.estimate_of_region
        pricer = pricer_of(method)
        if pricer is None or not isinstance(method, Scalable) or not graph.program.is_scheduled:
            return
        custom_calls = self.prediction.options.estimate.custom_calls
        by_kernel = ByKernel(method=method, kernels=pricer)
        (priced,) = priced_again(graph, before, [by_kernel], custom_calls=custom_calls)
        slowest = by_kernel.slowest(_total(priced))
        names = (None, *(kernel.name for kernel in slowest))
        at_limits = [AtLimit(method=method, kernels=pricer, name=name) for name in names]
        every, *single = priced_again(graph, before, at_limits, custom_calls=custom_calls)
        yield self._priced("every kernel at its memory limit", every)
        for kernel, after in zip(slowest, single, strict=True):
            row = self._priced(f"kernel {kernel.name} at its memory limit", after)
            yield replace(row, note=kernel.note)

    def _priced(self, name: str, prices: Prices) -> Change:
        if self.prediction.timeline is None:
            return self._row(name, sum(price.time_s for price in prices if price is not None))
        if self.rows is not None:
            return self._row(name, self._of_tasks_s(self.rows.at(prices)))
        return self._row(name, self._of_tasks_s(self.tasks(prices)))

    def tasks(self, prices: Prices) -> TaskGraph:
        """Return the step's tasks at other prices."""
        estimates = replace(self.prediction.estimates, estimate_of_region=prices)
        return estimated_tasks(
            self.prediction.graph,
            estimates,
            host_bandwidth_bytes_per_s=host_bandwidth(self.prediction.options.estimate),
        )

    def _of_tasks_s(self, tasks: TaskGraph) -> float:
        if self.retimed_s is None:
            return computation_alone(tasks).step_time_s
        return self.retimed_s(tasks)

    def _on_links(self, name: str, system: System) -> Change:
        tasks = self.prediction.tasks if self.rows is None else self.rows.chains.graph
        return self._row(name, self._simulated_s(tasks, system, self.prediction.options.network))

    def _simulated_s(self, tasks: TaskGraph, system: System, network: NetworkOptions) -> float:
        return step_times_s(tasks, system, model_of(network, system))(tasks)

    def _row(self, name: str, step_time_s: float) -> Change:
        return _change(name, step_time_s, self.prediction.step_time_s)


@frozen
class _Stages:
    """The recorded stages of a pipeline, changed all alike."""

    prediction: Prediction
    system: System
    steps: tuple[_Step, ...]

    def changes(self, rates: Mapping[str, Rates]) -> Iterator[Change]:
        """Yield the step with faster devices, links and hosts."""
        for priced in zip(*[step.prices(rates) for step in self.steps], strict=True):
            prices = [after for _, after in priced]
            yield self._row(priced[0][0], self._tasks(prices))
        at_boost = [step.at_boost() for step in self.steps]
        if any(prices is not None for prices in at_boost):
            yield self._row(AT_BOOST, self._tasks(at_boost))
        tasks = self._tasks([None] * len(self.steps))
        yield self._on_links(LINKS_DOUBLED, LinkFactors(bandwidth=2.0))
        if any(step.prediction.host_transfer_s for step in self.steps):
            yield self._row(HOST_LINK_DOUBLED, [_retimed(one, _halved_transfer) for one in tasks])
        yield self._row(HOST_LAUNCHES_FREE, [_retimed(one, _free_launch) for one in tasks])

    def more_network(self) -> Iterator[Change]:
        """Yield the step with other links."""
        for name, factors in _MORE_LINKS.items():
            yield self._on_links(name, factors)

    def _on_links(self, name: str, factors: LinkFactors) -> Change:
        tasks = self._tasks([None] * len(self.steps))
        return self._row(name, tasks, with_links(self.system, factors))

    def _tasks(self, prices: Sequence[Prices | None]) -> list[TaskGraph]:
        """Return each stage's tasks, at prices of its own or as they are."""
        return [
            step.prediction.tasks if own is None else step.tasks(own)
            for step, own in zip(self.steps, prices, strict=True)
        ]

    def _row(self, name: str, tasks: Sequence[TaskGraph], system: System | None = None) -> Change:
        on = self.system if system is None else system
        job = job_of_stages(self.prediction.stages, tasks, self.system.device_count)
        choice = model_of(self.prediction.options.network, on)
        return _change(name, step_times_s(job, on, choice)(job), self.prediction.step_time_s)


def _stages(prediction: Prediction) -> _Stages | None:
    system = prediction.system
    if system is None or not prediction.stages:
        return None
    steps = [
        _Step(prediction=stage.prediction, rows=None, retimed_s=None) for stage in prediction.stages
    ]
    return _Stages(prediction=prediction, system=system, steps=tuple(steps))


def _change(name: str, step_time_s: float, before_s: float) -> Change:
    gain = 1 - step_time_s / before_s if before_s > 0 else 0.0
    return Change(change=name, step_time_s=step_time_s, gain=gain)


def _total(prices: Prices) -> Estimate:
    return sum_estimates(price for price in prices if price is not None)


def _step(prediction: Prediction) -> _Step:
    is_row = (
        prediction.system is not None
        and prediction.graph.program.is_scheduled
        and not prediction.graph.program.is_recorded
        and prediction.options.network.imperfect is None
    )
    rows = rows_of(prediction) if is_row else None
    return _Step(prediction=prediction, rows=rows, retimed_s=_retimed_s(prediction, rows))


def _retimed_s(prediction: Prediction, rows: Rows | None) -> Callable[[TaskGraph], float] | None:
    system = prediction.system
    if system is None:
        return None
    first = prediction.tasks if rows is None else rows.chains.graph
    choice = model_of(prediction.options.network, system)

    @cache
    def times_s() -> Callable[[TaskGraph], float]:
        return step_times_s(first, system, choice)

    def step_time_s(tasks: TaskGraph) -> float:
        return times_s()(tasks)

    return step_time_s


def _retimed(graph: TaskGraph, change: Callable[[Task], Task]) -> TaskGraph:
    return replace(graph, tasks=tuple([change(task) for task in graph.tasks]))


def _halved_transfer(task: Task) -> Task:
    if not isinstance(task, MemoryTask) or task.duration_ps is None:
        return task
    return replace(task, duration_ps=task.duration_ps // 2)


def _free_launch(task: Task) -> Task:
    is_launch = isinstance(task, ComputeTask) and is_host_launch(task)
    return replace(task, duration_ps=0) if is_launch else task
