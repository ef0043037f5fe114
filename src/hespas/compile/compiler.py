"""Compile a program for a target, in a process of its own, or take it from the cache."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import msgspec

from hespas import errors
from hespas.compile.compiled import CompiledProgram, MemoryAnalysis
from hespas.compile.options import DEFAULT_OPTIONS, CompileOptions, gpu_flags, tpu_flags
from hespas.compile.targets import GpuTarget, Target, TpuTarget, find_target
from hespas.compile.versions import compiler_versions
from hespas.errors import ConfigError, HespasError, ToolError
from hespas.program.kernels import CompiledKernels
from hespas.tools.process import LOG_NAME, Limits, run_program
from hespas.xla import compile_wire as wire

DEFAULT_LIMITS = Limits(time_s=3600, memory_bytes=32 * 2**30)
"""An hour, and 32 GiB of addresses; the largest program tried took a fifth of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All that decides what comes out of a compilation, the program and the versions included."""

    source: bytes
    name: str
    target: Target
    request: wire.CompileRequest
    flags: dict[str, str]
    versions: dict[str, str]


def compile_program(
    source: bytes,
    *,
    name: str,
    target: str,
    devices: int | None = None,
    devices_per_host: int | None = None,
    topology: str | None = None,
    options: CompileOptions = DEFAULT_OPTIONS,
    limits: Limits = DEFAULT_LIMITS,
) -> CompiledProgram:
    """Compile StableHLO for a target that need not be there.

    ``source`` is text, bytecode or a portable artifact, before or after partitioning, and
    ``name`` what messages call it. ``devices`` is needed where the program doesn't say how many;
    ``devices_per_host`` is for GPUs and ``topology`` (``4x4``) for TPUs. Raises
    `ExtraMissingError` without the target's compiler, `HardwareError` for an unknown target,
    `DeviceCountError`, `ProgramError` and `UnsupportedError` for programs that don't fit, and
    `ToolError`, naming the kept log, where the compiler fails or exceeds ``limits``.
    """
    job = job_of(
        source,
        name=name,
        target=find_target(target),
        devices=devices,
        devices_per_host=devices_per_host,
        topology=topology,
        options=options,
    )
    return run_job(job, limits)


def job_of(
    source: bytes,
    *,
    name: str,
    target: Target,
    devices: int | None,
    devices_per_host: int | None,
    topology: str | None,
    options: CompileOptions,
) -> Job:
    """Return what is to be done; raises what `compile_program` raises before it compiles."""
    versions = compiler_versions(target)
    place: wire.GpuPlace | wire.TpuPlace
    match target:
        case GpuTarget():
            if topology is not None:
                raise ConfigError("a topology is for TPUs", mend="give the devices per host")
            per_host = devices_per_host or target.devices_per_host
            place = wire.GpuPlace(description=target.description, devices_per_host=per_host)
            flags, overrides = gpu_flags(options), {}
        case TpuTarget():
            if devices_per_host is not None:
                raise ConfigError("devices per host are for GPUs", mend="give a topology")
            place = wire.TpuPlace(generation=target.generation, topology=topology)
            flags = tpu_flags(options)
            overrides = flags
        case _:
            assert_never(target)
    request = wire.CompileRequest(name=name, place=place, devices=devices, overrides=overrides)
    return Job(
        source=source, name=name, target=target, request=request, flags=flags, versions=versions
    )


def run_job(job: Job, limits: Limits) -> CompiledProgram:
    """Compile, in a process of its own; its directory stays where it fails."""
    home = Path(tempfile.mkdtemp(prefix="hespas-compile-"))
    (home / wire.PROGRAM_FILE).write_bytes(job.source)
    (home / wire.REQUEST_FILE).write_bytes(wire.encode(job.request))
    run_program(
        [sys.executable, "-m", "hespas.xla.compile_worker"],
        name=f"the compiler for {job.target.name}",
        directory=home,
        limits=limits,
        environment=_environment(job),
    )
    result = _read(job, home)
    shutil.rmtree(home, ignore_errors=True)
    return result


def _environment(job: Job) -> dict[str, str]:
    """Return what the compiling process sees: nothing of the user's own settings of XLA."""
    is_gpu = isinstance(job.target, GpuTarget)
    flags = {**job.flags, "xla_dump_to": wire.DUMP_DIRECTORY} if is_gpu else {}
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


def _read(job: Job, home: Path) -> CompiledProgram:
    log = home / LOG_NAME
    try:
        answer = wire.decode_answer((home / wire.ANSWER_FILE).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ToolError("the compiler left no answer", place=str(log)) from error
    match answer:
        case wire.Refused():
            raise _refusal(answer, log)
        case wire.Compiled():
            return _result(job, answer, home)
        case _:
            assert_never(answer)


def _refusal(refused: wire.Refused, log: Path) -> HespasError:
    kind: type[HespasError] = getattr(errors, refused.error)
    place = refused.place
    if kind is ToolError:
        place = f"{place}: {log}" if place else str(log)
    else:
        shutil.rmtree(log.parent, ignore_errors=True)
    return kind(refused.message, place=place, mend=refused.mend)


def _result(job: Job, answer: wire.Compiled, home: Path) -> CompiledProgram:
    text = (home / wire.TEXT_FILE).read_text()
    kernels: CompiledKernels | None = None
    target_notes = job.target.notes if isinstance(job.target, GpuTarget) else ()
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
        notes=(*target_notes, *answer.notes),
        log=(home / LOG_NAME).read_text(errors="replace"),
    )
