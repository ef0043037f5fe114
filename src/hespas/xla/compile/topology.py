"""Make topologies of devices that are not attached."""

from __future__ import annotations

from importlib import import_module
from itertools import product
from math import prod
from typing import Any

from hespas.base.frozen import frozen
from hespas.errors import DeviceCountError, HardwareError, ToolError
from hespas.xla.compile.messages import Accelerator, GpuHosts, TpuSlice


@frozen
class Topology:
    """Devices of a target; the handles belong to jaxlib."""

    name: str
    devices: tuple[Any, ...]

    @property
    def client(self) -> Any:
        """The compiler of these devices."""
        return self.devices[0].client


@frozen
class Chips:
    """The chips of a generation of TPUs.

    ``dimensions`` is that of the torus, ``devices_per_chip`` the number of devices that a program
    sees, and ``configuration`` libtpu's name for a chip in another configuration than the default.
    """

    dimensions: int
    devices_per_chip: int
    configuration: str | None = None


TPU_GENERATIONS = {
    "v2": Chips(dimensions=2, devices_per_chip=2),
    "v3": Chips(dimensions=2, devices_per_chip=2),
    "v4": Chips(dimensions=3, devices_per_chip=1, configuration="megacore"),
    "v5e": Chips(dimensions=2, devices_per_chip=1),
    "v5p": Chips(dimensions=3, devices_per_chip=1),
    "v6e": Chips(dimensions=2, devices_per_chip=1),
    "tpu7x": Chips(dimensions=3, devices_per_chip=2),
}
TPU_NAMES = {f"tpuv{name.removeprefix('tpu').removeprefix('v')}": name for name in TPU_GENERATIONS}
"""The generations by the names of targets in lower case, such as ``tpuv7x``."""
_HOST = (2, 2, 1)


def gpu_topology_name(count: int, *, per_host: int) -> str:
    """Return XLA's name of a topology of GPUs.

    It is islands x hosts x GPUs of a host. Raises `DeviceCountError` if hosts would not be full.

    >>> gpu_topology_name(4, per_host=8), gpu_topology_name(64, per_host=8)
    ('1x1x4', '1x8x8')
    """
    if count <= per_host:
        return f"1x1x{count}"
    if count % per_host:
        raise DeviceCountError(
            f"{count} devices do not fill hosts of {per_host}",
            hint="give a number of devices per host that divides them",
        )
    return f"1x{count // per_host}x{per_host}"


def tpu_topology_shape(count: int, *, generation: str) -> tuple[int, ...]:
    """Return the squarest slice of ``count`` devices.

    It is the chips along each axis, the longest last. Raises `DeviceCountError` if no power of two
    of whole chips has as many.

    >>> tpu_topology_shape(8, generation="v5e"), tpu_topology_shape(32, generation="v5p")
    ((2, 4), (2, 4, 4))
    """
    chips = TPU_GENERATIONS[generation]
    chip_count, left_over = divmod(count, chips.devices_per_chip)
    powers = [2**power for power in range(max(chip_count, 1).bit_length())]
    shapes = [
        shape
        for shape in product(powers, repeat=chips.dimensions)
        if prod(shape) == chip_count and list(shape) == sorted(shape)
    ]
    if left_over or not shapes:
        raise DeviceCountError(
            f"no TPU {generation} slice has {count} devices",
            hint=f"give a power of two that is {chips.devices_per_chip} or more, or a topology",
        )
    best = min(shapes, key=lambda shape: (max(shape) / min(shape), shape))
    # Four chips of a three-dimensional slice share one host: 2x2x1.
    return best if chip_count != 4 or chips.dimensions == 2 else _HOST


def check_topology(accelerator: Accelerator, count: int) -> None:
    """Raise `DeviceCountError` without a topology of ``count`` devices."""
    match accelerator:
        case GpuHosts(devices_per_host=per_host):
            gpu_topology_name(count, per_host=per_host)
        case TpuSlice(generation=generation, topology=None, slices=slices):
            tpu_topology_shape(_devices_of_slice(count, slices), generation=generation)
        case TpuSlice():
            pass


def open_topology(accelerator: Accelerator, *, count: int) -> Topology:
    """Return ``count`` devices of an accelerator.

    Raises `DeviceCountError` if there is no such topology or a named one has another number,
    `ToolError` without the compiler.
    """
    platform, settings = topology_settings(accelerator, count=count)
    name = settings["topology" if platform == "cuda" else "topology_name"]
    topologies = import_module("jax.experimental.topologies")
    try:
        described = topologies.get_topology_desc(platform=platform, **settings)
    except NotImplementedError as error:
        raise ToolError(f"the {platform} compiler could not be loaded") from error
    devices = tuple(described.devices)
    if len(devices) != count:
        raise DeviceCountError(
            f"the program needs {count} devices, but {name} has {len(devices)}",
            hint="give another topology",
        )
    return Topology(name=name, devices=devices)


def topology_settings(accelerator: Accelerator, *, count: int) -> tuple[str, dict[str, Any]]:
    """Return the platform and keywords for JAX's ``get_topology_desc``.

    Raises `DeviceCountError` if there is no such topology.

    >>> platform, settings = topology_settings(TpuSlice(generation="v5e", topology=None), count=8)
    >>> platform, settings["topology_name"]
    ('tpu', 'v5e:2x4')
    """
    match accelerator:
        case GpuHosts(description=description, devices_per_host=per_host):
            name = gpu_topology_name(count, per_host=per_host)
            return "cuda", {"target_config": description, "topology": name}
        case TpuSlice(generation=generation, topology=topology, slices=slices):
            shape = (
                tpu_topology_shape(_devices_of_slice(count, slices), generation=generation)
                if topology is None
                else _shape(topology)
            )
            settings: dict[str, Any] = {
                "topology_name": f"{generation}:{'x'.join(map(str, shape))}",
                "chips_per_host_bounds": _host_of(shape),
            }
            if slices > 1:
                settings["num_slices"] = slices
            configuration = TPU_GENERATIONS[generation].configuration
            if configuration is not None:
                settings["chip_config_name"] = configuration
            return "tpu", settings


def _devices_of_slice(count: int, slices: int) -> int:
    devices, left_over = divmod(count, slices)
    if left_over or not devices:
        raise DeviceCountError(
            f"{count} devices do not make {slices} slices",
            hint=f"give a multiple of {slices}",
        )
    return devices


def _host_of(shape: tuple[int, ...]) -> list[int]:
    """Return a host's chips along each axis.

    There are two on even axes.
    """
    sides = [2 if size % 2 == 0 else 1 for size in shape[:2]]
    return sides + [1] * (3 - len(sides))


def _shape(topology: str) -> tuple[int, ...]:
    parts = topology.split("x")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise HardwareError(f"{topology!r} is not a topology", hint="write it as in 2x4 or 4x4x8")
    return tuple(map(int, parts))
