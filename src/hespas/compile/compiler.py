"""Compile a program for a target, in a process of its own, or take it from the cache."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import assert_never

import msgspec

from hespas.compile.cache import CompiledCache
from hespas.compile.compiled import CompiledProgram, MemoryAnalysis
from hespas.compile.failures import explained, refusal
from hespas.compile.job import ANY_LAYOUT, Job, Layout, job_of
from hespas.compile.options import DEFAULT_OPTIONS, CompileOptions
from hespas.compile.passes import absent_passes
from hespas.compile.targets import GpuTarget, find_target
from hespas.compile.toolkit import lay_out_toolkit
from hespas.errors import ToolError, UnsupportedError
from hespas.program.kernels import CompiledKernels
from hespas.tools.process import LOG_NAME, Limits, run_program
from hespas.tools.scratch import scratch_directory
from hespas.xla import compile_wire as wire
from hespas.xla.compile_kernels import read_kernels

DEFAULT_LIMITS = Limits(time_s=3600, memory_bytes=32 * 2**30)
"""An hour, and 32 GiB of addresses."""

_TOOLKIT = "toolkit"


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
    """Compile StableHLO for a target that need not be there.

    ``source`` is text, bytecode or a portable artifact, before or after partitioning, and
    ``name`` what messages call it. Raises `ExtraMissingError` without the target's compiler,
    `HardwareError` for an unknown target, `ConfigError` for options that it has not,
    `DeviceCountError`, `ProgramError` and `UnsupportedError` for programs that don't fit, and
    `ToolError`, naming the kept log, where the compiler fails or exceeds ``limits``.
    """
    job = job_of(source, name=name, target=find_target(target), layout=layout, options=options)
    found = None if cache is None else cache.read(job)
    if found is not None:
        return found
    result = run_job(job, limits)
    if cache is not None:
        cache.write(job, result)
    return result


def run_job(job: Job, limits: Limits) -> CompiledProgram:
    """Compile, in a process of its own; its directory stays where the compiler fails."""
    with scratch_directory("compile") as home:
        (home / wire.PROGRAM_FILE).write_bytes(job.source)
        (home / wire.REQUEST_FILE).write_bytes(wire.encode(job.request))
        if isinstance(job.target, GpuTarget):
            lay_out_toolkit(home / _TOOLKIT)
        try:
            run_program(
                [sys.executable, "-P", "-m", "hespas.xla.compile_worker"],
                name=f"the compiler for {job.target.name}",
                directory=home,
                limits=limits,
                environment=_environment(job),
            )
        except ToolError as error:
            raise explained(error, home / LOG_NAME, limits) from error
        return _read(job, home, limits)


def _environment(job: Job) -> dict[str, str]:
    """Return what the compiling process sees: nothing of the user's own settings of XLA."""
    is_gpu = isinstance(job.target, GpuTarget)
    ours = {"xla_dump_to": wire.DUMP_DIRECTORY, "xla_gpu_cuda_data_dir": _TOOLKIT}
    flags = {**job.flags, **ours} if is_gpu else {}
    return {
        "XLA_FLAGS": " ".join(f"--{name}={value}" for name, value in flags.items()),
        "LIBTPU_INIT_ARGS": "",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_LOG_DIR": "disabled",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _read(job: Job, home: Path, limits: Limits) -> CompiledProgram:
    log = home / LOG_NAME
    try:
        answer = wire.decode_answer((home / wire.ANSWER_FILE).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ToolError("the compiler left no answer", location=str(log)) from error
    match answer:
        case wire.Refused():
            raise refusal(answer, log, limits)
        case wire.Compiled():
            return _result(job, answer, home)
        case _:
            assert_never(answer)


def _result(job: Job, answer: wire.Compiled, home: Path) -> CompiledProgram:
    text = (home / wire.TEXT_FILE).read_text()
    kernels, notes = _kernels(job, home, text)
    memory = answer.memory
    return CompiledProgram(
        name=job.name,
        target=job.target.name,
        topology=answer.topology,
        replicas=answer.replicas,
        partitions=answer.partitions,
        hlo_proto=(home / wire.PROTO_FILE).read_bytes(),
        hlo_text=text,
        kernels=kernels,
        memory=MemoryAnalysis(
            argument_bytes=memory.argument_bytes,
            output_bytes=memory.output_bytes,
            alias_bytes=memory.alias_bytes,
            temporary_bytes=memory.temporary_bytes,
            generated_code_bytes=memory.generated_code_bytes,
        ),
        flags=job.flags,
        versions=job.versions,
        notes=(*answer.notes, *notes, *absent_passes(job)),
        log=(home / LOG_NAME).read_text(errors="replace"),
    )


def _kernels(job: Job, home: Path, text: str) -> tuple[CompiledKernels | None, tuple[str, ...]]:
    """Return the kernels, and notes on the target; None, and why, where there are none."""
    if not isinstance(job.target, GpuTarget):
        return None, ("the kernels of a TPU are not readable",)
    try:
        return read_kernels(home / wire.DUMP_DIRECTORY, module_text=text), job.target.notes
    except UnsupportedError as error:
        return None, (*job.target.notes, f"no kernels: {error}")
