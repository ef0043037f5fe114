"""The program as the stages get it: read from its file, and compiled first where that is asked."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from msgspec import DecodeError
from msgspec.structs import replace

from hespas.cli.optimising import compile_options_of, is_optimised
from hespas.cli.settings import Settings
from hespas.errors import ConfigError, HespasError, ProgramError
from hespas.frontend.load import read_source
from hespas.hardware.system import System
from hespas.program import known_kernels
from hespas.program.kernels import CompiledKernels, decode_kernels
from hespas.program.program import Program

log = logging.getLogger("hespas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A program as bytes, with the name that messages give it.

    ``notes`` say what was done to it, ``kernels`` what a compiler wrote for it, and
    ``kernels_file`` where that was read, if it was.
    """

    content: bytes
    name: str
    notes: tuple[str, ...] = ()
    kernels: CompiledKernels | None = None
    kernels_file: Path | None = None


def source_of(settings: Settings, system: System | None) -> Source:
    """Read the program's file, and compile it for the node where ``--optimise`` asks for it.

    Raises `ProgramError` for a file that can't be read, and what
    `hespas.compile.compiler.compile_program` raises.
    """
    path = settings.workload
    content = read_source(path)
    file = settings.flags.kernels
    if not is_optimised(settings.flags):
        kernels = None if file is None else read_kernels(file)
        return Source(content=content, name=str(path), kernels=kernels, kernels_file=file)
    if file is not None:
        raise ConfigError("--kernels has no effect with --optimise", hint="drop one of them")
    return _compiled(settings, system, content)


def with_kernels(program: Program, source: Source) -> Program:
    """Return the program with its kernels; `ConfigError` for one that has none."""
    if source.kernels is None:
        return program
    if not program.is_scheduled:
        raise ConfigError(
            "--kernels has no effect on a program that is not compiled",
            location=source.name,
            hint="give the compiled one, or --optimise in the place of --kernels",
        )
    if source.kernels_file is None:
        return replace(program, kernels=source.kernels)
    return known_kernels.with_kernels(program, source.kernels, location=str(source.kernels_file))


def read_kernels(file: Path) -> CompiledKernels:
    """Return what ``hespas compile --kernels`` wrote; `ProgramError` for anything else."""
    try:
        return decode_kernels(file.read_bytes())
    except OSError as error:
        raise ProgramError(f"cannot be read: {error.strerror}", location=str(file)) from error
    except DecodeError as error:
        raise ProgramError(
            f"holds no kernels: {error}",
            location=str(file),
            hint="give a file of hespas compile --kernels",
        ) from error


def _compiled(settings: Settings, system: System | None, content: bytes) -> Source:
    # Few commands compile: the others need not wait for what it takes.
    from hespas.cli.compiling import cache_of  # noqa: PLC0415
    from hespas.compile.for_node import compile_for_node  # noqa: PLC0415

    path, flags = settings.workload, settings.flags
    if flags.node is None:
        raise ConfigError("--optimise compiles for a node", hint="give --node, a preset's name")
    is_kept = not (flags.disable_cache or flags.in_memory_only_cache)
    start_s = perf_counter()
    try:
        compiled = compile_for_node(
            content,
            name=str(path),
            node=flags.node,
            system=system,
            devices=settings.devices,
            options=compile_options_of(flags),
            cache=cache_of(directory=flags.cache_dir, disabled=not is_kept),
        )
    except HespasError as error:
        if not error.location:
            error.location = str(path)
        raise
    log.info("compiled for %s in %.3f s", compiled.target, perf_counter() - start_s)
    return Source(
        content=compiled.hlo_proto,
        name=str(path),
        notes=compiled.assumptions,
        kernels=compiled.kernels,
    )
