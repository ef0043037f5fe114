"""Compose the stages, from options to a prediction."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from time import perf_counter

from hespas.base.fields import refuse_unused
from hespas.base.frozen import frozen
from hespas.base.progress import Stage, stage
from hespas.errors import ConfigError, UnsupportedError, option
from hespas.hardware.presets import part_warnings
from hespas.hardware.system import System
from hespas.prediction.checks import (
    check_changed_links,
    check_custom_calls,
    check_is_alone,
    check_priced,
    check_rates,
    checked,
    no_system,
)
from hespas.prediction.loading import load, with_experts, with_origin_noted
from hespas.prediction.machines import (
    device_name,
    device_of_memory,
    estimator_of,
    host_bandwidth,
    model_of,
    node_of,
    prices_of,
    store_of,
    system_of,
)
from hespas.prediction.options import (
    AS_GIVEN,
    HOST_LINK,
    PRICED_WHOLE,
    SCHEDULE,
    Clocks,
    Fidelity,
    NetworkOptions,
    PredictOptions,
)
from hespas.prediction.result import Prediction, computation_alone
from hespas.prediction.workload import mesh_of, work_of
from hespas.price.cache import MemoryStore, Store
from hespas.price.driver import Estimator, OperationMethod, Step, priced_steps
from hespas.price.graph import GraphEstimate, at_sustained_clock, estimate_graph
from hespas.price.roofline import Scalable
from hespas.program.devices import communication_ops, with_device_count
from hespas.program.program import Program, Recorded
from hespas.simulate.models import simulate_job
from hespas.simulate.rounds import Repeat, expanded, extended, joined_graph
from hespas.simulate.timeline import Timeline
from hespas.split.flatten import unrolled_size
from hespas.split.modules import RegionModules, region_modules
from hespas.split.regions import Compute, LoopRound, RegionGraph
from hespas.split.strategies import split_program
from hespas.tasks.build import check_host_link, estimated_tasks, regions_of_tasks
from hespas.tasks.graph import TaskGraph
from hespas.tasks.pipelining.options import Overlap

log = logging.getLogger("hespas")


@frozen
class Prepared:
    """A divided program and its system, to predict on.

    ``modules`` are its distinct regions. ``system`` is None where none is given.
    """

    graph: RegionGraph
    modules: RegionModules
    system: System | None = None


def predict(
    options: PredictOptions, *, program: Program | None = None, source: bytes | None = None
) -> Prediction:
    """Predict one step of a program.

    The program is read from its file, unless it is given, as a ``program`` or as the ``source``
    that the file would hold. Raises `hespas.errors.HespasError` as the stages do.
    """
    prepared = prepare(options, program=program, source=source)
    options = checked(options, needs_program=program is None and source is None)
    return _priced(prepared, options, store_of(options.estimate))


def prepare(
    options: PredictOptions, *, program: Program | None = None, source: bytes | None = None
) -> Prepared:
    """Load a program, settle its devices, and split it.

    Options that can be refused without the program are refused before it is read.
    """
    options = checked(options, needs_program=program is None and source is None)
    system, settled = load_settled(options, program=program, source=source)
    return divide_whole(settled, options, system)


def divide_whole(program: Program, options: PredictOptions, system: System | None) -> Prepared:
    """Divide a settled program with every round of its loops.

    Raises `HardwareError` where it moves data over a link to the host of unknown bandwidth.
    """
    prepared = divide(program, options, system=system)
    check_host_link(prepared.graph, host_bandwidth(options.estimate))
    return prepared


def load_settled(
    options: PredictOptions, *, program: Program | None = None, source: bytes | None = None
) -> tuple[System | None, Program]:
    """Return the system, and the program on its devices."""
    system = system_of(options.network)
    if program is None:
        check_priced(options)
        check_is_alone(options)
        program = load(options, source=source)
    program = with_experts(with_origin_noted(program, options), options)
    return system, settle(program, devices=options.program.devices, system=system)


def prepare_alone(options: PredictOptions) -> Prepared:
    """Load and divide a program without a system.

    Raises `ConfigError` where another fidelity is asked for.
    """
    if options.compile.requested not in {None, Fidelity.AUTO}:
        location = str(options.estimate.configuration or "")
        refuse_unused(options.compile, {PRICED_WHOLE: True}, location=location)
    program = load_alone(replace(options, compile=AS_GIVEN))
    if program.recorded is not None and program.recorded.stages:
        raise UnsupportedError(
            "recorded stages of a pipeline are several programs, and one is asked for",
            location=program.source,
            hint="predict them with hespas run",
        )
    return divide(program, options)


def load_alone(options: PredictOptions) -> Program:
    """Load a program without a system, even if it communicates.

    A system that is given says how many devices there are.
    """
    options = checked(options)
    system = system_of(options.network)
    program = with_experts(with_origin_noted(load(options), options), options)
    count = None if system is None else system.device_count
    return with_device_count(program, requested=options.program.devices, system=count)


def divide(
    program: Program,
    options: PredictOptions,
    *,
    system: System | None = None,
    most_rounds: int | None = None,
) -> Prepared:
    """Cut a settled program into regions; find the distinct ones.

    Loops of a scheduled program have ``most_rounds`` where that is given.
    """
    if options.pipeline.hides(Overlap.EXPERTS):
        program = _with_experts_beside(program, options)
    graph = split_program(program, options.split, most_rounds=most_rounds)
    if options.program.model.part is None:
        absent = {HOST_LINK: not graph.host_transfers}
        refuse_unused(options, absent, location=program.source)
    modules = region_modules(graph)
    log.info("%d regions, %d distinct", len(graph.regions), len(modules.modules))
    return Prepared(graph=graph, modules=modules, system=system)


def _with_experts_beside(program: Program, options: PredictOptions) -> Program:
    """Run a program's shared experts beside all-to-alls.

    Raises `ConfigError` for a program without them; a part of a model may have none.
    """
    if not program.is_scheduled:
        raise ConfigError(
            f"{option('overlap')} has no effect{SCHEDULE.lack}",
            location=program.source,
            hint=SCHEDULE.remedy,
        )
    # Modelled fusion, which few programs need.
    from hespas.lower.beside import with_experts_beside  # noqa: PLC0415

    overlapped = with_experts_beside(program)
    if overlapped is program and options.program.model.part is None:
        raise ConfigError(
            f"{option('overlap')} {Overlap.EXPERTS.value}=on has no effect: no module of the "
            "program has both shared experts and all-to-alls",
            location=program.source,
            hint="drop it",
        )
    return overlapped


def settle(program: Program, *, devices: int | None, system: System | None) -> Program:
    """Return the program for the devices that it runs on.

    Raises `DeviceCountError` if counts disagree, and `ConfigError`, naming presets that fit, for a
    program that communicates if no system is given.
    """
    count = None if system is None else system.device_count
    settled = with_device_count(program, requested=devices, system=count)
    needed = settled.declared_devices or 1
    if system is not None or needed == 1 or not any(True for _ in communication_ops(settled)):
        return settled
    raise no_system(needed, program.source)


def price(
    prepared: Prepared,
    options: PredictOptions,
    *,
    store: Store | None,
    estimator: Estimator | None = None,
) -> GraphEstimate:
    """Price every region.

    ``store`` holds prices between calls; without one each region is priced by itself. The
    ``estimator`` is made from the options unless it is given.
    """
    program = prepared.graph.program
    check_custom_calls(program, options.estimate.custom_calls)
    start_s = perf_counter()
    chosen = estimator or estimator_of(program, options)
    distinct, regions = len(prepared.modules.modules), len(prepared.graph.compute_regions)
    counts = f"{regions} regions, {distinct} of them distinct"
    if isinstance(store, MemoryStore) and program.is_scheduled and isinstance(chosen, Scalable):
        store = prices_of(options.estimate, prepared.modules) or store
    with stage(Stage.ESTIMATE, counts, kind=chosen.method, size=distinct, total=regions) as advance:
        estimated = partial(
            estimate_graph,
            prepared.graph,
            prepared.modules,
            store=store,
            threads=options.estimate.threads,
        )
        first = partial(estimated, progress=advance)
        sustained = options.estimate.power.clocks is Clocks.SUSTAINED
        result = at_sustained_clock(chosen, first, estimated) if sustained else first(chosen)
    is_stage = program.recorded is not None and program.recorded.stages
    if estimator is None and options.program.model.part is None and not is_stage:
        check_rates([(prepared.graph, prepared.modules)], options)
    saved = 100 * result.reuse.time_reduction
    log.info("estimated in %.3f s; reuse saved %.1f %%", perf_counter() - start_s, saved)
    return result


def _steps_when_needed(
    prepared: Prepared, options: PredictOptions, estimator: Estimator | None
) -> Callable[[Compute], tuple[Step, ...] | None]:
    """Return a function that prices a region's operations.

    The ``estimator`` is what priced them; by default it is made from the options, when the first
    region is asked for. None for a method that prices regions as a whole.
    """
    program, custom_calls = prepared.graph.program, options.estimate.custom_calls

    @cache
    def method() -> Estimator:
        return estimator or estimator_of(program, options)

    def steps(region: Compute) -> tuple[Step, ...] | None:
        own = method()
        if not isinstance(own, OperationMethod):
            return None
        return priced_steps(own, region, program, custom_calls=custom_calls)

    return steps


def simulate(prepared: Prepared, tasks: TaskGraph, options: NetworkOptions) -> Timeline | None:
    """Return the timeline of each class of devices.

    None without a system, unless data moves to and from the host, or the host launches each kernel.
    Kernels of a compiled program that no device interrupts are simulated as one task.
    """
    if prepared.system is None:
        needs_time = prepared.graph.host_transfers or prepared.graph.program.is_recorded
        return computation_alone(tasks) if needs_time else None
    choice = model_of(options, prepared.system)
    name = prepared.system.name
    kind = f"{name}, {choice.model.value}"
    with stage(Stage.SIMULATE, f"on {name}", kind=kind, size=len(tasks.tasks)):
        program = prepared.graph.program
        has_rows = program.is_scheduled and not program.is_recorded
        if not has_rows or choice.cluster is not None:
            return simulate_job(tasks, prepared.system, choice)
        rows = joined_graph(tasks)
        return expanded(simulate_job(rows.graph, prepared.system, choice), rows)


def finish(
    prepared: Prepared,
    estimates: GraphEstimate,
    options: PredictOptions,
    *,
    change: Callable[[TaskGraph], TaskGraph] = lambda tasks: tasks,
) -> Prediction:
    """Simulate the priced program, and return its prediction.

    ``change`` takes tasks away that another program of a pipeline runs.
    """
    tasks = change(tasks_of(prepared, estimates, options))
    recorded = prepared.graph.program.recorded
    if recorded is not None and recorded.stages:
        first = unsimulated(prepared, estimates, tasks, options)
        return _predict_stages(first, recorded, options)
    if prepared.system is not None:
        check_changed_links(options.network, prepared.system, tasks)
    timeline = simulate(prepared, tasks, options.network)
    return replace(unsimulated(prepared, estimates, tasks, options), timeline=timeline)


def _predict_stages(first: Prediction, recorded: Recorded, options: PredictOptions) -> Prediction:
    """Price the other stages of a recorded pipeline, and simulate all."""
    # Few programs are several.
    from hespas.prediction.recorded_stages import with_stages  # noqa: PLC0415

    others: list[Prediction] = []
    divided = [(first.graph, first.modules)]
    for program in recorded.stages:
        settled = settle(program, devices=options.program.devices, system=first.system)
        prepared = divide_whole(settled, options, first.system)
        estimates = price(prepared, options, store=store_of(options.estimate))
        tasks = tasks_of(prepared, estimates, options)
        others.append(unsimulated(prepared, estimates, tasks, options))
        divided.append((prepared.graph, prepared.modules))
    check_rates(divided, options)
    return with_stages(first, others, options)


def tasks_of(prepared: Prepared, estimates: GraphEstimate, options: PredictOptions) -> TaskGraph:
    """Return the tasks of a priced program."""
    return estimated_tasks(
        prepared.graph,
        estimates,
        host_bandwidth_bytes_per_s=host_bandwidth(options.estimate),
    )


def unsimulated(
    prepared: Prepared, estimates: GraphEstimate, tasks: TaskGraph, options: PredictOptions
) -> Prediction:
    """Return a priced program's prediction without its timeline."""
    # Of no use to single stages.
    from hespas.memory.usage import memory_use  # noqa: PLC0415

    return Prediction(
        graph=prepared.graph,
        estimates=estimates,
        tasks=tasks,
        system=prepared.system,
        timeline=None,
        memory=memory_use(prepared.graph.program),
        options=options,
        modules=prepared.modules,
        steps=_steps_when_needed(prepared, options, estimates.estimator),
        mesh=mesh_of(prepared.graph.program, options),
        work=work_of(prepared.graph.program, options),
        device=device_of_memory(options.estimate),
        device_name=device_name(options.estimate),
        part_warnings=part_warnings(node_of(options.estimate), prepared.system),
    )


