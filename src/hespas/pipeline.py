"""The pipeline: the one composition of all stages, from a program's file to a prediction.

`predict` runs it whole: load the program, compile it where that is asked for, settle its devices,
divide it, price its regions, make the tasks of all devices, and simulate them. The stages can be
run one by one: `prepare` does what predictions of one program on one system share, `price` and
`finish` the rest, so that several methods, devices or network models reuse a divided program.

The command line, the Python API, ``validate`` and ``calibrate`` call these functions and no others,
so that the same `hespas.options.PredictOptions` give the same prediction from each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import msgspec

from hespas.config.estimators import NodeHardware, RooflineHardware
from hespas.config.suggest import suggestion
from hespas.cost.rules.custom_call import CustomCallCost, custom_call
from hespas.errors import (
    ConfigError,
    CostError,
    DeviceCountError,
    HespasError,
    ProgramError,
    ToolError,
    option,
)
from hespas.estimate.cache import DiskStore, MemoryStore, Store
from hespas.estimate.driver import Estimator, OperationMethod
from hespas.estimate.graph import GraphEstimate, estimate_graph
from hespas.estimate.methods import (
    DEFAULT,
    DeviceUse,
    EstimatorSpec,
    Method,
    default_method,
    method_named,
)
from hespas.estimate.roofline import RooflineOptions
from hespas.estimate.sequence import Step, priced_steps
from hespas.export.source import Batch, FileSource, ModelSource, Source, find_source
from hespas.export.workload import Workload, export_cache, model_key, read_workload
from hespas.fidelity import Plan, fallen_back, planned
from hespas.files import cache_home
from hespas.frontend.load import check_source, load_per_device, read_source
from hespas.frontend.loaded import Loaded
from hespas.frontend.overrides import LoadOptions
from hespas.hardware.device import Device
from hespas.hardware.parts import part_warnings
from hespas.hardware.presets import (
    device_names,
    load_device,
    load_hardware,
    presets_that_fit,
)
from hespas.hardware.sized import find_system
from hespas.hardware.system import System
from hespas.memory.usage import memory_use
from hespas.models.flops import model_flops
from hespas.options import AS_GIVEN, EstimateOptions, Fidelity, NetworkOptions, PredictOptions
from hespas.prediction import Prediction, StepWork
from hespas.program.attrs import CustomCallAttrs
from hespas.program.devices import communication_ops, with_device_count
from hespas.program.kernels import CompiledKernels, decode_kernels
from hespas.program.program import Program, all_ops, with_kernels
from hespas.program.types import TensorType
from hespas.schedule.build import estimated_tasks
from hespas.schedule.tasks import TaskGraph
from hespas.simulate.chains import chained, opened
from hespas.simulate.models import Model, ModelChoice, check_choice, default_model, simulate_job
from hespas.simulate.timeline import Timeline
from hespas.split.modules import RegionModules, region_modules
from hespas.split.regions import Compute, RegionGraph
from hespas.split.strategies import split_program
from hespas.stages import Stage, stage

log = logging.getLogger("hespas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A program, divided, with the system it runs on: what several predictions share.

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
    options = checked(options, needs_program=program is None and source is None)
    prepared = prepare(options, program=program, source=source)
    estimates = price(prepared, options, store=store_of(options.estimate))
    return finish(prepared, estimates, options)


def prepare(
    options: PredictOptions, *, program: Program | None = None, source: bytes | None = None
) -> Prepared:
    """Load a program, settle it on the devices of its system, and divide it.

    Options that can be refused without the program are refused before it is read.
    """
    options = checked(options, needs_program=program is None and source is None)
    system = system_of(options.network)
    if program is None:
        check_priced(options)
        _check_is_alone(options, system)
        program = load(options, source=source, system=system)
    program = _with_origin(program, options)
    settled = settle(program, devices=options.program.devices, system=system)
    return divide(settled, options, system=system)


def checked(options: PredictOptions, *, needs_program: bool = True) -> PredictOptions:
    """Return the options with the system loaded, and the node that follows from it.

    Whatever can be refused without a program is refused here, before anything that takes time:
    raises what loading a system, a device and an estimation method raise, `ConfigError` for options
    that contradict each other, `DeviceCountError` for a mesh of another size than the system's, and
    `ProgramError` for a file that isn't there.
    """
    system = system_of(options.network)
    options = replace(
        options,
        network=replace(options.network, system=system, cluster=None),
        estimate=_with_node(options.estimate, system),
    )
    if system is None:
        model_of(options.network, system)
    else:
        check_choice(system, model_of(options.network, system))
        _check_devices(options.program.devices, system)
    part_warnings(_node_of(options.estimate), system)
    _check_method(options)
    _check_caches(options.estimate)
    if needs_program:
        source = source_of(options, system)
        if isinstance(source, FileSource):
            check_source(source.path)
    return options


def _with_node(options: EstimateOptions, system: System | None) -> EstimateOptions:
    """Return the options with the node that a system preset is made of, where none is given."""
    named = (options.node, options.hardware, options.peak_flops, options.memory_bandwidth)
    if system is None or system.part is None or any(each is not None for each in named):
        return options
    if options.method is not None and method_named(options.method).device_use is DeviceUse.NONE:
        return options
    return replace(options, node=system.part)


def _check_devices(devices: int | None, system: System) -> None:
    if devices is not None and devices != system.device_count:
        raise DeviceCountError(
            f"{devices} devices are asked for, but the system has {system.device_count}",
            location=system.name,
            hint=f"drop {option('devices')}",
        )


def _check_method(options: PredictOptions) -> None:
    """Refuse a device or a method that is not there, or is given what it doesn't use."""
    estimate = options.estimate
    if estimate.method is None:
        device_of(estimate)
        return
    method = method_named(estimate.method)
    _check_device_options(estimate, method)
    device = device_of(estimate)
    if device is None and method.device_use is DeviceUse.NEEDED:
        raise _no_device(estimate)
    _check_method_options(method, options)
    method.estimator(_spec_of(options, device, None))


