"""Compile a program for a target, or read it from the cache."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec

from hespas.base.process import LOG_NAME, Limits, scratch_directory
from hespas.base.progress import Stage, stage
from hespas.base.question import PROGRAM_FILE, ask
from hespas.compile.cache import CompiledCache
from hespas.compile.compiled import CompiledProgram
from hespas.compile.job import ANY_LAYOUT, Job, Layout, job_of
from hespas.compile.options import DEFAULT_OPTIONS, SLOP_FACTOR, SLOP_FLAG, CompileOptions
from hespas.compile.packages import TOOLKIT, absent_passes, compiler_environment, write_toolkit
from hespas.compile.settle import settled
from hespas.compile.targets import GpuTarget, find_target, memory_bytes
from hespas.errors import ConfigError, HespasError, ToolError, UnsupportedError
from hespas.program.kernels import CompiledKernels
from hespas.program.program import OverlapLimit, full_factor
from hespas.xla.compile import messages
from hespas.xla.compile.kernels import read_kernels, read_starts

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
