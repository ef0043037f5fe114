"""The program as the stages get it: read from its file, and compiled first where that is asked."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from hespas.cli.compiling import cache_of
from hespas.cli.settings import Settings
from hespas.compile.cache import CompiledCache
from hespas.compile.compiled import CompiledProgram
from hespas.compile.compiler import compile_program
from hespas.compile.job import Layout
from hespas.errors import ConfigError, HespasError, ProgramError
from hespas.hardware.system import System
from hespas.program.kernels import CompiledKernels

log = logging.getLogger("hespas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A program as bytes, with the name that messages give it.

    ``notes`` say what was done to it, ``kernels`` what a compiler wrote for it.
    """

    content: bytes
    name: str
    notes: tuple[str, ...] = ()
    kernels: CompiledKernels | None = None


def source_of(settings: Settings, system: System | None) -> Source:
    """Read the program's file, and compile it for the node where ``--optimise`` asks for it.

    Raises `ProgramError` for a file that can't be read, and what
    `hespas.compile.compiler.compile_program` raises.
    """
    path = settings.workload
    content = _content(path)
    if not settings.optimise:
        return Source(content=content, name=str(path))
    node = settings.flags.node
    if node is None:
        raise ConfigError("--optimise compiles for a node", mend="give --node, a preset's name")
    start_s = perf_counter()
    try:
        compiled = compile_program(
            content,
            name=str(path),
            target=node,
            layout=_layout(settings, system),
            options=settings.compile_options,
            cache=_cache(settings),
        )
    except HespasError as error:
        if not error.place:
            error.place = str(path)
        raise
    log.info("compiled for %s in %.3f s", compiled.target, perf_counter() - start_s)
    return Source(
        content=compiled.hlo_proto,
        name=str(path),
        notes=(_told(compiled), *compiled.notes),
        kernels=compiled.kernels,
    )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ProgramError("no such file", place=str(path), mend="check the path") from error
    except OSError as error:
        raise ProgramError(f"cannot be read: {error.strerror}", place=str(path)) from error


def _layout(settings: Settings, system: System | None) -> Layout:
    """Return how many devices there are, and how many of them stand together in a host.

    A system of several dimensions has its hosts in the first one.
    """
    if system is None:
        return Layout(devices=settings.devices)
    hosts = system.dimensions[0].npus_count if len(system.dimensions) > 1 else None
    return Layout(devices=settings.devices or system.device_count, per_host=hosts)


def _cache(settings: Settings) -> CompiledCache | None:
    flags = settings.flags
    disabled = bool(flags.disable_cache or flags.in_memory_only_cache)
    return cache_of(directory=flags.cache_dir, disabled=disabled)


def _told(compiled: CompiledProgram) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in compiled.versions.items())
    return (
        f"the program is as XLA optimises and schedules it for {compiled.target} ({versions}), "
        "which had no device to measure its choices on"
    )