def _check_caches(options: EstimateOptions) -> None:
    directory = compiled_directory(options)
    if directory is not None:
        export_cache(directory).check()


def check_priced(options: PredictOptions) -> None:
    """Raise `ConfigError` where no device is given to price a program on, but one is needed."""
    named = options.estimate.method
    needed = named is None or method_named(named).device_use is DeviceUse.NEEDED
    if needed and device_of(options.estimate) is None:
        raise _no_device(options.estimate)


def source_of(options: PredictOptions, system: System | None) -> Source:
    """Return what the workload is; a model's mesh follows from the system where none is given.

    Raises `ConfigError` where nothing is named, and what `hespas.export.source.find_source` raises.
    """
    file = options.program.file
    if file is None:
        raise ConfigError(
            "no program is given",
            location=str(options.estimate.configuration or ""),
            hint=f"name a file or a model, or give {option('mlir_file')}",
        )
    devices = options.program.devices if system is None else system.device_count
    node = _node_of(options.estimate)
    target = node if isinstance(node, str) else None
    return find_source(str(file), options.program.model, devices=devices, target=target, loops=True)


def batch_of(options: PredictOptions) -> Batch | None:
    """Return what a step takes in, where the workload is a model of the zoo that has a batch."""
    if options.program.file is None:
        return None
    source = source_of(options, system_of(options.network))
    return source.batch if isinstance(source, ModelSource) else None


def mesh_of(options: PredictOptions) -> tuple[tuple[str, int], ...]:
    """Return the axes of the devices' mesh, major first; empty where they are not known."""
    source = _model_of(options)
    return () if source is None else source.mesh.axes


def _model_of(options: PredictOptions) -> ModelSource | None:
    if options.program.file is None:
        return None
    source = source_of(options, system_of(options.network))
    return source if isinstance(source, ModelSource) else None


def work_of(program: Program, options: PredictOptions) -> StepWork:
    """Return what a step takes in: what the options say, else what is known of the program.

    Of a program on one device it is known where its integers have one shape of two dimensions:
    sequences, and the tokens of each.
    """
    step, source = options.step, _model_of(options)
    if source is not None and source.batch is not None:
        batch = source.batch
        known = StepWork(
            tokens=batch.tokens,
            samples=batch.samples,
            what=batch.what,
            model_flops=model_flops(source.settings, batch.tokens),
        )
    else:
        known = _read_work(program)
    if step.tokens is None and step.samples is None:
        return known
    return replace(
        known,
        tokens=known.tokens if step.tokens is None else step.tokens,
        samples=known.samples if step.samples is None else step.samples,
        model_flops=known.model_flops if step.tokens in {None, known.tokens} else None,
    )


