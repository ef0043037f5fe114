"""Compile a program for a target, or read it from the cache.

Of a recipe's flags, one that the compiler knows by name but does not take here, where no device is
attached, is left out with a note, as are flags that hespas itself leaves out; one that it has never
heard of is an error.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from math import prod
from pathlib import Path

import msgspec

from hespas.base.frozen import frozen
from hespas.base.process import LOG_NAME, Limits, scratch_directory
from hespas.base.progress import Stage, stage
from hespas.base.question import PROGRAM_FILE, ask
from hespas.base.suggest import nearest
from hespas.compile.cache import CompiledCache
from hespas.compile.job import ANY_LAYOUT, CompiledProgram, Job, Layout, job_of
from hespas.compile.options import DEFAULT_OPTIONS, SLOP_FACTOR, SLOP_FLAG, CompileOptions
from hespas.compile.packages import (
    TOOLKIT,
    absent_passes,
    compiler_environment,
    known_flags,
    write_toolkit,
)
from hespas.compile.recipe import RecipeFlags
from hespas.compile.targets import GpuTarget, TpuTarget, find_target, memory_bytes
from hespas.errors import ConfigError, DeviceCountError, HespasError, ToolError, UnsupportedError
from hespas.hardware.system import System
from hespas.program.kernels import CompiledKernels
from hespas.program.program import OverlapLimit, full_factor
from hespas.xla.compile import messages
from hespas.xla.compile.kernels import read_kernels, read_starts
from hespas.xla.compile.messages import FlagsAnswer, FlagsQuestion
from hespas.xla.compile.topology import TPU_GENERATIONS, check_topology

DEFAULT_LIMITS = Limits(time_s=3600, memory_bytes=32 * 2**30)
"""An hour, and 32 GiB of addresses."""

_UNKNOWN_FLAG = re.compile(r"Unknown flags? in XLA_FLAGS: (\S+)")
_BAD_VALUE = re.compile(r"Couldn't interpret value (\S*) for flag (\w+)")
_SCHEDULED = re.compile(
    r"LatencyHidingScheduler current memory usage: (\d+) bytes. "
    r"Current limit: (\d+)"
)
_INFORMS = re.compile(r"I\d{4} |WARNING: All log messages before absl::InitializeLog")
_MEMORY = re.compile(
    r"bad_alloc|[Oo]ut of memory|Cannot allocate memory|MemoryError|failed to map segment"
)


def compile_program(
    source: bytes,
    *,
    name: str,
    target: str,
    layout: Layout = ANY_LAYOUT,
    options: CompileOptions = DEFAULT_OPTIONS,
    limits: Limits = DEFAULT_LIMITS,
    cache: CompiledCache | None = None,
) -> CompiledProgram:
    """Compile StableHLO for a target, which need not be attached.

    ``source`` is text, bytecode or a portable artifact, before or after partitioning; ``name``
    stands in messages. Raises `ExtraMissingError` without the target's compiler, `HardwareError`
    for an unknown target, `ConfigError` for options that it does not have, `DeviceCountError`,
    `ProgramError` and `UnsupportedError` for programs that do not fit, and `ToolError`, naming the
    log that is kept, if the compiler fails or exceeds ``limits``.
    """
    job = job_of(source, name=name, target=find_target(target), layout=layout, options=options)
    compiled = _compile_job(job, limits, cache)
    limit = compiled.overlap
    if not options.fills_memory or limit is None or limit.full_factor is None:
        return compiled
    filled = options.with_slop_factor(limit.full_factor)
    job = job_of(source, name=name, target=job.target, layout=layout, options=filled)
    full = _compile_job(job, limits, cache)
    memory = memory_bytes(job.target) if isinstance(job.target, GpuTarget) else None
    if memory is None or full.memory.total_bytes > memory:
        return compiled
    return replace(full, overlap=msgspec.structs.replace(limit, is_given_up=False))


def _compile_job(job: Job, limits: Limits, cache: CompiledCache | None) -> CompiledProgram:
    """Return the result of a job, from the cache if possible."""
    cached = None if cache is None else cache.read(job)
    if cached is not None:
        return cached
    name = job.target.name
    with stage(Stage.COMPILE, f"for {name}", kind=name, size=len(job.source)):
        to_run = settled(job)
        compiled = run_job(to_run.job, limits)
        result = replace(compiled, notes=(*compiled.notes, *to_run.notes))
    if cache is not None:
        cache.write(job, result)
    return result


def run_job(job: Job, limits: Limits) -> CompiledProgram:
    """Compile in its own process; keep its directory on failure."""
    with scratch_directory("compile") as home:
        (home / PROGRAM_FILE).write_bytes(job.source)
        if isinstance(job.target, GpuTarget):
            write_toolkit(home / TOOLKIT)
        try:
            answer = ask(
                "hespas.xla.compile.worker",
                job.request,
                messages.Compiled,
                name=f"the compiler for {job.target.name}",
                directory=home,
                limits=limits,
                environment=_environment(job),
            )
        except ToolError as error:
            raise _explain_failure(error, home / LOG_NAME, limits) from error
        return _result(job, answer, home)


def _environment(job: Job) -> dict[str, str]:
    """Return the compiling process's environment, without the user's settings of XLA."""
    is_gpu = isinstance(job.target, GpuTarget)
    ours = {"xla_dump_to": messages.DUMP_DIRECTORY, "xla_gpu_cuda_data_dir": TOOLKIT}
    flags = {**job.flags, **ours} if is_gpu else {}
    text = " ".join(f"--{name}={value}" for name, value in flags.items())
    # The scheduler logs the memory that it counted at the level of information.
    return compiler_environment(text) | ({"TF_CPP_MIN_LOG_LEVEL": "0"} if is_gpu else {})


def _result(job: Job, answer: messages.Compiled, home: Path) -> CompiledProgram:
    text = (home / messages.TEXT_FILE).read_text()
    proto = (home / messages.PROTO_FILE).read_bytes()
    kernels, notes = _kernels(job, home, text, proto)
    log = (home / LOG_NAME).read_text(errors="replace")
    return CompiledProgram(
        name=job.name,
        target=job.target.name,
        topology=answer.topology,
        replicas=answer.replicas,
        partitions=answer.partitions,
        hlo_proto=proto,
        hlo_text=text,
        kernels=kernels,
        memory=answer.memory,
        flags=job.flags,
        versions=job.versions,
        notes=(*answer.notes, *notes, *absent_passes(job.target, job.flags)),
        log="".join(line for line in log.splitlines(keepends=True) if not _INFORMS.match(line)),
        overlap=_overlap_limit(log, job),
    )


def _overlap_limit(log: str, job: Job) -> OverlapLimit | None:
    """Return the scheduler's memory limit if it logged that it counted more."""
    counts = _SCHEDULED.findall(log)
    if not counts or not isinstance(job.target, GpuTarget):
        return None
    needed, limit = map(int, counts[-1])
    if needed <= limit:
        return None
    factor = int(job.flags.get(SLOP_FLAG, SLOP_FACTOR))
    memory = memory_bytes(job.target)
    free_bytes = 100 * limit / factor
    return OverlapLimit(
        limit_bytes=limit,
        needed_bytes=needed,
        factor=factor,
        full_factor=None if memory is None else full_factor(memory, free_bytes, above=factor),
    )