_FEW = 4
"""Rounds of each loop that are simulated; the third is held against the second."""


def predict_folded(options: PredictOptions, *, whole_up_to: int = 0) -> Prediction:
    """Predict one step with few rounds of its loops.

    The step's figures are those of `predict`; ``timeline``, ``tasks`` and ``graph`` have those
    rounds of each loop. Takes a fraction of the time and memory for programs with long loops.
    Programs of at most ``whole_up_to`` operations, loops unrolled, are simulated whole.
    """
    options = checked(options)
    system, program = load_settled(options)
    store = store_of(options.estimate)
    # Only what is scheduled has rounds that stand for others.
    if not program.is_scheduled or (whole_up_to and unrolled_size(program) <= whole_up_to):
        return _priced(divide_whole(program, options, system), options, store)
    folded = divide(program, options, system=system, most_rounds=_FEW)
    is_whole = not folded.graph.is_folded
    if is_whole or not folded.graph.host_transfers:
        check_host_link(folded.graph, host_bandwidth(options.estimate))
        prediction = _priced(folded, options, store)
        if is_whole or prediction.timeline is None:
            return prediction
        unfolded = _extended(prediction.timeline, folded.graph, prediction.tasks)
        if unfolded is not None:
            return replace(prediction, timeline=unfolded)
    return _priced(divide_whole(program, options, system), options, store)