def _read_work(program: Program) -> StepWork:
    if (program.declared_devices or 1) > 1:
        return StepWork()
    types = [value.type for value in program.main.body.arguments]
    shapes = {
        each.shape
        for each in types
        if isinstance(each, TensorType)
        and len(each.shape) == 2
        and each.element.name in _TOKENS
        and min(each.shape) > 1
    }
    if len(shapes) != 1:
        return StepWork()
    sequences, length = shapes.pop()
    return StepWork(tokens=sequences * length, samples=sequences, what="sequences")


_TOKENS = ("i32", "ui32", "i64", "ui64", "si32", "si64")


def workload_digest(options: PredictOptions) -> str:
    """Return what tells workloads apart: of a file its content, of others what names them."""
    match source_of(options, system_of(options.network)):
        case FileSource(path=path):
            return sha256(read_source(path)).hexdigest()
        case ModelSource() as source:
            return model_key(source)
        case source:
            return sha256(source.name.encode()).hexdigest()


def _check_is_alone(options: PredictOptions, system: System | None) -> None:
    """Refuse a model on several devices without a system before it is exported."""
    source = source_of(options, system)
    if system is None and isinstance(source, ModelSource) and source.mesh.device_count > 1:
        raise _no_system(source.mesh.device_count, f"{source.name} on the mesh {source.mesh}")


def prepare_alone(options: PredictOptions) -> Prepared:
    """Load and divide a program as it is given, for work that needs no system.

    Raises `ConfigError` where another fidelity is asked for.
    """
    if options.compile.asked not in {None, Fidelity.AUTO}:
        raise ConfigError(
            f"{options.compile.words} has no effect: the program is taken as it is given",
            location=str(options.estimate.configuration or ""),
            hint="drop it, or compile the program first: hespas compile",
        )
    return divide(load_alone(replace(options, compile=AS_GIVEN)), options)


def load_alone(options: PredictOptions) -> Program:
    """Load a program for work that needs no system, even if it communicates.

    A system that is given says how many devices there are.
    """
    options = checked(options)
    system = system_of(options.network)
    program = _with_origin(load(options, system=system), options)
    count = None if system is None else system.device_count
    return with_device_count(program, requested=options.program.devices, system=count)


def divide(program: Program, options: PredictOptions, *, system: System | None = None) -> Prepared:
    """Cut a settled program into regions and find the distinct ones."""
    graph = split_program(program, options.split)
    modules = region_modules(graph)
    log.info("%d regions, %d distinct", len(graph.regions), len(modules.modules))
    return Prepared(graph=graph, modules=modules, system=system)


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
    raise _no_system(needed, program.source)


def _no_system(needed: int, location: str) -> ConfigError:
    presets = ", ".join(presets_that_fit(needed)) or f"no preset has {needed} devices"
    return ConfigError(
        f"the program communicates among {needed} devices, but no system is given",
        location=location,
        hint=f"give {option('cluster')} {needed}xPART, or {option('system')} ({presets}), or price "
        "its computation alone with hespas estimate",
    )


# Load.


def load(
    options: PredictOptions, *, source: bytes | None = None, system: System | None = None
) -> Program:
    """Read the program, with the fidelity that is asked for, or by default the best there is.

    ``source`` is what its file holds, where that was read before. The program's devices are not
    settled yet. Raises `ProgramError` for a file that can't be read or is no program,
    `ConfigError` for options that have no effect on it, and what
    `hespas.compile.compiler.compile_program` raises where compiling is asked for.
    """
    file, kernels_file = options.program.file, options.program.kernels
    if options.estimate.method is not None:
        _check_device_options(options.estimate, method_named(options.estimate.method))
    kernels = None if kernels_file is None else read_kernels(kernels_file)
    if source is None:
        named = source_of(options, system)
        if not isinstance(named, FileSource):
            _plan_of(_EXPORTED, options, system)
        directory = _made_directory(options.estimate)
        kept = None if directory is None else export_cache(directory)
        workload = read_workload(named, kept=kept)
    else:
        workload = Workload(name=str(file), content=source)
    content = workload.content
    plan = _plan_of(content, options, system)
    try:
        loaded = _loaded(content, plan, options, system)
    except HespasError as error:
        error.location = error.location or str(file)
        raise
    program = loaded.program
    if workload.notes:
        assumptions = (*workload.notes, *program.assumptions)
        program = msgspec.structs.replace(program, assumptions=assumptions)
    log.info("read %s", program.source)
    _check_effects(loaded, options)
    if kernels is None:
        return program
    if not program.is_scheduled:
        raise ConfigError(
            f"{option('kernels')} has no effect on a program that is not compiled",
            location=str(file),
            hint=f"give the compiled one, or {option('fidelity')} {Fidelity.COMPILED.value} in the "
            f"place of {option('kernels')}",
        )
    return with_kernels(program, kernels, location=str(kernels_file))


