"""Load devices and systems, presets by name or files."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path

from msgspec import Struct
from msgspec.structs import fields

from hespas.base.configs import CONFIGS
from hespas.base.decode import decode, read_json
from hespas.base.figures import Count, NotNegative, Positive, Text, check_rate
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, DeviceCountError, HardwareError, option, refuse
from hespas.hardware.device import (
    Device,
    MeasuredTables,
    RooflineHardware,
    TensorCore,
    check_clock,
    read_roofline,
)
from hespas.hardware.interconnect import Slice
from hespas.hardware.interconnect_file import read_interconnect
from hespas.hardware.power import POWER, read_power
from hespas.hardware.scales import check_latency, check_memory
from hespas.hardware.system import System, bare_system, read_network, read_system

PRESETS_DIRECTORY = CONFIGS
_NODES = PRESETS_DIRECTORY / "nodes"
_SYSTEMS = PRESETS_DIRECTORY / "systems"
_ROOFLINE = Path("roofline", "config.json")
MICROARCHITECTURE = "microarchitecture.json"
_ASTRA_SIM = "astra-sim"
_NETWORK_FILE = Path("hespas", "network.json")


class NodeInfo(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``node.json``: keys that the documented configuration lacks.

    ``compute_capability`` is for an NVIDIA GPU whose ``target`` doesn't say it.
    ``launch_overhead_s`` is the time that a kernel launched behind another takes in addition to its
    work, None where it is unknown. ``clock_hz`` is the clock of the cycles that a TPU's compiler
    states, ``tensor_core`` the units of a TPU, ``slice`` its links to others. ``host_bandwidth``
    is one direction of the link between device and host, in bytes/s. ``target`` is the name of
    XLA's description of the part, or libtpu's name of it, which lets XLA compile for it where there
    is none; None if there is no description. ``attention_kernels`` are the fused ones, as
    models name them, that a part without a capability has, the usual first. ``tables`` names the
    measured tables of kernels, ``calibration`` has factors on their times, and ``reached`` how much
    of a type's peak large products reach, as a share of what the part of the tables does.
    ``sources`` names the source of each figure.
    """

    full_name: Text
    memory_capacity_bytes: Count
    launch_overhead_s: NotNegative | None = None
    clock_hz: Positive | None = None
    host_bandwidth: Positive | None = None
    tensor_core: TensorCore | None = None
    slice: Slice | None = None
    target: Text | None = None
    compute_capability: Positive | None = None
    tables: Text | None = None
    calibration: dict[str, Positive] = {}
    reached: dict[str, Positive] = {}
    aliases: tuple[Text, ...] = ()
    attention_kernels: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()
    sources: dict[str, Text] = {}

    def __post_init__(self) -> None:
        check_clock(self.clock_hz)
        check_rate(self.host_bandwidth, "B/s", path="$.host_bandwidth")
        check_memory(self.memory_capacity_bytes, path="$.memory_capacity_bytes")
        check_latency(self.launch_overhead_s, path="$.launch_overhead_s")
        for name in ("calibration", "reached"):
            if getattr(self, name) and self.tables is None:
                raise HardwareError(f"{name} has no effect without tables", hint="add tables")


def device_names() -> tuple[str, ...]:
    """Return the names of the device presets, sorted, without aliases."""
    return _directories_with(_NODES, _ROOFLINE)


def system_names() -> tuple[str, ...]:
    """Return the names of the system presets, sorted."""
    return _directories_with(_SYSTEMS, Path(_ASTRA_SIM))


@cache
def _directories_with(home: Path, relative_path: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in home.iterdir() if (path / relative_path).exists()))


def load_device(name_or_path: str | Path) -> Device:
    """Return a device, a preset by name or a file.

    The path is the file's, or a directory's with ``roofline/config.json``. ``node.json``,
    ``microarchitecture.json`` and ``power.json`` beside it have more figures. Raises
    `HardwareError` for an unknown name, `ConfigError` for a file that is not a roofline
    configuration.

    >>> device = load_device("A100_SXM_40GB")
    >>> device.per_datatype_flops["bf16"], device.memory_bandwidth_bytes_per_s
    (312000000000000.0, 1555000000000.0)
    """
    file = device_file(name_or_path)
    return _preset_device(file) if file.is_relative_to(_NODES) else _read_device(file)


