"""Systems of any number of devices of a part: ``32xH100_80GB``, ``256xTPUv5e``.

GPUs stand in nodes, as many as the largest node of the part's presets has; the links in the node
and between nodes are those of the presets. TPUs make a slice, of the shape that libtpu's compiler
takes for the number. The figures of links are the presets': there are none here.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TypeVar

from hespas.errors import DeviceCountError, HardwareError, option
from hespas.hardware.interconnect import Dimensions
from hespas.hardware.parts import family_of
from hespas.hardware.presets import (
    load_device,
    load_system,
    node_info,
    node_name,
    preset_sizes,
    system_names,
)
from hespas.hardware.system import System
from hespas.limits import MOST_DEVICES, MOST_DIGITS
from hespas.xla.compile.topology import TPU_GENERATIONS, TPU_NAMES, tpu_topology_shape

_T = TypeVar("_T")
_SIZED = re.compile(r"(\d+)[xX](\w.*)")
_MOST_CHIPS = {"v4": 4096, "v5e": 256, "v5p": 8960, "v6e": 256, "tpu7x": 9216}
"""Chips of a pod, by libtpu's name of the generation. Source: Google Cloud TPU documentation."""


def find_system(name_or_path: str | Path) -> System:
    """Return a system: ``COUNTxPART``, or what `hespas.hardware.presets.load_system` takes.

    Raises `HardwareError` for a part that is unknown or whose links are, `DeviceCountError` for a
    number of devices that doesn't fill nodes or make a slice.

    >>> system = find_system("512xH100_80GB")
    >>> [dimension.npus_count for dimension in system.dimensions]
    [8, 64]
    >>> [dimension.npus_count for dimension in find_system("64xTPUv5e").dimensions]
    [8, 8]
    """
    sized = _SIZED.fullmatch(str(name_or_path))
    if sized is None or isinstance(name_or_path, Path) or Path(name_or_path).exists():
        return load_system(name_or_path)
    digits, part = sized[1], node_name(sized[2])
    if len(digits) > MOST_DIGITS or not 1 <= int(digits) <= MOST_DEVICES:
        raise DeviceCountError(
            f"the device count is {digits[:60]}", hint=f"give 1 to {MOST_DEVICES}"
        )
    count = int(digits)
    generation = TPU_NAMES.get((node_info(part).target or "").casefold())
    system = _nodes(part, count) if generation is None else _slice(part, count, generation)
    return replace(system, name=f"{count}x{part}", part=part)