_EXPORTED = b"module {}"
"""What stands for a program that is yet to be exported: StableHLO."""


def _plan_of(content: bytes, options: PredictOptions, system: System | None) -> Plan:
    """Return what is done to a program; refuse a compilation that can't be before it begins."""
    plan = planned(content, options)
    if plan.fidelity is not Fidelity.COMPILED:
        return plan
    if options.program.kernels is not None:
        raise ConfigError(
            f"{option('kernels')} has no effect with {options.compile.words}",
            hint="drop one of them",
        )
    if not plan.may_fall_back:
        # Few programs have to be compiled: the others need not wait for what it takes.
        from hespas.compile.for_node import check_compilation  # noqa: PLC0415

        devices, chosen = options.program.devices, options.compile.options
        check_compilation(plan.node, system=system, devices=devices, options=chosen)
    return plan


def read_kernels(file: Path) -> CompiledKernels:
    """Return what ``hespas compile --kernels`` wrote; `ProgramError` for anything else."""
    try:
        return decode_kernels(file.read_bytes())
    except OSError as error:
        raise ProgramError(f"cannot be read: {error.strerror}", location=str(file)) from error
    except msgspec.DecodeError as error:
        raise ProgramError(
            f"holds no kernels: {error}",
            location=str(file),
            hint="give a file of hespas compile --kernels",
        ) from error


def _loaded(content: bytes, plan: Plan, options: PredictOptions, system: System | None) -> Loaded:
    """Return the program as planned; one that the compiler refuses falls back where it may."""
    if plan.fidelity is Fidelity.COMPILED:
        try:
            return _compiled(content, plan.node, options, system)
        except (ProgramError, ToolError, DeviceCountError) as error:
            if not plan.may_fall_back:
                raise
            plan = fallen_back(f"the compiler refuses it: {error.message}")
    loaded = _read(content, options)
    program = loaded.program
    if program.is_scheduled:
        if plan.fidelity is None:
            return loaded
        raise ConfigError(
            f"{options.compile.words} has no effect on a program that is compiled already",
            hint="drop it",
        )
    match options.compile.asked:
        case Fidelity.COMPILED:
            raise ProgramError(
                "is HLO that no compiler scheduled",
                hint="give its StableHLO, or what hespas compile makes of it",
            )
        case Fidelity.AUTO if plan.fidelity is None and options.program.kernels is None:
            plan = fallen_back("it is HLO that no compiler scheduled")
        case _:
            pass
    if plan.note:
        noted = (plan.note, *program.assumptions)
        program = msgspec.structs.replace(program, assumptions=noted)
    if plan.fidelity is Fidelity.FUSED:
        program = _fused(program, options)
    return replace(loaded, program=program)


def _fused(program: Program, options: PredictOptions) -> Program:
    # Where a compiler is, few programs are: the others need not wait for what it takes.
    from hespas.fuse.fused import fused  # noqa: PLC0415

    start_s = perf_counter()
    made = fused(program, options.compile.options)
    log.info("fused in %.3f s", perf_counter() - start_s)
    return made


def _read(content: bytes, options: PredictOptions) -> Loaded:
    overrides = LoadOptions(
        trip_counts=options.program.trip_counts, branch_weights=options.program.branch_weights
    )
    name, cache_dir = str(options.program.file), _made_directory(options.estimate)
    return load_per_device(content, name=name, options=overrides, cache_dir=cache_dir)


def _compiled(content: bytes, node: str, options: PredictOptions, system: System | None) -> Loaded:
    # Few programs are compiled first: the others need not wait for what it takes.
    from hespas.compile.cache import CompiledCache  # noqa: PLC0415
    from hespas.compile.for_node import compile_for_node  # noqa: PLC0415

    start_s = perf_counter()
    directory = compiled_directory(options.estimate)
    compiled = compile_for_node(
        content,
        name=str(options.program.file),
        node=node,
        system=system,
        devices=options.program.devices,
        options=options.compile.options,
        cache=None if directory is None else CompiledCache(directory=directory),
    )
    log.info("compiled for %s in %.3f s", compiled.target, perf_counter() - start_s)
    loaded = _read(compiled.hlo_proto, options)
    program = msgspec.structs.replace(
        loaded.program,
        assumptions=(*compiled.assumptions, *loaded.program.assumptions),
        kernels=compiled.kernels,
        compiler_versions=compiled.versions,
    )
    return replace(loaded, program=program)


