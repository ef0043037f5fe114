"""Refuse options that contradict each other or have no effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path

from hespas.base.fields import changed, refuse_unused
from hespas.base.suggest import suggestion
from hespas.base.units import format_quantity
from hespas.errors import ConfigError, CostError, DeviceCountError, option
from hespas.frontend.load import check_source
from hespas.frontend.overrides import Loaded
from hespas.hardware.device import Device
from hespas.hardware.presets import part_warnings, presets_that_fit
from hespas.hardware.system import System, interconnect_of
from hespas.models.model import PIPE
from hespas.prediction.goodput import failure_interval
from hespas.prediction.machines import (
    check_caches,
    device_of,
    estimator_of,
    model_of,
    no_device,
    node_of,
    spec_of,
    system_of,
    with_node,
)
from hespas.prediction.options import (
    BRANCHES,
    COMPILED,
    LOOPS,
    OPEN_FLOPS,
    PEAK_RATES,
    POWER,
    RECORDED,
    SCHEDULE,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    PredictOptions,
)
from hespas.prediction.workload import source_of
from hespas.price.cache import MemoryStore
from hespas.price.estimate import Estimate, sum_estimates
from hespas.price.graph import Clocked, estimate_graph
from hespas.price.methods import DeviceUse, method_named
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Program, all_ops
from hespas.program.work import CustomCallCost
from hespas.simulate.models import check_choice
from hespas.sources.source import FileSource, ModelSource
from hespas.split.modules import RegionModules
from hespas.split.regions import RegionGraph
from hespas.tasks.graph import CollectiveTask, GroupTable, SendTask, TaskGraph
from hespas.tasks.pipelining.options import STAGES, Overlap, check_overlap
from hespas.tasks.pipelining.schedule import Pass, Schedule
from hespas.work.custom_call import custom_call


def checked(options: PredictOptions, *, needs_program: bool = True) -> PredictOptions:
    """Load the options' system, and derive the node.

    Whatever can be refused without a program is refused here, before anything that takes time:
    raises what loading a system, a device and an estimation method raise, `ConfigError` for options
    that contradict each other, `DeviceCountError` for a mesh of another size than the system's, and
    `ProgramError` for a file that isn't there.
    """
    _check_stages(options)
    system = system_of(options.network)
    options = replace(
        options,
        network=replace(options.network, system=system, cluster=None),
        estimate=with_node(options.estimate, system),
    )
    if system is None:
        model_of(options.network, system)
    else:
        check_choice(system, model_of(options.network, system))
        _check_devices(options.program.devices, system)
    part_warnings(node_of(options.estimate), system)
    if options.long_run.goodput:
        node = node_of(options.estimate)
        device_label = node.name if isinstance(node, Device) else Path(node).name if node else ""
        failure_interval(options.long_run, device_label)
    _check_method(options)
    device = device_of(options.estimate)
    absent = {PEAK_RATES: device is None, POWER: device is None or device.tdp_w is None}
    refuse_unused(options, absent, location="" if device is None else device.name)
    check_caches(options.estimate)
    if needs_program:
        source = source_of(options)
        if isinstance(source, FileSource):
            check_source(source.path)
        if isinstance(source, ModelSource):
            check_experts(source, options)
            if options.long_run.goodput:
                _check_trains(source)
            refuse_unused(options.step, {OPEN_FLOPS: source.name})
            if options.program.model.part is None:
                refuse_unused(options.estimate, {RECORDED: True}, location=source.name)
            from hespas.prediction.served import as_served  # noqa: PLC0415 - of use to models alone

            return as_served(options, source)
    return options


def _check_trains(source: ModelSource) -> None:
    """Refuse a long run of steps that train nothing."""
    from hespas.models.language import LanguageModel  # noqa: PLC0415 - of use to models alone
    from hespas.models.runs import Training  # noqa: PLC0415 - as above

    settings = source.settings
    if isinstance(settings, LanguageModel) and not isinstance(settings.run, Training):
        raise ConfigError(
            f"{option('goodput')} has no effect on {source.name}: checkpoints are of training",
            hint="drop it; hespas serve predicts what a served model does over time",
        )


def _check_stages(options: PredictOptions) -> None:
    """Refuse options of stages for a mesh without any."""
    for name in options.pipeline.overlap:
        check_overlap(name, name)
    mesh, part = options.program.model.mesh, options.program.model.part
    if part is not None or options.is_pipeline:
        return
    # Shared experts are beside all-to-alls with and without stages.
    overlap = {
        name: is_on
        for name, is_on in options.pipeline.overlap.items()
        if name != Overlap.EXPERTS.value
    }
    pipeline = replace(options.pipeline, overlap=overlap)
    is_one = mesh is not None and PIPE in mesh.names
    if is_one and changed(pipeline) == ("schedule",) and pipeline.schedule_is_named:
        return
    refuse_unused(pipeline, {STAGES: "with one stage" if is_one else "without stages"})


def check_exchanges(source: ModelSource, schedule: Schedule, options: PredictOptions) -> None:
    """Refuse to hide all-to-alls under a missing or late micro-batch.

    With one chunk a stage, the next forward pass of the stage before ends when the backward pass of
    the stage behind does: it has not arrived when a backward pass starts. One stage alone has it at
    hand. Source: NVIDIA, Megatron-Core, ``combined_1f1b_schedule_for_no_pipelining``.
    """
    if not options.pipeline.hides(Overlap.EXCHANGES):
        return
    stated = f"{option('overlap')} {Overlap.EXCHANGES.value}=on has no effect"
    _check_all_to_alls(source, stated)
    alone = schedule.stages == 1 and any(
        (action.kind, behind.kind) == (Pass.BACKWARD, Pass.FORWARD)
        for action, behind in pairwise(schedule.order[0])
    )
    if schedule.chunks == 1 and not alone and options.pipeline.schedule_is_named:
        raise ConfigError(
            f"{stated} with {schedule.name}: no forward pass is ready when a backward pass starts",
            hint=f"give {option('schedule')} several chunks, as in interleaved:2",
        )


def _check_all_to_alls(source: ModelSource, stated: str) -> None:
    from hespas.models.language import expert_axes  # noqa: PLC0415 - of use to models alone

    if source.mesh.size(*expert_axes(source.settings)) < 2:
        raise ConfigError(
            f"{stated}: {source.name} has no all-to-alls without an axis expert",
            hint=f"give {option('mesh')} an axis expert, as in expert=8",
        )


def check_experts(source: ModelSource, options: PredictOptions) -> None:
    """Refuse overlap with experts that a model lacks."""
    if not options.pipeline.hides(Overlap.EXPERTS):
        return
    from hespas.models.language import has_shared_experts  # noqa: PLC0415 - of use to models alone

    stated = f"{option('overlap')} {Overlap.EXPERTS.value}=on has no effect"
    if not has_shared_experts(source.settings):
        raise ConfigError(f"{stated}: {source.name} has no shared experts", hint="drop it")
    _check_all_to_alls(source, stated)
    if options.compile.requested is Fidelity.EXPORTED:
        raise ConfigError(
            f"{stated} with {options.compile.words}: operations that do not wait for each other "
            "overlap anyway",
            hint="drop one of them",
        )


def _check_devices(devices: int | None, system: System) -> None:
    if devices is not None and devices != system.device_count:
        raise DeviceCountError(
            f"{devices} devices are asked for, but the system has {system.device_count}",
            location=system.name,
            hint=f"drop {option('devices')}",
        )


def _check_method(options: PredictOptions) -> None:
    """Refuse unknown devices, unknown methods and unused options."""
    estimate = options.estimate
    if estimate.method is None:
        device_of(estimate)
        return
    method = method_named(estimate.method)
    refuse_unused(options, method.absent)
    device = device_of(estimate)
    if device is None and method.device_use is DeviceUse.NEEDED:
        raise no_device(estimate)
    method.estimator(spec_of(options, device, None))


def check_priced(options: PredictOptions) -> None:
    """Refuse to price a program without a needed device."""
    method = options.estimate.method
    needed = method is None or method_named(method).device_use is DeviceUse.NEEDED
    if needed and device_of(options.estimate) is None:
        raise no_device(options.estimate)


def check_is_alone(options: PredictOptions) -> None:
    """Refuse a model on several devices without a system."""
    source = source_of(options)
    is_alone = system_of(options.network) is None
    if is_alone and isinstance(source, ModelSource) and source.mesh.device_count > 1:
        raise no_system(source.mesh.device_count, f"{source.name} on the mesh {source.mesh}")


def no_system(needed: int, location: str) -> ConfigError:
    """Return the error for a missing system, with remedies."""
    presets = ", ".join(presets_that_fit(needed)) or f"no preset has {needed} devices"
    return ConfigError(
        f"the program communicates among {needed} devices, but no system is given",
        location=location,
        hint=f"give {option('cluster')} {needed}xPART, or {option('system')} ({presets}), or price "
        "its computation alone with hespas estimate",
    )


def check_effects(loaded: Loaded, options: PredictOptions) -> None:
    """Refuse options about what the program doesn't have."""
    program, used = loaded.program, loaded.used
    trip_counts, branch_weights = options.program.trip_counts, options.program.branch_weights
    absent = {
        LOOPS: "" in trip_counts and "" not in used.trip_counts,
        BRANCHES: "" in branch_weights and "" not in used.branch_weights,
        SCHEDULE: not program.is_scheduled,
        RECORDED: not program.is_recorded and not _is_launched_part(options),
        COMPILED: not program.is_scheduled,
    }
    refuse_unused(options, absent, location=program.source)
    stated = options.estimate.custom_calls
    called = {op.attrs.target for op in all_ops(program) if isinstance(op.attrs, CustomCallAttrs)}
    for target in stated.keys() - called:
        raise ConfigError(
            f"{option('custom_call')} names {target!r}, which the program doesn't call",
            location=program.source,
            hint=suggestion(target, called) if called else "drop it",
        )


