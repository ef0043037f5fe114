"""Systems of any size of a part.

Examples are ``32xH100_80GB``, ``256xTPUv5e`` and ``TPUv6e_2x4``. GPUs stand in nodes, as many as
the largest node of the part's presets has; the links in the node and between nodes are those of the
presets. Of each NVL72 rack 72 devices are used, or 64 where the count is a multiple of 64 alone.
TPUs make a slice, of the shape that libtpu's compiler takes for the number, or of a named one;
``4x256xTPUv5e`` are four slices. The figures of links are the presets' and the nodes': there are
none here.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TypeVar

from hespas.base.figures import MOST_DEVICES, MOST_DIGITS
from hespas.errors import DeviceCountError, HardwareError, option
from hespas.hardware.interconnect import Dimension, Shape, dimension_of, slice_network
from hespas.hardware.presets import (
    device_names,
    family_of,
    load_device,
    load_system,
    node_info,
    node_name,
    preset_sizes,
    system_names,
)
from hespas.hardware.system import System
from hespas.xla.compile.topology import TPU_GENERATIONS, TPU_NAMES, tpu_topology_shape

_T = TypeVar("_T")
SIZED = re.compile(r"(\d+)[xX](\w.*)")
"""COUNTxPART."""
_SHAPED = re.compile(r"(\w+)_(\d{1,4}(?:x\d{1,4})+)")
_CUBE = 4
_MOST_IN_NODE = 16
_MOST_CHIPS = {"v4": 4096, "v5e": 256, "v5p": 8960, "v6e": 256, "tpu7x": 9216}
"""Chips of a pod, by libtpu's name of the generation. Source: Google Cloud TPU documentation."""


def find_system(name_or_path: str | Path) -> System:
    """Return the system of a name or path.

    Names are ``COUNTxPART``, ``PART_SHAPE``, ``SLICESx`` one of both, and those that
    `hespas.hardware.presets.load_system` takes. Raises `DeviceCountError` for a number of devices
    that doesn't fill nodes or make a slice.

    >>> [dimension.size for dimension in find_system("512xH100_80GB").dimensions]
    [8, 64]
    >>> [dimension.size for dimension in find_system("512xGB200_186GB").dimensions]
    [64, 8]
    >>> [dimension.size for dimension in find_system("64xTPUv5e").dimensions]
    [8, 8]
    >>> [dimension.size for dimension in find_system("4xTPUv6e_2x4").dimensions]
    [2, 4, 4]
    """
    if isinstance(name_or_path, Path) or Path(name_or_path).exists():
        return load_system(name_or_path)
    sized = SIZED.fullmatch(name_or_path)
    if sized is None:
        is_preset = name_or_path in system_names()
        return (None if is_preset else _find_shaped(name_or_path)) or load_system(name_or_path)
    digits = sized[1]
    if len(digits) > MOST_DIGITS or not 1 <= int(digits) <= MOST_DEVICES:
        raise DeviceCountError(
            f"the device count is {digits[:60]}", hint=f"give 1 to {MOST_DEVICES}"
        )
    count = int(digits)
    if names_system(sized[2]):
        return _joined_slices(name_or_path, count, find_system(sized[2]))
    part = node_name(sized[2])
    generation = TPU_NAMES.get((node_info(part).target or "").casefold())
    system = (
        _gpu_nodes(part, count) if generation is None else _slice_of_count(part, count, generation)
    )
    return replace(system, name=f"{count}x{part}", part=part)


def names_system(name: str) -> bool:
    """Return whether a name has a system's form.

    >>> names_system("32xH100_80GB"), names_system("TPUv6e_2x4"), names_system("TPUv6e")
    (True, True, False)
    """
    return bool(SIZED.fullmatch(name) or _SHAPED.fullmatch(name)) or name in system_names()


def _presets(part: str) -> dict[str, tuple[int, ...]]:
    """Return the preset sizes of a part's family, by name."""
    own = [name for name in system_names() if _part_of(name) == part]
    family = [name for name in system_names() if family_of(_part_of(name)) == family_of(part)]
    return {name: preset_sizes(name) for name in dict.fromkeys([*own, *family])}


def _part_of(system: str) -> str:
    """Return the part whose name begins that of a system preset."""
    return max((name for name in device_names() if system.startswith(f"{name}_")), key=len)