def _priced(prepared: Prepared, options: PredictOptions, store: Store | None) -> Prediction:
    return finish(prepared, price(prepared, options, store=store), options)


def _extended(timeline: Timeline, graph: RegionGraph, tasks: TaskGraph) -> Timeline | None:
    regions = {task: region.id for task, region in regions_of_tasks(graph, tasks).items()}
    counts = {task: graph.counts[region] for task, region in regions.items()}
    return extended(timeline, _repeats(graph, regions), counts)


def _repeats(graph: RegionGraph, regions: Mapping[int, int]) -> list[Repeat]:
    """Return the second and third round of each shortened loop."""
    ordered = sorted(regions)
    of_region = [regions[task] for task in ordered]

    def tasks(iteration: LoopRound) -> tuple[int, ...]:
        first, last = (
            bisect_left(of_region, iteration.first),
            bisect_right(of_region, iteration.last),
        )
        return tuple(ordered[first:last])

    repeats: list[Repeat] = []
    ended: dict[tuple[str, int, int], LoopRound] = {}
    for iteration in graph.rounds:
        ended[iteration.loop, iteration.number, iteration.last + 1] = iteration
        if iteration.number == _FEW and iteration.count > _FEW:
            third = ended[iteration.loop, _FEW - 1, iteration.first]
            second = ended[iteration.loop, _FEW - 2, third.first]
            count = iteration.count - _FEW + 1
            repeats.append(Repeat(before=tasks(second), again=tasks(third), count=count))
    return repeats