def _kernels(
    job: Job, home: Path, text: str, proto: bytes
) -> tuple[CompiledKernels | None, tuple[str, ...]]:
    """Return the kernels, if any, and notes."""
    if not isinstance(job.target, GpuTarget):
        return None, ("the kernels of a TPU are not readable",)
    dump = home / messages.DUMP_DIRECTORY
    try:
        return read_kernels(dump, module_text=text, starts=read_starts(proto)), job.target.notes
    except UnsupportedError as error:
        return None, (*job.target.notes, f"no kernels: {error}")


def _explain_failure(error: ToolError, log: Path, limits: Limits) -> HespasError:
    """Return the error for the cause that a failed process logged.

    Returns ``error`` itself if the log has no known cause. The log and its directory are removed if
    the new error says as much.
    """
    text = log.read_text(errors="replace") if log.is_file() else ""
    unknown, bad = _UNKNOWN_FLAG.search(text), _BAD_VALUE.search(text)
    if unknown is not None:
        shutil.rmtree(log.parent, ignore_errors=True)
        return ConfigError(f"the compiler has no flag {unknown[1].partition('=')[0].strip('-')}")
    if bad is not None:
        shutil.rmtree(log.parent, ignore_errors=True)
        return ConfigError(f"{bad[1]!r} is no value of the compiler's flag {bad[2]}")
    if limits.memory_bytes is not None and _MEMORY.search(text):
        return _out_of_memory(log, limits.memory_bytes)
    return error


