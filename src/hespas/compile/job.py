"""A compilation that is to be done: the program, and all that decides what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from hespas.compile.options import CompileOptions, gpu_flags, tpu_flags
from hespas.compile.targets import GpuTarget, Target, TpuTarget
from hespas.compile.versions import compiler_versions
from hespas.errors import ConfigError, DeviceCountError, ProgramError
from hespas.xla import compile_wire as wire

_HLO = b"HloModule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How many devices, and how they stand; None is what the program or the target says.

    ``per_host`` is for GPUs, ``topology`` (the chips along each axis, as in ``4x4``) for TPUs.
    """

    devices: int | None = None
    per_host: int | None = None
    topology: str | None = None

    def __post_init__(self) -> None:
        for count in (self.devices, self.per_host):
            if count is not None and count < 1:
                raise DeviceCountError(f"{count} devices are asked for", hint="give 1 or more")


ANY_LAYOUT = Layout()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A program with its target, its options as flags, and the versions that will compile it."""

    source: bytes
    name: str
    target: Target
    request: wire.CompileRequest
    flags: dict[str, str]
    versions: dict[str, str]


def job_of(
    source: bytes, *, name: str, target: Target, layout: Layout, options: CompileOptions
) -> Job:
    """Return what is to be done.

    Raises `ExtraMissingError` without the target's compiler, `ToolError` for mixed versions and
    `ConfigError` for options that the target has not, `ProgramError` for HLO.
    """
    if source.lstrip().startswith(_HLO):
        raise ProgramError(
            "this is HLO, not StableHLO",
            location=name,
            hint="give the StableHLO that it comes from; what is compiled needs no --optimise",
        )
    location = _location(target, layout)
    versions = compiler_versions(target)
    is_gpu = isinstance(target, GpuTarget)
    flags = gpu_flags(options) if is_gpu else tpu_flags(options)
    # A GPU's come by XLA_FLAGS; libtpu reads its own only as overrides.
    request = wire.CompileRequest(
        name=name, location=location, devices=layout.devices, overrides={} if is_gpu else flags
    )
    return Job(
        source=source, name=name, target=target, request=request, flags=flags, versions=versions
    )


def place_of(target: Target) -> wire.GpuPlace | wire.TpuPlace:
    """Return where a program runs that nothing more is known of."""
    return _location(target, Layout())


def _location(target: Target, layout: Layout) -> wire.GpuPlace | wire.TpuPlace:
    match target:
        case GpuTarget():
            if layout.topology is not None:
                raise ConfigError("a topology is for TPUs", hint="give the devices per host")
            per_host = layout.per_host or target.devices_per_host
            return wire.GpuPlace(description=target.description, devices_per_host=per_host)
        case TpuTarget():
            if layout.per_host is not None:
                raise ConfigError("devices per host are for GPUs", hint="give a topology")
            return wire.TpuPlace(generation=target.generation, topology=layout.topology)
        case _:
            assert_never(target)