def _made_directory(options: EstimateOptions) -> Path | None:
    """Return where exported and partitioned programs are cached."""
    if compiled_directory(options) is None:
        return None
    return options.cache_dir or cache_home() / "exported"


def compiled_directory(options: EstimateOptions) -> Path | None:
    """Return where compiled programs, and what is read of their kernels, are cached."""
    if options.disable_cache or options.in_memory_only_cache:
        return None
    from hespas.compile.cache import default_directory  # noqa: PLC0415 - as above

    return options.cache_dir or default_directory()


def _with_origin(program: Program, options: PredictOptions) -> Program:
    """Return the program, with a note where it was compiled for another part than the node."""
    node = options.estimate.node
    if program.fidelity != "compiled" or not isinstance(node, str | Path):
        return program
    # Few programs are compiled ones: the others need not wait for it.
    from hespas.compile.origin import with_origin  # noqa: PLC0415

    return with_origin(program, str(node))


def _check_effects(loaded: Loaded, options: PredictOptions) -> None:
    """Raise `ConfigError` for options about what the program doesn't have."""
    program = loaded.program
    if "" in options.program.trip_counts and "" not in loaded.used.trip_counts:
        raise _no_effect("trip_count", "no loop whose count can't be read", program)
    if "" in options.program.branch_weights and "" not in loaded.used.branch_weights:
        raise _no_effect("branch_weights", "no branch without weights of its own", program)
    if options.estimate.launch_overhead_s is not None and not program.is_scheduled:
        lack = f"no schedule of kernels: see {option('fidelity')}"
        raise _no_effect("launch_overhead", lack, program)
    stated = options.estimate.custom_calls
    called = {op.attrs.target for op in all_ops(program) if isinstance(op.attrs, CustomCallAttrs)}
    for target in stated.keys() - called:
        raise ConfigError(
            f"{option('custom_call')} names {target!r}, which the program doesn't call",
            location=program.source,
            hint=suggestion(target, called) if called else "drop it",
        )


def _no_effect(name: str, lack: str, program: Program) -> ConfigError:
    return ConfigError(
        f"{option(name)} has no effect: there is {lack}", location=program.source, hint="drop it"
    )


# Price.


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
    _check_custom_calls(program, options.estimate.custom_calls)
    start_s = perf_counter()
    chosen = estimator or estimator_of(program, options)
    distinct, regions = len(prepared.modules.modules), len(prepared.graph.compute_regions)
    what = f"{regions} regions, {distinct} of them distinct"
    with stage(Stage.ESTIMATE, what, kind=chosen.method, size=distinct, total=regions) as advance:
        result = estimate_graph(
            prepared.graph,
            prepared.modules,
            chosen,
            store=store,
            threads=options.estimate.threads,
            progress=advance,
        )
    saved = 100 * result.reuse.time_reduction
    log.info("estimated in %.3f s; reuse saved %.1f %%", perf_counter() - start_s, saved)
    return result


def store_of(options: EstimateOptions, *, beside: Path | None = None) -> Store | None:
    """Return where prices are cached: in memory, or on disk; None for nowhere.

    ``beside`` is the output directory, which holds the cache unless the options name another.
    """
    if options.disable_cache:
        return None
    if options.cache_dir is not None:
        return DiskStore(directory=options.cache_dir)
    if options.in_memory_only_cache or beside is None:
        return MemoryStore()
    return DiskStore(directory=beside / "cache")


def estimator_of(program: Program, options: PredictOptions) -> Estimator:
    """Return the estimator of a program; `ConfigError` for options that have no effect on it."""
    estimate = options.estimate
    device = device_of(estimate)
    method = _method_of(program, estimate, device)
    _check_device_options(estimate, method)
    _check_method_options(method, options)
    if device is None and method.device_use is DeviceUse.NEEDED:
        raise _no_device(estimate)
    return method.estimator(_spec_of(options, device, program.kernels))


