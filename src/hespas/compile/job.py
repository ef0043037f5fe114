"""A compilation to run: the program, and everything that decides its result, and that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import assert_never

from hespas.base.frozen import frozen
from hespas.compile.options import CompileOptions, given_gpu_flags, gpu_flags, tpu_flags
from hespas.compile.packages import compiler_versions
from hespas.compile.recipe import RecipeFlags
from hespas.compile.targets import GpuTarget, Target, TpuTarget
from hespas.errors import ConfigError, DeviceCountError, ProgramError
from hespas.program.kernels import CompiledKernels
from hespas.program.program import OverlapLimit
from hespas.xla.compile.messages import (
    Accelerator,
    CompileRequest,
    GpuHosts,
    MemoryAnalysis,
    TpuSlice,
)


@frozen
class CompiledProgram:
    """A program as the compiler of a target would run it.

    ``hlo_proto`` is a serialized ``HloModuleProto`` and ``hlo_text`` the same module as text;
    ``kernels`` is None if the target's kernels cannot be read, and ``notes`` say why. ``flags`` are
    the compiler's options as they were set, ``versions`` those of the packages that compiled,
    ``log`` the compiler's output. ``overlap`` is the scheduler's memory limit, if the scheduler
    counted more than that.
    """

    name: str
    target: str
    topology: str
    replicas: int
    partitions: int
    hlo_proto: bytes
    hlo_text: str
    kernels: CompiledKernels | None
    memory: MemoryAnalysis
    flags: Mapping[str, str]
    versions: Mapping[str, str]
    notes: tuple[str, ...]
    log: str
    overlap: OverlapLimit | None = None

    @property
    def device_count(self) -> int:
        """The number of replicas times partitions."""
        return self.replicas * self.partitions

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of a prediction from this program."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        compiled = (
            f"the program is as XLA optimises and schedules it for {self.target} ({versions}), "
            "which had no device to measure its choices on"
        )
        return (compiled, *self.notes)


_HLO = b"HloModule"


@frozen
class Layout:
    """The number and layout of devices, where requested.

    ``per_host`` is for GPUs, ``topology`` (the chips along each axis, as in ``4x4``) and ``slices``
    for TPUs.
    """

    devices: int | None = None
    per_host: int | None = None
    topology: str | None = None
    slices: int = 1

    def __post_init__(self) -> None:
        for count in (self.devices, self.per_host):
            if count is not None and count < 1:
                raise DeviceCountError(f"{count} devices are asked for", hint="give 1 or more")


ANY_LAYOUT = Layout()


@frozen
class Job:
    """A program with its target, flags, and the versions of the compiler.

    ``set_flags`` are the flags that options set, as opposed to defaults: they go before those of a
    ``recipe``, which `hespas.compile.compiler` adds.
    """

    source: bytes
    name: str
    target: Target
    request: CompileRequest
    flags: dict[str, str]
    versions: dict[str, str]
    set_flags: Mapping[str, str] = field(default_factory=dict[str, str])
    recipe: RecipeFlags | None = None


def job_of(
    source: bytes, *, name: str, target: Target, layout: Layout, options: CompileOptions
) -> Job:
    """Return the compilation of a program for a target.

    Raises `ExtraMissingError` without the target's compiler, `ToolError` for mixed versions,
    `ConfigError` for options that the target does not have, and `ProgramError` for HLO.
    """
    if source.lstrip().startswith(_HLO):
        raise ProgramError(
            "this is HLO, not StableHLO",
            location=name,
            hint="give the StableHLO that it comes from; a compiled program is taken as it is",
        )
    accelerator = accelerator_of(target, layout)
    versions = compiler_versions(target)
    is_gpu = isinstance(target, GpuTarget)
    flags = gpu_flags(options) if is_gpu else tpu_flags(options)
    set_flags = given_gpu_flags(options) if is_gpu else flags
    # A GPU's compiler reads flags from XLA_FLAGS; libtpu reads its own only as overrides.
    request = CompileRequest(
        name=name,
        accelerator=accelerator,
        devices=layout.devices,
        overrides={} if is_gpu else flags,
    )
    return Job(
        source=source,
        name=name,
        target=target,
        request=request,
        flags=flags,
        versions=versions,
        set_flags=set_flags,
        recipe=options.recipe,
    )


def accelerator_of(target: Target, layout: Layout = ANY_LAYOUT) -> Accelerator:
    """Return a target's devices in a layout.

    Raises `ConfigError` for a layout of the other family.
    """
    match target:
        case GpuTarget():
            if layout.topology is not None:
                raise ConfigError("a topology is for TPUs", hint="give the devices per host")
            per_host = layout.per_host or target.devices_per_host
            return GpuHosts(description=target.description, devices_per_host=per_host)
        case TpuTarget():
            if layout.per_host is not None:
                raise ConfigError("devices per host are for GPUs", hint="give a topology")
            return TpuSlice(
                generation=target.generation, topology=layout.topology, slices=layout.slices
            )
        case _:
            assert_never(target)