def _read_device(file: Path) -> Device:
    home = _home(file)
    device = device_of(
        read_roofline(file), name=home.resolve().name if file.stem == "config" else file.stem
    )
    microarchitecture, power_file = home / MICROARCHITECTURE, home / POWER
    if microarchitecture.is_dir():
        raise HardwareError(
            "is a directory", location=str(microarchitecture), hint="put a file in its place"
        )
    device = replace(
        device,
        microarchitecture=microarchitecture if microarchitecture.exists() else None,
        power=read_power(power_file) if power_file.exists() else None,
    )
    if not (home / "node.json").exists():
        return device
    node, measured = _node(home)
    return replace(
        device,
        memory_capacity_bytes=node.memory_capacity_bytes,
        launch_overhead_s=node.launch_overhead_s,
        clock_hz=node.clock_hz,
        host_bandwidth_bytes_per_s=node.host_bandwidth,
        tensor_core=node.tensor_core,
        measured=measured,
    )


# Files of the package stay as they are: a preset is read once.
_preset_device = cache(_read_device)


def check_node_file(name_or_path: str | Path) -> None:
    """Raise `ConfigError` where a node's file has keys of no device.

    A workload's configuration describes a device beside other things, and is no node's file.
    """
    file = device_file(name_or_path)
    if file.is_relative_to(_NODES):
        return
    location = str(file)
    keys = decode(read_json(file), dict[str, object], location=location)
    others = [key for key in keys if key != "perf_estimator"]
    if not others:
        return
    if others[0] in _keys(RooflineHardware):
        hint = "put it into perf_estimator.hardware"
    elif others[0] in _keys(NodeInfo):
        hint = "put it into node.json in the same directory"
    else:
        hint = "take it out; what else a run needs are options"
    raise ConfigError(f"$.{others[0]} describes no node", location=location, hint=hint)


def _keys(form: type[Struct]) -> set[str]:
    return {field.encode_name for field in fields(form)}


def load_hardware(name_or_path: str | Path) -> RooflineHardware:
    """Return a device's configuration, as `load_device` finds it."""
    return read_roofline(device_file(name_or_path))


def node_directory(name_or_path: str | Path) -> Path:
    """Return a node's directory, by a preset's name or path.

    Raises `HardwareError` for an unknown name, and for a node without ``node.json``.
    """
    home = _home(device_file(name_or_path))
    if not (home / "node.json").is_file():
        raise HardwareError(
            "there is no node.json",
            location=str(home),
            hint="give a preset, or a directory with it",
        )
    return home


def _home(file: Path) -> Path:
    return file.parent.parent if file.parent.name == _ROOFLINE.parts[0] else file.parent


def device_file(name_or_path: str | Path) -> Path:
    """Return the file of a device's rates, else raise `HardwareError`."""
    path = _path_of(name_or_path, device_names()) or _NODES / node_name(str(name_or_path))
    if not path.is_dir():
        return path
    for file in (path / _ROOFLINE, path / "config.json"):
        if file.is_file():
            return file
    raise HardwareError(
        f"there is neither {_ROOFLINE.as_posix()} nor config.json with the node's rates",
        location=str(path),
        hint="put the rates into one of them, or name a preset",
    )


def device_of(hardware: RooflineHardware, *, name: str) -> Device:
    """Return the device that a roofline configuration describes."""
    return Device(
        name=name,
        peak_flops=hardware.peak_flops,
        memory_bandwidth_bytes_per_s=hardware.memory_bandwidth,
        per_datatype_flops=hardware.per_datatype_flops,
        tdp_w=hardware.tdp_w,
        hbm_power_ratio=hardware.hbm_power_ratio,
        power_limit_w=hardware.power_limit_w,
    )


def node_info(name_or_path: str | Path) -> NodeInfo:
    """Return a node's ``node.json``, by a preset's name or path."""
    return _node(node_directory(name_or_path))[0]