def _is_launched_part(options: PredictOptions) -> bool:
    if options.program.model.part is None:
        return False
    from hespas.prediction.launches import launches_each  # noqa: PLC0415 - of use to parts alone

    return launches_each(options)


def check_custom_calls(program: Program, stated: Mapping[str, CustomCallCost]) -> None:
    """Refuse custom calls of unknown work, naming the option."""
    for op in all_ops(program):
        if not isinstance(op.attrs, CustomCallAttrs):
            continue
        try:
            custom_call(op, stated)
        except CostError as error:
            target = op.attrs.target
            hint = (
                f"give {option('custom_call')} {target}=traffic to charge its operands and "
                f"results, or {target}=flops:N,type:T,bytes:N"
            )
            raise CostError(error.marked_message, location=error.location, hint=hint) from error


def dimensions_sent_along(system: System, tasks: TaskGraph) -> tuple[int, ...]:
    """Return the dimensions of a network that messages cross."""
    all_devices = (tuple(range(tasks.device_count)),)
    tables: set[GroupTable] = set()
    for task in tasks.tasks:
        if isinstance(task, SendTask):
            tables.add(task.pairs)
        if isinstance(task, CollectiveTask):
            number = task.group_table
            tables.add(all_devices if number is None else tasks.group_tables[number])
    sizes = [dimension.size for dimension in interconnect_of(system).dimensions]

    def is_crossed(stride: int, size: int) -> bool:
        return any(
            member // stride % size != group[0] // stride % size
            for table in tables
            for group in table
            for member in group
        )

    return tuple(
        number for number, size in enumerate(sizes) if is_crossed(prod(sizes[:number]), size)
    )


