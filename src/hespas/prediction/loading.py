"""Load a workload's program: exported, compiled, fused, or as given."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from math import prod
from pathlib import Path
from time import perf_counter

import msgspec

from hespas.base.cache import ContentCache, code_digest, made_once
from hespas.base.fields import refuse_unused
from hespas.base.question import reused_processes
from hespas.base.units import format_quantity, format_time
from hespas.compile.options import GPU_MEMORY
from hespas.errors import (
    ConfigError,
    DeviceCountError,
    HespasError,
    ProgramError,
    ToolError,
    option,
)
from hespas.frontend.experts import Capacity, with_expert_load
from hespas.frontend.load import is_false_first, load_per_device, load_undivided
from hespas.frontend.mesh import cached_global_facts
from hespas.frontend.overrides import Loaded, LoadOptions
from hespas.models.software import software_named
from hespas.prediction.checks import check_effects
from hespas.prediction.fidelity import Plan, fallen_back, planned
from hespas.prediction.kept import loaded_once
from hespas.prediction.machines import compiled_directory, device_of, made_directory, system_of
from hespas.prediction.options import (
    NOT_COMPILED_AGAIN,
    UNCOMPILED,
    EstimateOptions,
    Fidelity,
    PredictOptions,
)
from hespas.prediction.workload import source_of, target_of, with_own_floats
from hespas.price.methods import method_named
from hespas.program.attrs import CallAttrs, CaseAttrs, WhileAttrs
from hespas.program.groups import groups_along
from hespas.program.kernels import CompiledKernels, decode_kernels
from hespas.program.program import (
    Block,
    Function,
    GlobalFacts,
    Program,
    Recorded,
    all_ops,
    with_kernels,
)
from hespas.program.scopes import merged_layers, read_scope
from hespas.sources.exported import Workload
from hespas.sources.source import FileSource, ModelSource, platform_of
from hespas.sources.workload import export_cache, read_workload
from hespas.work.gemm import gemms

log = logging.getLogger("hespas")
IN_GRAPHS = "host launches: CUDA graphs launch all kernels, and the host takes no part"
Flops = Counter[str]
"""FLOPs of matrix products by module path."""

_MOST_THREADS = 1024
"""Threads of a block, on every GPU."""


@reused_processes()
def load(options: PredictOptions, *, source: bytes | None = None) -> Program:
    """Read the program with the requested or best available fidelity.

    ``source`` is what its file holds, where that was read before. The program's devices are not
    settled yet. Raises `ProgramError` for a file that can't be read or is no program,
    `ConfigError` for options that have no effect on it, and what
    `hespas.compile.compiler.compile_program` raises where compiling is asked for.
    """
    file, kernels_file = options.program.file, options.program.kernels
    if options.estimate.method is not None:
        refuse_unused(options, method_named(options.estimate.method).absent)
    kernels = None if kernels_file is None else read_kernels(kernels_file)
    origin = None
    if source is None:
        origin = source_of(options)
        if not isinstance(origin, FileSource):
            _plan_of(EXPORTED_LATER, options)
        directory = made_directory(options.estimate)
        cache = None if directory is None else export_cache(directory)
        workload = read_workload(origin, cache=cache)
    else:
        workload = Workload(name=str(file), content=source)
    if isinstance(origin, ModelSource):
        workload = with_own_floats(workload, device_of(options.estimate))
    content = workload.content
    plan = _plan_of(content, options)
    divides_end = isinstance(origin, ModelSource)
    try:
        load_planned = partial(_loaded, content, plan, options, divides_end=divides_end)
        loaded = loaded_once(load_planned, content, plan, options)
    except HespasError as error:
        error.location = error.location or str(file)
        raise
    program = loaded.program
    if workload.notes:
        assumptions = (*workload.notes, *program.assumptions)
        program = msgspec.structs.replace(program, assumptions=assumptions)
    if program.fidelity == "compiled" and plan.fidelity is Fidelity.COMPILED:
        # A model of the zoo says its mesh and its batch itself.
        source_facts = (
            GlobalFacts() if isinstance(origin, ModelSource) else _source_facts(content, options)
        )
        program = msgspec.structs.replace(program, global_facts=source_facts)
    if program.recorded is not None:
        program = _launched(program, program.recorded, options.estimate)
    log.info("read %s", program.source)
    check_effects(loaded, options)
    if kernels is None:
        return program
    return with_kernels(program, kernels, location=str(kernels_file))


def _launched(program: Program, recorded: Recorded, options: EstimateOptions) -> Program:
    """Return a recorded program with launches as the options say."""
    if options.cuda_graphs:
        recorded = msgspec.structs.replace(recorded, host_launch_s=0.0, in_graphs=True)
        note = IN_GRAPHS
    elif options.host_launch_s is not None:
        recorded = msgspec.structs.replace(recorded, host_launch_s=options.host_launch_s)
        note = f"host launches: one takes {format_time(options.host_launch_s)}, as given"
    else:
        note = (
            f"host launches: one takes {format_time(recorded.host_launch_s)}, as measured beside "
            "an H100 with torch 2.11, the mean of seven kernels of 11 to 30 us; other hosts are "
            "given as host_launch"
        )
    stages = [
        _launched(stage, stage.recorded, options) for stage in recorded.stages if stage.recorded
    ]
    recorded = msgspec.structs.replace(recorded, stages=tuple(stages))
    assumptions = (*program.assumptions, note)
    return msgspec.structs.replace(program, recorded=recorded, assumptions=assumptions)


def _source_facts(content: bytes, options: PredictOptions) -> GlobalFacts:
    directory = made_directory(options.estimate)
    return cached_global_facts(content, name=str(options.program.file), directory=directory)


EXPORTED_LATER = b"module {}"
"""A placeholder for StableHLO that is not exported yet."""


def _plan_of(content: bytes, options: PredictOptions) -> Plan:
    """Plan a program's compilation; refuse impossible ones early."""
    plan = planned(content, options)
    if plan.fidelity is not Fidelity.COMPILED:
        return plan
    refuse_unused(options.program, {NOT_COMPILED_AGAIN: options.compile.words})
    if not plan.may_fall_back:
        # Few programs have to be compiled: the others need not wait for what it takes.
        from hespas.compile.compiler import check_compilation  # noqa: PLC0415 - of few programs

        check_compilation(
            plan.node,
            system=system_of(options.network),
            devices=options.program.devices,
            options=options.compile.options,
        )
    return plan