def _out_of_memory(log: Path, memory_bytes: int) -> ToolError:
    return ToolError(
        f"the compiler ran out of memory (it may address {memory_bytes / 2**30:.3g} GiB)",
        location=str(log),
        hint="allow more with a higher memory limit",
    )


_WRITES = re.compile(r"xla_dump_\w+|\w+_(?:dir|path|file|to)")
_COMMAND_BUFFERS = "xla_gpu_enable_command_buffer"
_LIMITS = Limits(time_s=300, memory_bytes=None)


@frozen
class Settled:
    """A job with the passed flags of its recipe; notes on others."""

    job: Job
    notes: tuple[str, ...] = ()


def settled(job: Job) -> Settled:
    """Return the job with the flags that its compiler takes.

    Raises `ConfigError`, with the line of the recipe, for a flag that the compiler doesn't know,
    and for an invalid value of a flag.
    """
    recipe = job.recipe
    if recipe is None:
        return Settled(job=job)
    left_out = {name: why for name in recipe.flags if (why := _reason_left_out(name, job))}
    flags = {name: value for name, value in recipe.flags.items() if name not in left_out}
    answer = _ask_compiler(job, flags) if flags else FlagsAnswer()
    for name in answer.bad:
        raise ConfigError(
            f"{recipe.flags[name]!r} is no value of the compiler's flag {name}",
            location=recipe.location(name),
        )
    _check_known(job, recipe, answer.unknown)
    left_out |= dict.fromkeys(answer.unknown, _why_refused(job))
    passed = {name: value for name, value in flags.items() if name not in answer.unknown}
    flags = {**job.flags, **passed}
    is_gpu = isinstance(job.target, GpuTarget)
    request = msgspec.structs.replace(job.request, overrides={} if is_gpu else flags)
    return Settled(
        job=replace(job, flags=flags, request=request),
        notes=_notes(recipe, passed=len(passed), left_out=left_out),
    )


def _reason_left_out(name: str, job: Job) -> str:
    """Return why hespas itself leaves a flag out; empty if it doesn't."""
    if name in job.set_flags and job.set_flags[name] != (job.recipe and job.recipe.flags[name]):
        return "options say otherwise"
    if name == _COMMAND_BUFFERS:
        return "kernels are priced one by one"
    return "they name files" if _WRITES.fullmatch(name) else ""


def _ask_compiler(job: Job, flags: Mapping[str, str]) -> FlagsAnswer:
    """Ask the compiler about flags, which takes a second or two."""
    with scratch_directory("flags") as home:
        question = FlagsQuestion(accelerator=job.request.accelerator, flags=flags)
        is_gpu = isinstance(job.target, GpuTarget)
        if is_gpu:
            write_toolkit(home / TOOLKIT)
        return ask(
            "hespas.xla.compile.flags",
            question,
            FlagsAnswer,
            name=f"the compiler for {job.target.name}",
            directory=home,
            limits=_LIMITS,
            environment=compiler_environment(
                f"--xla_gpu_cuda_data_dir={TOOLKIT}" if is_gpu else ""
            ),
        )


def _check_known(job: Job, recipe: RecipeFlags, refused: Iterable[str]) -> None:
    """Raise `ConfigError` for a flag that no library knows."""
    names = tuple(refused)
    if not names:
        return
    library_words = known_flags(job.target)
    for name in names:
        if name not in library_words:
            close = nearest(name, library_words)[:1]
            raise ConfigError(
                f"the compiler for {job.target.name} has no flag {name}",
                location=recipe.location(name),
                hint=f"did you mean {close[0]}?" if close else "remove it",
            )