def _check_method_options(method: Method, options: PredictOptions) -> None:
    if options.estimate.launch_overhead_s is not None and not method.adds_launches:
        raise ConfigError(
            f"{option('launch_overhead')} has no effect on method {method.name}",
            hint=f"drop it, or add {option('method')} roofline",
        )
    if options.program.kernels is not None and not method.reads_kernels:
        raise ConfigError(
            f"{option('kernels')} has no effect on method {method.name}", hint="drop it"
        )


def _spec_of(
    options: PredictOptions, device: Device | None, kernels: CompiledKernels | None
) -> EstimatorSpec:
    estimate = options.estimate
    return EstimatorSpec(
        device=device,
        hardware=estimate.hardware,
        roofline_options=_roofline_options(estimate),
        custom_calls=estimate.custom_calls,
        kernels=kernels,
        kernels_directory=None if kernels is None else compiled_directory(estimate),
    )


Steps = Callable[[Compute], tuple[Step, ...]]
"""Returns the operations of a region in order, with their prices."""


def steps_of(prepared: Prepared, options: PredictOptions) -> Steps | None:
    """Return what prices the operations of regions one by one, as their estimates add them up.

    None for a method that prices regions as a whole.
    """
    program = prepared.graph.program
    method = estimator_of(program, options)
    if not isinstance(method, OperationMethod):
        return None
    custom_calls = options.estimate.custom_calls
    return lambda region: priced_steps(method, region, program, custom_calls=custom_calls)


def _steps_when_needed(
    prepared: Prepared, options: PredictOptions
) -> Callable[[Compute], tuple[Step, ...] | None]:
    """Return `steps_of`, whose estimator is made when the first region is asked for."""

    @cache
    def made() -> Steps | None:
        return steps_of(prepared, options)

    def steps(region: Compute) -> tuple[Step, ...] | None:
        found = made()
        return None if found is None else found(region)

    return steps


def device_of(options: EstimateOptions) -> Device | None:
    """Return the device: the node before the configuration's, single rates before both.

    None where nothing names or describes one. Raises `ConfigError` for a device that is described
    in part.
    """
    device = _named_device(options)
    peak, bandwidth = options.peak_flops, options.memory_bandwidth
    rates, overhead_s = options.per_datatype_flops or {}, options.launch_overhead_s
    if device is not None:
        return replace(
            device,
            launch_overhead_s=device.launch_overhead_s if overhead_s is None else overhead_s,
            peak_flops=device.peak_flops if peak is None else peak,
            memory_bandwidth_bytes_per_s=(
                device.memory_bandwidth_bytes_per_s if bandwidth is None else bandwidth
            ),
            per_datatype_flops={**device.per_datatype_flops, **rates},
        )
    if peak is None and bandwidth is None and options.per_datatype_flops is None:
        return None
    if peak is None or bandwidth is None:
        raise _no_device(options)
    return Device(
        name="the device given by flags",
        peak_flops=peak,
        memory_bandwidth_bytes_per_s=bandwidth,
        per_datatype_flops=rates,
        launch_overhead_s=overhead_s,
    )


def _named_device(options: EstimateOptions) -> Device | None:
    node = _node_of(options)
    if isinstance(node, Device):
        return node
    return None if node is None else load_device(node)


def _node_of(options: EstimateOptions) -> Device | str | Path | None:
    """Return what names the device, before the configuration's; None where only rates are given."""
    match options.hardware:
        case _ if options.node is not None:
            return options.node
        case NodeHardware(node=node):
            return node
        case RooflineHardware():
            return options.configuration
        case _:
            return None


def _no_device(options: EstimateOptions) -> ConfigError:
    rates = {
        "peak_flops": options.peak_flops,
        "memory_bandwidth": options.memory_bandwidth,
    }
    missing = [option(name) for name, rate in rates.items() if rate is None]
    if len(missing) == len(rates):
        names = ", ".join(device_names()[:4])
        return ConfigError(
            "no device is given",
            hint=f"give {option('node')} ({names}, ...: see hespas hardware), or "
            f"{' and '.join(missing)}",
        )
    return ConfigError(
        f"the device is described in part: {missing[0]} is not given",
        hint=f"give {missing[0]} or {option('node')}",
    )


