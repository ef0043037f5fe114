"""Compile a program for the node and the system of a prediction."""

from __future__ import annotations

from math import prod

from hespas.compile.cache import CompiledCache
from hespas.compile.compiled import CompiledProgram
from hespas.compile.compiler import compile_program
from hespas.compile.job import Layout, job_of
from hespas.compile.options import DEFAULT_OPTIONS, CompileOptions
from hespas.compile.targets import TpuTarget, find_target
from hespas.errors import DeviceCountError
from hespas.hardware.system import System
from hespas.xla.compile.topology import TPU_GENERATIONS, check_topology


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
