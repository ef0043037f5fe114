"""Compile a program for the node and the system on which it is to be predicted."""

from __future__ import annotations

from hespas.compile.cache import CompiledCache
from hespas.compile.compiled import CompiledProgram
from hespas.compile.compiler import compile_program
from hespas.compile.job import Layout
from hespas.compile.options import DEFAULT_OPTIONS, CompileOptions
from hespas.hardware.system import System


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
    """Compile StableHLO for the part that ``node``, a preset's name, is.

    ``devices`` goes before the number of devices of the ``system``; in a system of several
    dimensions those of the first one stand in a host. Raises what
    `hespas.compile.compiler.compile_program` raises.
    """
    layout = _layout(system, devices)
    return compile_program(
        source, name=name, target=node, layout=layout, options=options, cache=cache
    )


def _layout(system: System | None, devices: int | None) -> Layout:
    if system is None:
        return Layout(devices=devices)
    in_host = system.dimensions[0].npus_count if len(system.dimensions) > 1 else None
    return Layout(devices=devices or system.device_count, per_host=in_host)


def compiled_notes(compiled: CompiledProgram) -> tuple[str, ...]:
    """Return what a prediction has to say of a compiled program."""
    versions = ", ".join(f"{name} {version}" for name, version in compiled.versions.items())
    told = (
        f"the program is as XLA optimises and schedules it for {compiled.target} ({versions}), "
        "which had no device to measure its choices on"
    )
    return (told, *compiled.notes)