def read_kernels(file: Path) -> CompiledKernels:
    """Read what ``hespas compile --kernels`` wrote.

    Raises `ProgramError` for anything else.
    """
    try:
        kernels = decode_kernels(file.read_bytes())
    except OSError as error:
        raise ProgramError(f"cannot be read: {error.strerror}", location=str(file)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProgramError(
            f"holds no kernels: {error}",
            location=str(file),
            hint="give a file of hespas compile --kernels",
        ) from error
    for launch in kernels.launches:
        if min(*launch.grid, *launch.block) < 1 or prod(launch.block) > _MOST_THREADS:
            raise ProgramError(
                f"{launch.instruction} launches {launch.grid} blocks of {launch.block} threads; "
                f"a block has 1 to {_MOST_THREADS}",
                location=str(file),
            )
    return kernels


def _loaded(content: bytes, plan: Plan, options: PredictOptions, *, divides_end: bool) -> Loaded:
    """Return the program as planned, or its allowed fallback."""
    if plan.fidelity is Fidelity.COMPILED:
        try:
            return _compiled(content, plan.node, options)
        except (ProgramError, ToolError, DeviceCountError) as error:
            if not plan.may_fall_back:
                raise
            plan = fallen_back(error.message)
    loaded = _read(content, options, divides_end=divides_end)
    program = loaded.program
    if program.is_scheduled:
        refuse_unused(options.compile, {UNCOMPILED: plan.fidelity is not None})
        return loaded
    match options.compile.requested:
        case Fidelity.COMPILED:
            raise ProgramError(
                "is HLO that no compiler scheduled",
                hint="give its StableHLO, or what hespas compile makes of it",
            )
        case Fidelity.AUTO if plan.fidelity is None and options.program.kernels is None:
            plan = fallen_back("it is HLO that no compiler scheduled")
        case _:
            pass
    undivided = None if options.program.model.part else loaded.undivided
    program = _with_replication(program, undivided_flops(undivided))
    if plan.note:
        noted = (plan.note, *program.assumptions)
        program = msgspec.structs.replace(program, assumptions=noted)
    if plan.fidelity in {Fidelity.FUSED, Fidelity.LIBRARY}:
        program = _fused(program, options, of_libraries=plan.fidelity is Fidelity.LIBRARY)
    return replace(loaded, program=program)


def _with_replication(program: Program, needed: Flops | None) -> Program:
    """Warn about computation that the program's devices repeat.

    ``needed`` are the FLOPs of the undivided program; None where they are not known.
    """
    warning = "" if needed is None else replication_warning(needed, program)
    return msgspec.structs.replace(program, warnings=(warning,)) if warning else program


def _fused(program: Program, options: PredictOptions, *, of_libraries: bool) -> Program:
    # Where a compiler is, few programs are: the others need not wait for what it takes.
    from hespas.compile.targets import compute_capability  # noqa: PLC0415
    from hespas.lower.expand import expanded  # noqa: PLC0415
    from hespas.lower.fused import Writer, fused, turns_8_bits  # noqa: PLC0415
    from hespas.lower.library import ShardCopies  # noqa: PLC0415

    start_s = perf_counter()
    system, target = system_of(options.network), target_of(options)
    is_tpu = platform_of(target) == "tpu"
    if of_libraries and is_tpu:
        raise ConfigError(
            f"{options.compile.words} needs a GPU, and the node is a TPU",
            hint=f"give {option('fidelity')} {Fidelity.FUSED.value}",
        )
    device = device_of(options.estimate)
    capacity_bytes = None if is_tpu or device is None else device.memory_capacity_bytes
    refuse_unused(options.compile, {GPU_MEMORY: capacity_bytes is None})
    model = options.program.model
    if model.part is not None:
        from hespas.prediction.passes import without_sums  # noqa: PLC0415 - pipelines alone

        program = without_sums(program, model.part)
    if not is_tpu:
        program = expanded(program, has_grouped_products=of_libraries)
    writer = Writer.LIBRARY if of_libraries else Writer.TPU if is_tpu else Writer.GPU
    software = None if model.software is None else software_named(model.software)
    types = [model.settings.get(name, "") for name in ("product_dtype", "expert_product_dtype")]
    result = fused(
        program,
        options.compile.options,
        writer=writer,
        device=device,
        capacity_bytes=capacity_bytes,
        compute_capability=None if target is None else compute_capability(target),
        devices_per_host=system.dimensions[0].size if system and system.dimensions else None,
        by_module=software is not None and software.runs_by_module,
        shard_copies=None
        if software is None or software.fsdp is None
        else ShardCopies(groups=_fsdp_groups(program), version=software.fsdp),
        scales_tensors=software is not None
        and software.scales_tensors(types, is_hopper=turns_8_bits(device)),
    )
    log.info("fused in %.3f s", perf_counter() - start_s)
    return result


def _fsdp_groups(program: Program) -> frozenset[frozenset[int]]:
    mesh = program.global_facts.mesh
    if dict(mesh).get(_FSDP, 1) < 2:
        return frozenset()
    return frozenset(map(frozenset, groups_along(mesh, (_FSDP,))))


def _read(
    content: bytes,
    options: PredictOptions,
    *,
    false_first: bool = False,
    divides_end: bool = False,
) -> Loaded:
    overrides = LoadOptions(
        trip_counts=options.program.trip_counts,
        branch_weights=options.program.branch_weights,
        false_first=false_first,
        divides_end=divides_end,
    )
    name, cache_dir = str(options.program.file), made_directory(options.estimate)
    return load_per_device(content, name=name, options=overrides, cache_dir=cache_dir)


def _compiled(content: bytes, node: str, options: PredictOptions) -> Loaded:
    # Few programs are compiled first: the others need not wait for what it takes.
    from hespas.compile.cache import CompiledCache  # noqa: PLC0415 - as above
    from hespas.compile.compiler import compile_for_node  # noqa: PLC0415 - as above

    start_s = perf_counter()
    directory = compiled_directory(options.estimate)
    compiled = compile_for_node(
        content,
        name=str(options.program.file),
        node=node,
        system=system_of(options.network),
        devices=options.program.devices,
        options=options.compile.options,
        cache=None if directory is None else CompiledCache(directory=directory),
    )
    log.info("compiled for %s in %.3f s", compiled.target, perf_counter() - start_s)
    # Only weights ask how branches of the source are ordered, so that few programs are parsed.
    is_weighed = bool(options.program.branch_weights)
    false_first = is_weighed and is_false_first(content, name=str(options.program.file))
    loaded = _read(compiled.hlo_proto, options, false_first=false_first)
    program = msgspec.structs.replace(
        loaded.program,
        assumptions=(*compiled.assumptions, *loaded.program.assumptions),
        kernels=compiled.kernels,
        overlap=compiled.overlap,
        compiler_versions=compiled.versions,
    )
    needed = None if options.program.model.part else _cached_flops(content, options)
    return replace(loaded, program=_with_replication(program, needed))


def _cached_flops(content: bytes, options: PredictOptions) -> Flops | None:
    """Return `undivided_flops` of sharded StableHLO, which is parsed once."""

    def needed() -> tuple[Flops | None]:
        return (undivided_flops(load_undivided(content, name=str(options.program.file))),)

    directory = made_directory(options.estimate)
    files = None
    if directory is not None:
        files = ContentCache(
            directory=directory,
            suffix=".flops",
            mark=b"hespas flops 2\n",
            content_name="sources' FLOPs",
        )
    key = sha256(sha256(content).digest() + code_digest(*_READERS).encode()).hexdigest()
    (flops,) = made_once(files, key, tuple[dict[str, int] | None], needed)
    return None if flops is None else Flops(flops)


_READERS = ("frontend", "program", "work", "xla/mlir")
"""Folders of code that the FLOPs of a source depend on."""


def with_experts(program: Program, options: PredictOptions) -> Program:
    """Set the rows of each expert in a program.

    Raises `ConfigError` for a load of the experts that doesn't fit the program.
    """
    capacity = None
    if options.experts.expert_load is not None and options.program.file is not None:
        from hespas.models.catalogue import Experts  # noqa: PLC0415 - of use to models alone

        source = source_of(options)
        settings = source.settings if isinstance(source, ModelSource) else None
        if isinstance(settings, Experts):
            factor = settings.capacity_percent / 100
            capacity = Capacity(experts=settings.experts, factor=factor)
    return with_expert_load(program, options.experts.expert_load, capacity=capacity)


def with_origin_noted(program: Program, options: PredictOptions) -> Program:
    """Note in a program that another part was its target."""
    node = options.estimate.node
    if program.fidelity not in {"compiled", "recorded"} or not isinstance(node, str | Path):
        return program
    # Few programs are compiled ones: the others need not wait for it.
    from hespas.compile.origin import with_origin  # noqa: PLC0415

    return with_origin(program, str(node))


_NOTABLE = 1.05
"""Repeated products below a twentieth of all are left out: padding, and heads that don't divide."""
_DEPTH, _SHOWN, _NO_NAME = 2, 3, "(no name)"
_FSDP = "fsdp"


def undivided_flops(program: Program | None) -> Flops | None:
    """Return all devices' FLOPs of products, by module.

    None without a program, where a part is written for single devices, or a loop's rounds are not
    known.
    """
    if program is None or any(op.kind == "manual_computation" for op in all_ops(program)):
        return None
    return product_flops(program)


def replication_warning(needed: Flops, local: Program) -> str:
    """Describe matrix products that devices repeat; empty for none.

    ``needed`` are the FLOPs of all devices, ``local`` is the program of one; loops of unknown
    length have no warning.
    """
    devices = local.declared_devices or 1
    own = product_flops(local) if devices > 1 and needed else None
    if own is None:
        return ""
    executed, needed_total = devices * own.total(), needed.total()
    if executed <= _NOTABLE * needed_total:
        return ""
    repeated = {
        path: devices * flops - needed[path]
        for path, flops in own.items()
        if needed[path] and devices * flops > _NOTABLE * needed[path]
    }
    longest = sorted(repeated, key=lambda path: (-repeated[path], path))[:_SHOWN]
    where = ", ".join(
        f"{path or _NO_NAME} {devices * own[path] / needed[path]:.3g} x" for path in longest
    )
    return (
        f"devices repeat computation: their matrix products have "
        f"{format_quantity(executed, 'FLOP')} together, {executed / needed_total:.3g} x those of "
        f"the undivided program{where and f' ({where})'}; a sharding constraint "
        "(jax.lax.with_sharding_constraint) divides them"
    )


def product_flops(program: Program) -> Flops | None:
    """Return matrix-product FLOPs by module; None for unknown loops."""
    try:
        return _block_flops(program.main.body, program.functions, {})
    except _UnknownLoopError:
        return None


class _UnknownLoopError(Exception):
    """The number of a loop's rounds is unknown."""


def _block_flops(
    block: Block, functions: Mapping[str, Function], of_functions: dict[str, Flops]
) -> Flops:
    total: Flops = Counter()
    for op in block.operations:
        match op.attrs:
            case WhileAttrs(trip_count=count):
                inner = _block_flops(op.regions[-1], functions, of_functions)
                if inner and count is None:
                    raise _UnknownLoopError
                total += Counter({path: (count or 0) * flops for path, flops in inner.items()})
            case CaseAttrs():
                branches = [_block_flops(region, functions, of_functions) for region in op.regions]
                total += max(branches, key=lambda branch: branch.total(), default=Flops())
            case CallAttrs(callee=callee):
                if callee not in of_functions:
                    of_functions[callee] = _block_flops(
                        functions[callee].body, functions, of_functions
                    )
                total += of_functions[callee]
            case _:
                for product in gemms(op):
                    path = merged_layers(read_scope(op.scope).path)[:_DEPTH]
                    total["/".join(path)] += product.flops
    return total