def _gpu_nodes(part: str, count: int) -> System:
    """Return nodes of a part's GPUs, or some of one."""
    presets = _presets(part)
    nodes = {name: prod(sizes) for name, sizes in presets.items() if len(sizes) == 1}
    if not nodes:
        raise _no_links(part)
    size = max(nodes.values())
    if count <= size:
        preset_size = count if count in nodes.values() else size
        name = next(name for name, devices in nodes.items() if devices == preset_size)
        return _resized_preset(load_system(name), part, (count,))
    clusters = [name for name, sizes in presets.items() if sizes[:1] == (size,) and len(sizes) == 2]
    if not clusters:
        raise HardwareError(
            f"how nodes of {part} are connected is not known: one has {size} devices",
            hint=f"give {size} or fewer, or {_DESCRIBE}",
        )
    node_devices = _node_devices(part, count, size)
    return _resized_preset(load_system(clusters[0]), part, (node_devices, count // node_devices))


def _node_devices(part: str, count: int, size: int) -> int:
    """Return the devices used per node, all or a power."""
    uses = dict.fromkeys((size, 1 << (size.bit_length() - 1)))
    for node_devices in uses:
        if count % node_devices == 0:
            return node_devices
    lower = max(count // node_devices * node_devices for node_devices in uses)
    higher = min(-(-count // node_devices) * node_devices for node_devices in uses)
    raise DeviceCountError(
        f"{count} devices do not fill {_enclosure(size)}s of {' or '.join(map(str, uses))} {part}",
        hint=f"give {lower} or {higher}",
    )


def _enclosure(size: int) -> str:
    return "node" if size <= _MOST_IN_NODE else "rack"


def _resized_preset(preset: System, part: str, sizes: tuple[int, ...]) -> System:
    """Return a preset resized for ``part``, with a note."""
    system = _resized(preset, sizes)
    size, *counts = sizes
    node_size = preset.dimensions[0].size
    noun = _enclosure(node_size)
    nodes = f"{counts[0]} {noun}s of {size}" if counts else f"one {noun} of {size}"
    note = f"cluster: {nodes} {part}"
    if counts and size < node_size:
        note += f" ({size} of the {node_size} in each)"
    note += f", linked as in the preset {preset.name}"
    if preset.interconnect is not None:
        note += f": {preset.interconnect.source.partition(';')[0]}"
    if counts and counts[0] > preset.dimensions[1].size:
        note += f", with one switch a rail however many {noun}s there are"
    if preset.part != part:
        bandwidth = load_device(part).memory_bandwidth_bytes_per_s
        system = replace(system, local_memory_bandwidth_bytes_per_s=bandwidth)
    return replace(system, assumptions=(note,))


def _slice_of_count(part: str, count: int, generation: str) -> System:
    if node_info(part).slice is None:
        presets = {name: prod(sizes) for name, sizes in _presets(part).items()}
        for name, devices in presets.items():
            if devices == count:
                return load_system(name)
        raise HardwareError(
            f"how {count} {part} are connected is not known",
            hint=f"give {' or '.join(map(str, presets.values()))}, or {_DESCRIBE}",
        )
    most_devices = _MOST_CHIPS[generation] * TPU_GENERATIONS[generation].devices_per_chip
    shape = _shape_of(count, generation)
    if shape is None or count > most_devices:
        powers = [2**power for power in range(most_devices.bit_length())]
        sizes = [size for size in powers if _shape_of(size, generation) is not None]
        nearest = [size for size in sizes if size < count][-1:]
        nearest += [size for size in sizes if size > count][:1]
        hint = f"give {' or '.join(map(str, nearest))}"
        if nearest[-1] < count:
            slice_size = next(size for size in reversed(sizes) if count % size == 0)
            hint += f", or several slices: {count // slice_size}x{slice_size}x{part}"
        raise DeviceCountError(f"no slice of {part} has {count} devices", hint=hint)
    return _slice_of_shape(part, shape, generation)


def _slice_of_shape(part: str, sides: tuple[int, ...], generation: str) -> System:
    described = node_info(part).slice
    if described is None:
        raise _no_links(part)
    on_chip = TPU_GENERATIONS[generation].devices_per_chip
    preset = load_system(_nearest_slice(part, on_chip, prod(sides) * on_chip))
    sizes = (*((on_chip,) if on_chip > 1 else ()), *[side for side in sides if side > 1])
    system = replace(
        _resized(replace(preset, interconnect=None), sizes or (1,)),
        interconnect=slice_network(described, sides, name=part, on_chip=on_chip),
    )
    shown = [
        f"{side} in a {shape.value}"
        for side, shape in zip(sides, described.axis_shapes(sides), strict=True)
        if side > 1
    ]
    note = f"cluster: a slice of {'x'.join(map(str, sides))} chips of {part}"
    if shown:
        note += f": along its axes {', '.join(shown)}"
    return replace(system, assumptions=(note,))


def _find_shaped(name: str) -> System | None:
    """Return the slice of a name like ``TPUv6e_2x4``, if any."""
    match = _SHAPED.fullmatch(name)
    if match is None or match[1] not in device_names():
        return None
    part = match[1]
    generation = TPU_NAMES.get((node_info(part).target or "").casefold())
    if generation is None:
        return None
    if node_info(part).slice is None:
        raise _no_links(part)
    axes, sides = TPU_GENERATIONS[generation].dimensions, tuple(map(int, match[2].split("x")))
    if len(sides) != axes:
        shown = "x".join(["4"] * axes)
        raise HardwareError(
            f"{name} has {len(sides)} axes, and a slice of {part} {axes}",
            hint=f"give one as {part}_{shown}",
        )
    if prod(sides) > _MOST_CHIPS[generation] or not all(
        side in {1, 2} or (side > 0 and side % _CUBE == 0) for side in sides
    ):
        raise DeviceCountError(
            f"no slice of {part} has the shape {match[2]}",
            hint=f"give sides of 1, 2 or multiples of 4, and at most {_MOST_CHIPS[generation]} "
            "chips",
        )
    return replace(_slice_of_shape(part, sides, generation), name=name, part=part)


def _joined_slices(name: str, count: int, inner: System) -> System:
    """Return several slices, joined by the data centre's network."""
    part = inner.part
    described = None if part is None else node_info(part).slice
    dimensions = () if inner.interconnect is None else inner.interconnect.dimensions
    if described is None or part is None or not dimensions or inner.slices > 1:
        raise HardwareError(
            f"{inner.name} is no slice of TPUs whose network to other slices is known",
            hint="give the number of all devices and the part, as in 32xH100_80GB",
        )
    if count * inner.device_count > MOST_DEVICES:
        raise DeviceCountError(
            f"the device count is {count * inner.device_count}", hint=f"give 1 to {MOST_DEVICES}"
        )
    if count == 1:
        return replace(inner, name=name)
    bandwidth, latency_s = described.dcn_bandwidth, described.dcn_latency_s
    data_centre = dimension_of(Shape.SWITCH, count, bandwidth, latency_s)
    note = (
        f"cluster: {count} slices of {inner.device_count} devices, each of which has "
        f"{described.dcn_bandwidth / 1e9:g} GB/s to the other slices"
    )
    return replace(
        inner.with_dimensions(lambda dimensions: (*dimensions, data_centre)),
        name=name,
        implementations={
            kind: _resize(names, len(inner.dimensions) + 1)
            for kind, names in inner.implementations.items()
        },
        slices=count,
        assumptions=(*inner.assumptions, note),
    )


def _nearest_slice(part: str, on_chip: int, count: int) -> str:
    """Return the largest fitting slice preset, else the smallest."""
    first = (on_chip,) if on_chip > 1 else ()
    presets = {
        name: prod(sizes)
        for name, sizes in _presets(part).items()
        if len(sizes) > len(first) and sizes[: len(first)] == first
    }
    smaller = [name for name, devices in presets.items() if devices <= count]
    if smaller:
        return max(smaller, key=presets.__getitem__)
    return min(presets, key=presets.__getitem__)


def _shape_of(count: int, generation: str) -> tuple[int, ...] | None:
    try:
        return tpu_topology_shape(count, generation=generation)
    except DeviceCountError:
        return None


def _resized(system: System, sizes: tuple[int, ...]) -> System:
    """Return a resized system; new dimensions repeat the last."""
    count = len(sizes)

    def resized(dimensions: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
        pairs = zip(_resize(dimensions, count), sizes, strict=True)
        return tuple([replace(dimension, size=size) for dimension, size in pairs])

    system = system.with_dimensions(resized)
    interconnect = system.interconnect
    if interconnect is not None:
        algorithms = {
            kind: names if len(names) == 1 else _resize(names, count)
            for kind, names in interconnect.algorithms.items()
        }
        interconnect = replace(interconnect, algorithms=algorithms)
    implementations = {
        kind: _resize(names, count) for kind, names in system.implementations.items()
    }
    return replace(system, implementations=implementations, interconnect=interconnect)


def _resize(values: tuple[_T, ...], count: int) -> tuple[_T, ...]:
    return (*values[:count], *values[-1:] * (count - len(values)))


_DESCRIBE = f"describe the network in a directory and give it with {option('system')}"


def _no_links(part: str) -> HardwareError:
    return HardwareError(f"how several {part} are connected is not known", hint=_DESCRIBE)