def load_system(name_or_path: str | Path) -> System:
    """Return a system, a preset by name or a directory.

    The directory holds ``system.json``, ``network.yml`` and ``remote_memory.json``, or a directory
    ``astra-sim`` with them; and, for hespas' own model, ``hespas/network.json``, which needs no
    others. Raises `HardwareError` for an unknown name and for files that disagree, `ConfigError`
    for an invalid file.

    >>> system = load_system("A100_SXM_40GB_4GPU_8")
    >>> system.device_count, system.dimensions[1].shape.value
    (32, 'switch')
    """
    path = _path_of(name_or_path, system_names())
    if path is not None:
        return _read_system(path)
    name = _system_name(str(name_or_path))
    part = next(device for device in device_names() if name.startswith(f"{device}_"))
    return replace(_preset_system(_SYSTEMS / name), part=part)


def _read_system(directory: Path) -> System:
    inner = directory / _ASTRA_SIM
    home = inner if inner.is_dir() else directory
    resolved = home.resolve()
    network_file = directory / _NETWORK_FILE
    if network_file.is_file() and not inner.is_dir() and not (home / "system.json").is_file():
        return bare_system(
            resolved.name, interconnect=read_interconnect(network_file, name=resolved.name)
        )
    system = read_system(
        name=resolved.parent.name if resolved.name == _ASTRA_SIM else resolved.name,
        system_file=home / "system.json",
        network_file=home / "network.yml",
        remote_memory_file=home / "remote_memory.json",
    )
    if not network_file.is_file():
        return system
    interconnect = read_interconnect(network_file, name=system.name)
    if interconnect.device_count != system.device_count:
        message = f"{interconnect.device_count} devices, and network.yml has {system.device_count}"
        raise HardwareError(
            message, location=str(network_file), hint="describe the same system in both"
        )
    return replace(system, interconnect=interconnect, described=system.dimensions)


_preset_system = cache(_read_system)


def part_of(device: Device | str | Path) -> str | None:
    """Return the preset that a device is, if any.

    Devices by their path, and those of other names, have none.

    >>> part_of("H100_SXM_80GB"), part_of(load_device("V100_32GB")), part_of(Path("mine"))
    ('H100_80GB', 'V100_32GB', None)
    """
    if isinstance(device, Device):
        return device.name if device.name in device_names() else None
    return node_name(str(device)) if _path_of(device, device_names()) is None else None


def is_tpu(device: Device | str | Path) -> bool | None:
    """Return whether a device is a TPU, if known.

    The target in its ``node.json`` says it, and for GPUs without one the preset.

    >>> is_tpu("TPUv5e"), is_tpu("MI300X"), is_tpu(Path("mine"))
    (True, False, None)
    """
    part = part_of(device)
    if part is None and isinstance(device, Device):
        return None
    try:
        target = node_info(part or str(device)).target
    except HardwareError:
        return None
    return None if target is None and part is None else (target or "").startswith("tpu")


def describes_system(directory: Path) -> bool:
    """Return whether a directory describes a network, and no node."""
    networks = (_NETWORK_FILE, "network.yml", f"{_ASTRA_SIM}/network.yml")
    nodes = ("node.json", "config.json", "roofline/config.json")
    return any((directory / name).is_file() for name in networks) and not any(
        (directory / name).is_file() for name in nodes
    )


def system_directory(name_or_path: str | Path) -> Path:
    """Return a system's directory: a preset's, or the given path."""
    return _path_of(name_or_path, system_names()) or _SYSTEMS / _system_name(str(name_or_path))


def presets_that_fit(device_count: int) -> tuple[str, ...]:
    """Return the sorted system presets of ``device_count`` devices."""
    if device_count < 1:
        raise DeviceCountError(f"the device count is {device_count}", hint="give 1 or more")
    return tuple(name for name in system_names() if prod(preset_sizes(name)) == device_count)


@cache
def preset_sizes(name: str) -> tuple[int, ...]:
    """Return the sizes of a system preset's dimensions."""
    network = read_network(_SYSTEMS / name / _ASTRA_SIM / "network.yml")
    return tuple(dimension.size for dimension in network)


def resolve_path(path: Path) -> Path:
    """Return the preset's file for ``configs/...``, else the path.

    A file of that name in the working directory goes before the preset's.
    """
    if path.parts[:1] != (PRESETS_DIRECTORY.name,) or path.exists():
        return path
    preset = PRESETS_DIRECTORY.joinpath(*path.parts[1:])
    return preset if preset.exists() else path