def _presets(part: str) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the presets of a part and of those that differ in their memory only."""
    own = [name for name in system_names() if name.startswith(f"{part}_")]
    alike = [name for name in system_names() if name.startswith(f"{family_of(part)}_")]
    return {name: preset_sizes(name) for name in dict.fromkeys([*own, *alike])}


def _nodes(part: str, count: int) -> System:
    """Return full nodes of a part's GPUs, or a part of one node."""
    presets = _presets(part)
    nodes = {name: prod(sizes) for name, sizes in presets.items() if len(sizes) == 1}
    if not nodes:
        raise _no_links(part)
    size = max(nodes.values())
    if count <= size:
        as_many = count if count in nodes.values() else size
        name = next(name for name, devices in nodes.items() if devices == as_many)
        return _of_part(load_system(name), part, (count,))
    clusters = [name for name, each in presets.items() if each[:1] == (size,) and len(each) == 2]
    if not clusters:
        raise HardwareError(
            f"how nodes of {part} are connected is not known: one has {size} devices",
            hint=f"give {size} or fewer, or {_DESCRIBE}",
        )
    if count % size:
        below, above = count // size * size, -(-count // size) * size
        raise DeviceCountError(
            f"{count} devices do not fill nodes of {size} {part}", hint=f"give {below} or {above}"
        )
    return _of_part(load_system(clusters[0]), part, (size, count // size))


def _of_part(preset: System, part: str, sizes: tuple[int, ...]) -> System:
    """Return a system whose reductions read the memory of ``part``, and a note on its links."""
    system = _resized(preset, sizes)
    size, *counts = sizes
    nodes = f"{counts[0]} nodes of {size}" if counts else f"one node of {size}"
    note = f"cluster: {nodes} {part}, linked as in the preset {preset.name}"
    if counts and counts[0] > preset.dimensions[1].npus_count:
        note += ", with one switch a rail however many nodes there are"
    if preset.part != part:
        bandwidth = load_device(part).memory_bandwidth_bytes_per_s
        system = replace(system, local_memory_bandwidth_bytes_per_s=bandwidth)
    return replace(system, assumptions=(note,))


def _slice(part: str, count: int, generation: str) -> System:
    """Return a slice of TPUs, its axes as rings."""
    chips = TPU_GENERATIONS[generation]
    on_chip = (chips.devices_per_chip,) if chips.devices_per_chip > 1 else ()
    presets = _presets(part)
    every = {name: prod(sizes) for name, sizes in presets.items()}
    slices = {name: prod(each) for name, each in presets.items() if _is_slice(each, on_chip)}
    if not slices:
        exact = [name for name, devices in every.items() if devices == count]
        if exact:
            return load_system(exact[0])
        known = " or ".join(str(devices) for devices in every.values())
        raise HardwareError(
            f"how {count} {part} are connected is not known",
            hint=f"give {known}, or {_DESCRIBE}",
        )
    most = _MOST_CHIPS[generation] * chips.devices_per_chip
    if not _fits(count, generation) or count > most:
        sizes = [2**power for power in range(most.bit_length()) if _fits(2**power, generation)]
        near = [size for size in sizes if size <= most]
        below = [str(size) for size in near if size < count][-1:]
        above = [str(size) for size in near if size > count][:1]
        raise DeviceCountError(
            f"no slice of {part} has {count} devices", hint=f"give {' or '.join(below + above)}"
        )
    shape = tuple(side for side in tpu_topology_shape(count, generation=generation) if side > 1)
    preset = load_system(_nearest(slices, count))
    axes = "x".join(map(str, shape or (1,)))
    note = (
        f"cluster: a slice of {axes} chips of {part}, linked as in the preset {preset.name}; "
        "every axis is a ring"
    )
    return replace(_resized(preset, (*on_chip, *shape) or (1,)), assumptions=(note,))


def _nearest(presets: dict[str, int], count: int) -> str:
    """Return the largest preset of no more devices, or else the smallest one."""
    smaller = [name for name, devices in presets.items() if devices <= count]
    if smaller:
        return max(smaller, key=presets.__getitem__)
    return min(presets, key=presets.__getitem__)


def _is_slice(sizes: tuple[int, ...], on_chip: tuple[int, ...]) -> bool:
    """Return whether a preset's dimensions are the devices of a chip, and the axes of a torus."""
    return len(sizes) > len(on_chip) and sizes[: len(on_chip)] == on_chip


def _fits(count: int, generation: str) -> bool:
    try:
        shape = tpu_topology_shape(count, generation=generation)
    except DeviceCountError:
        return False
    return prod(shape) * TPU_GENERATIONS[generation].devices_per_chip == count


def _resized(system: System, sizes: tuple[int, ...]) -> System:
    """Return a system with other sizes; dimensions that the other lacks are like its last one."""
    many = len(sizes)
    interconnect = system.interconnect
    if interconnect is not None and isinstance(interconnect.fabric, Dimensions):
        links = _as_many(interconnect.fabric.dimensions, many)
        fabric = Dimensions(
            dimensions=tuple(
                replace(each, size=size) for each, size in zip(links, sizes, strict=True)
            )
        )
        algorithms = {
            kind: named if len(named) == 1 else _as_many(named, many)
            for kind, named in interconnect.algorithms.items()
        }
        interconnect = replace(interconnect, fabric=fabric, algorithms=algorithms)
    return replace(
        system,
        dimensions=tuple(
            replace(each, npus_count=size)
            for each, size in zip(_as_many(system.dimensions, many), sizes, strict=True)
        ),
        implementations={
            kind: _as_many(named, many) for kind, named in system.implementations.items()
        },
        interconnect=interconnect,
    )


def _as_many(values: tuple[_T, ...], many: int) -> tuple[_T, ...]:
    return (*values[:many], *values[-1:] * (many - len(values)))


_DESCRIBE = f"describe the network in a directory and give it with {option('system')}"


def _no_links(part: str) -> HardwareError:
    return HardwareError(f"how several {part} are connected is not known", hint=_DESCRIBE)
