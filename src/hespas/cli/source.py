"""The program as the stages get it: read from its file, and compiled first where that is asked."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import perf_counter

from hespas.cli.settings import Settings
from hespas.errors import ConfigError, HespasError
from hespas.frontend.load import read_source
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
    content = read_source(path)
    if not settings.optimise:
        return Source(content=content, name=str(path))
    return _compiled(settings, system, content)


def _compiled(settings: Settings, system: System | None, content: bytes) -> Source:
    # Few commands compile: the others need not wait for what it takes.
    from hespas.cli.compiling import cache_of  # noqa: PLC0415
    from hespas.compile.for_node import compile_for_node, compiled_notes  # noqa: PLC0415

    path, flags = settings.workload, settings.flags
    if flags.node is None:
        raise ConfigError("--optimise compiles for a node", mend="give --node, a preset's name")
    is_kept = not (flags.disable_cache or flags.in_memory_only_cache)
    start_s = perf_counter()
    try:
        compiled = compile_for_node(
            content,
            name=str(path),
            node=flags.node,
            system=system,
            devices=settings.devices,
            options=settings.compile_options,
            cache=cache_of(directory=flags.cache_dir, disabled=not is_kept),
        )
    except HespasError as error:
        if not error.place:
            error.place = str(path)
        raise
    log.info("compiled for %s in %.3f s", compiled.target, perf_counter() - start_s)
    return Source(
        content=compiled.hlo_proto,
        name=str(path),
        notes=compiled_notes(compiled),
        kernels=compiled.kernels,
    )