def _path_of(name_or_path: str | Path, presets: tuple[str, ...]) -> Path | None:
    """Return the path; None for a preset, which takes precedence."""
    if isinstance(name_or_path, Path):
        return resolve_path(name_or_path)
    if name_or_path in presets:
        return None
    refuse(not name_or_path, "the name of a part or a system is empty", "give one, or a path")
    looks_like_a_path = "/" in name_or_path or Path(name_or_path).exists()
    return resolve_path(Path(name_or_path)) if looks_like_a_path else None


def node_name(name: str) -> str:
    """Return the preset of a name, else raise `HardwareError`."""
    if name in device_names():
        return name
    names = _device_names_and_aliases()
    if name in names:
        return names[name]
    raise HardwareError(f"no device preset or file is named {name!r}", hint=suggestion(name, names))


def _system_name(name: str) -> str:
    presets = system_names()
    if name in presets:
        return name
    if name in _device_names_and_aliases():
        raise HardwareError(f"{name!r} is one device", hint=f"say how many, as in 8x{name}")
    if name.isdecimal():
        raise HardwareError(f"{name!r} says how many, not of what", hint=f"as in {name}xH100_80GB")
    raise HardwareError(
        f"no system preset or directory is named {name!r}", hint=suggestion(name, presets)
    )


@cache
def _device_names_and_aliases() -> dict[str, str]:
    names = {name: name for name in device_names()}
    aliases = {alias: name for name in names for alias in _node(_NODES / name)[0].aliases}
    return names | aliases


def _node(home: Path) -> tuple[NodeInfo, MeasuredTables | None]:
    """Read a directory's ``node.json``; presets are cached."""
    return _preset_node(home) if home.is_relative_to(_NODES) else _read_node(home)


def _read_node(home: Path) -> tuple[NodeInfo, MeasuredTables | None]:
    location = str(home / "node.json")
    node = decode(read_json(home / "node.json"), NodeInfo, location=location)
    if node.tables is None:
        return node, None
    return node, MeasuredTables(
        part=node.tables, location=location, factors=node.calibration, reached=node.reached
    )


_preset_node = cache(_read_node)


_MEMORY_SIZE = re.compile(r"_\d+GB$")


def family_of(part: str) -> str:
    """Return the name that parts of different memory share.

    >>> family_of("A100_SXM_40GB") == family_of("A100_SXM_80GB")
    True
    """
    return _MEMORY_SIZE.sub("", part)


def part_warnings(device: Device | str | Path | None, system: System | None) -> tuple[str, ...]:
    """Warn of a device on another part's system preset.

    Parts that differ in their memory only are alike. Users' own devices and systems get no warning.
    Raises `ConfigError` for a TPU on a system of GPUs, and for
    a GPU on one of TPUs.
    """
    if device is None or system is None or system.part is None:
        return ()
    on_tpus, of_tpu = is_tpu(system.part), is_tpu(device)
    name = device.name if isinstance(device, Device) else str(device)
    if of_tpu is not None and of_tpu != on_tpus:
        kinds = ("a TPU", "a system of GPUs") if of_tpu else ("a GPU", "a slice of TPUs")
        raise ConfigError(
            f"{name} is {kinds[0]}, and {system.name} is {kinds[1]}",
            hint=_fitting_hint(name, of_tpu=of_tpu, part=part_of(device), system=system),
        )
    part = part_of(device)
    if part is None or family_of(part) == family_of(system.part):
        return ()
    warning = (
        f"the system {system.name} is made of {system.part}: its network is combined with the "
        f"computation of {name}"
    )
    return (warning,)


def _fitting_hint(name: str, *, of_tpu: bool, part: str | None, system: System) -> str:
    """Return a hint on systems and devices that fit."""
    fitting = [preset for preset in system_names() if part and preset.startswith(f"{part}_")]
    same_size = [preset for preset in fitting if preset in presets_that_fit(system.device_count)]
    shown = ", ".join((same_size or fitting)[:4])
    systems = (
        f"{option('system')} {shown}" if shown else f"a system of {'TPUs' if of_tpu else 'GPUs'}"
    )
    return f"give {systems} for {name}, or {option('node')} {system.part} for {system.name}"