def check_changed_links(options: NetworkOptions, system: System, tasks: TaskGraph) -> None:
    """Refuse changed links along which nothing is sent."""
    if not options.link_bandwidth:
        return
    used = dimensions_sent_along(system, tasks)
    for change in options.link_bandwidth:
        if change.dimension not in used:
            raise ConfigError(
                f"{option('link_bandwidth')} {change} has no effect: the program sends nothing "
                f"along dimension {change.dimension} of {system.name}",
                hint="drop it",
            )


Divided = Sequence[tuple[RegionGraph, RegionModules]]
"""The programs of a step, with their distinct regions."""

_SLOWER = 1e-6
"""The part of a rate with which whatever depends on it takes longer."""


def check_rates(programs: Divided, options: PredictOptions) -> None:
    """Raise `ConfigError` for given rates that decide no price.

    A rate decides a price of a program if a far smaller rate changes it.
    """
    changed = _slowed(options.estimate)
    if not changed:
        return
    before = _prices(programs, options)
    times = [price.duration_ps for price in before]
    for name, slower in changed.items():
        after = _prices(programs, replace(options, estimate=slower))
        if [price.duration_ps for price in after] == times:
            raise _no_effect(name, sum_estimates(before), options, programs[0][0])


def _slowed(estimate: EstimateOptions) -> dict[str, EstimateOptions]:
    """Return the options with each given rate slowed, by its name.

    A device without a node has no other peak than the one that is given.
    """
    slowed: dict[str, EstimateOptions] = {}
    if estimate.peak_flops is not None and node_of(estimate) is not None:
        slowed["peak_flops"] = replace(estimate, peak_flops=estimate.peak_flops * _SLOWER)
    if estimate.per_datatype_flops:
        rates = {name: rate * _SLOWER for name, rate in estimate.per_datatype_flops.items()}
        slowed["per_datatype_flops"] = replace(estimate, per_datatype_flops=rates)
    return slowed


def _prices(programs: Divided, options: PredictOptions) -> list[Estimate]:
    """Return the prices of distinct regions at the boost clock."""
    prices: list[Estimate] = []
    for graph, modules in programs:
        estimator = estimator_of(graph.program, options)
        if isinstance(estimator, Clocked) and estimator.device.power is not None:
            estimator = estimator.at_clock(1.0)
        priced = estimate_graph(graph, modules, estimator, store=MemoryStore())
        prices.extend(module.estimate for module in priced.modules)
    return prices


def _no_effect(
    name: str, total: Estimate, options: PredictOptions, graph: RegionGraph
) -> ConfigError:
    device, main, hint = device_of(options.estimate), total.total.main_type, "drop it"
    if device is not None and main:
        served = device.served_by(main) or main
        rate = format_quantity(device.rate(main), "FLOP/s").replace(" ", "")
        hint += (
            f", or change the rate of most of its arithmetic: {option('per_datatype_flops')} "
            f"{served}=RATE ({rate} now)"
        )
    method = estimator_of(graph.program, options).method
    return ConfigError(
        f"{option(name)} has no effect: no time that method {method} predicts depends on it",
        location=graph.program.source,
        hint=hint,
    )