def _roofline_options(options: EstimateOptions) -> RooflineOptions:
    """Return what to do about types without a rate: as the device's file says."""
    if options.roofline is not None:
        return options.roofline
    hardware = options.hardware
    if isinstance(options.node, str | Path):
        hardware = load_hardware(options.node)
    if isinstance(options.node, Device) or not isinstance(hardware, RooflineHardware):
        return RooflineOptions()
    return RooflineOptions(
        error_on_unknown_type=bool(hardware.error_on_unknown_type),
        warn_on_unknown_type=bool(hardware.warn_on_unknown_type),
    )


def _method_of(program: Program, options: EstimateOptions, device: Device | None) -> Method:
    if options.method is not None:
        return method_named(options.method)
    return default_method(program, device)


def _check_device_options(options: EstimateOptions, method: Method) -> None:
    """Raise `ConfigError` for options that describe a device to a method that reads none."""
    given = {
        "node": options.node,
        "peak_flops": options.peak_flops,
        "memory_bandwidth": options.memory_bandwidth,
        "per_datatype_flops": options.per_datatype_flops,
    }
    for name, value in given.items():
        if value is not None:
            method.check_uses_device(name)


def _check_custom_calls(program: Program, stated: Mapping[str, CustomCallCost]) -> None:
    """Raise `CostError` for a custom call of unknown work, naming the option that states it."""
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


# Simulate.


def system_of(options: NetworkOptions) -> System | None:
    """Return the system, loaded where it is named; None where none is given."""
    named = options.system if options.cluster is None else options.cluster
    return find_system(named) if isinstance(named, str | Path) else named


def model_of(options: NetworkOptions, system: System | None) -> ModelChoice:
    """Return the network model with its settings; `ConfigError` for those without effect on it.

    Where no model is named, the settings that only one has decide, or else the system.
    """
    imperfect = options.imperfect
    if imperfect is not None and imperfect.programs:
        message = "programs are for hespas simulate: there is one program here"
        raise ConfigError(message, location=imperfect.source, hint="leave them out")
    return ModelChoice(
        model=_model(options, system),
        network=options.network,
        algorithm=options.algorithm,
        cluster=imperfect,
    )


def _model(options: NetworkOptions, system: System | None) -> Model:
    if options.model is not None:
        return options.model
    links = None if options.imperfect is None else options.imperfect.links or None
    given = {"network": options.network, "algorithm": options.algorithm, "links": links}
    return default_model(system, given)


def simulate(prepared: Prepared, tasks: TaskGraph, options: NetworkOptions) -> Timeline | None:
    """Return when each device does what; None without a system.

    The kernels of a compiled program are simulated in rows where that is the same: where no device
    is a special one.
    """
    if prepared.system is None:
        return None
    choice = model_of(options, prepared.system)
    name = prepared.system.name
    kind = f"{name}, {choice.model.value}"
    with stage(Stage.SIMULATE, f"on {name}", kind=kind, size=len(tasks.tasks)):
        if not prepared.graph.program.is_scheduled or choice.cluster is not None:
            return simulate_job(tasks, prepared.system, choice)
        rows = chained(tasks)
        return opened(simulate_job(rows.graph, prepared.system, choice), rows)


def finish(prepared: Prepared, estimates: GraphEstimate, options: PredictOptions) -> Prediction:
    """Simulate what was priced, and gather everything that led to the prediction."""
    tasks = estimated_tasks(prepared.graph, estimates)
    return Prediction(
        graph=prepared.graph,
        estimates=estimates,
        tasks=tasks,
        system=prepared.system,
        timeline=simulate(prepared, tasks, options.network),
        memory=memory_use(prepared.graph.program),
        options=options,
        modules=prepared.modules,
        steps=_steps_when_needed(prepared, options),
        mesh=mesh_of(options),
        work=work_of(prepared.graph.program, options),
        device=_device_of_memory(options.estimate),
        device_name=device_name(options.estimate),
        part_warnings=part_warnings(_node_of(options.estimate), prepared.system),
    )


def device_name(options: EstimateOptions) -> str:
    """Return the device's name; where the program runs here, what runs it; else the method's."""
    method = method_named(options.method or DEFAULT.name)
    here = method.runs_on(options.hardware)
    if here is not None:
        return here
    device = device_of(options)
    return f"the device of method {method.name}" if device is None else device.name


def _device_of_memory(options: EstimateOptions) -> Device | None:
    """Return the device that holds the program; None where the program runs here."""
    method = method_named(options.method or DEFAULT.name)
    return None if method.device_here else device_of(options)