def _why_refused(job: Job) -> str:
    if isinstance(job.target, GpuTarget):
        return "this version of XLA has them no more"
    return "libtpu reads them at its start, where a device is"


def _notes(recipe: RecipeFlags, *, passed: int, left_out: Mapping[str, str]) -> tuple[str, ...]:
    outcome = "compiled with" if passed else "compiled without"
    notes = [f"{outcome} {passed or 'any'} of the {len(recipe.flags)} flags of {recipe.file}"]
    by_reason = sorted(left_out.items(), key=lambda each: each[1])
    for reason, flags in groupby(by_reason, key=lambda each: each[1]):
        names = ", ".join(name for name, _ in flags)
        notes.append(f"flags of {recipe.file} that are left out, since {reason}: {names}")
    if recipe.repeated:
        names = ", ".join(recipe.repeated)
        notes.append(f"of flags that {recipe.file} gives several values, the last counts: {names}")
    return tuple(notes)


def compile_for_node(
    source: bytes,
    *,
    name: str,
    node: str,
    system: System | None,
    devices: int | None,
    options: CompileOptions = DEFAULT_OPTIONS,
    cache: CompiledCache | None = None,
) -> CompiledProgram:
    """Compile StableHLO for the part that ``node``, a preset's name, describes.

    ``devices`` takes precedence over the number of devices of the ``system``. Raises what
    `hespas.compile.compiler.compile_program` raises.
    """
    layout = layout_of(node, system, devices)
    try:
        return compile_program(
            source, name=name, target=node, layout=layout, options=options, cache=cache
        )
    except DeviceCountError as error:
        if system is None or devices is not None:
            raise
        raise DeviceCountError(
            f"{error.marked_message}, as the system {system.name} has {system.device_count}",
            location=error.location,
            hint="choose a system of as many devices as the program is made for",
        ) from error


def check_compilation(
    node: str, *, system: System | None, devices: int | None, options: CompileOptions
) -> None:
    """Raise the errors of compiling for ``node`` that need no compiler run.

    That is `ExtraMissingError` without the compiler, `HardwareError` for a node that nothing
    compiles for, `ConfigError` for options that its compiler does not have, and `DeviceCountError`
    for a number of devices that makes no hosts or no slice.
    """
    layout, target = layout_of(node, system, devices), find_target(node)
    job = job_of(b"", name=node, target=target, layout=layout, options=options)
    if layout.devices is not None:
        check_topology(job.request.accelerator, layout.devices)


def layout_of(node: str, system: System | None, devices: int | None) -> Layout:
    """Return the layout of a system's devices for the compiler of ``node``.

    GPUs along the first of several dimensions share a host. For TPUs, dimensions that are the axes
    of a slice are its topology; otherwise the topology follows from the number of devices.

    >>> from hespas.hardware.presets import load_system
    >>> layout_of("TPUv5e", load_system("TPUv5e_4x4"), None).topology
    '4x4'
    """
    if system is None:
        return Layout(devices=devices)
    count = devices or system.device_count
    sizes = [dimension.size for dimension in system.dimensions]
    target = find_target(node)
    if isinstance(target, TpuTarget):
        slices = system.slices
        sides = sizes[:-1] if slices > 1 else sizes
        topology = _topology(target, sides, count // slices)
        return Layout(devices=count, topology=topology, slices=slices)
    return Layout(devices=count, per_host=sizes[0] if len(sizes) > 1 else None)


def _topology(target: TpuTarget, sizes: list[int], count: int) -> str | None:
    """Return a slice's chips along each axis, shortest first.

    None if the dimensions are not the slice's axes.
    """
    chips = TPU_GENERATIONS[target.generation]
    on_chip = [chips.devices_per_chip] if chips.devices_per_chip > 1 else []
    if len(sizes) != chips.dimensions + len(on_chip) or prod(sizes) != count:
        return None
    if on_chip and sizes[0] != chips.devices_per_chip:
        return None
    return "x".join(map(str, sorted(sizes[len(on_chip) :])))
