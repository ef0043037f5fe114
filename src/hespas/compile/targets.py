"""Compilation targets: accelerators by name, as their compilers describe them."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from pathlib import Path

from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import HardwareError
from hespas.hardware.device import Device
from hespas.hardware.presets import (
    PRESETS_DIRECTORY,
    NodeInfo,
    load_device,
    node_directory,
    node_info,
)
from hespas.xla.compile.topology import TPU_NAMES

_DIRECTORY = PRESETS_DIRECTORY / "targets"
_SUFFIX = ".txtpb"
_DESCRIPTION = "gpu_device_info"
# XLA's descriptions and datasheets round differently; a larger difference means two parts.
_SAME = 0.05
_HOSTS = {"gb200": 4, "gb300": 4}
_USUAL_HOST = 8


@frozen
class GpuTarget:
    """A GPU: XLA's description as text, and the number on a host."""

    name: str
    description: str
    devices_per_host: int
    notes: tuple[str, ...] = ()


@frozen
class TpuTarget:
    """A generation of TPUs by libtpu's name."""

    name: str
    generation: str


Target = GpuTarget | TpuTarget


def target_names() -> tuple[str, ...]:
    """Return the names of all targets, sorted.

    >>> {"A100_SXM_40", "H100_SXM", "TPUv5e"} <= set(target_names())
    True
    """
    gpus = (path.stem.upper() for path in _DIRECTORY.glob(f"*{_SUFFIX}"))
    return tuple(sorted([*gpus, *map(_tpu_name, TPU_NAMES)]))


def _tpu_name(folded: str) -> str:
    return folded.replace("tpu", "TPU")


def find_target(name: str) -> Target:
    """Return a target by name, node preset or path.

    Case does not matter. A node's own memory replaces that of its target's description. A path is
    that of a node whose ``node.json`` names a target, or of a description: text of XLA's
    ``GpuTargetConfigProto``, as dumps hold it. Raises `HardwareError` for anything else.

    >>> find_target("h100_sxm").name, find_target("H100_80GB").name, find_target("TPUv5e").name
    ('H100_SXM', 'H100_80GB', 'TPUv5e')
    """
    folded = name.casefold()
    if folded in TPU_NAMES:
        return TpuTarget(name=_tpu_name(folded), generation=TPU_NAMES[folded])
    file = _description_file(folded)
    if file is not None:
        return _gpu(folded.upper(), file)
    path = Path(name)
    if path.is_file() and path.suffix != ".json":
        return _gpu(path.name, path)
    try:
        node = node_info(name)
    except HardwareError as error:
        if path.exists():
            raise
        raise HardwareError(
            f"no target is named {name!r}", hint=suggestion(name, target_names())
        ) from error
    return _node_target(node, load_device(name), location=str(node_directory(name) / "node.json"))


def compute_capability(name: str) -> float | None:
    """Return the compute capability of an NVIDIA GPU.

    None for other devices, and for one that nothing describes.

    >>> [compute_capability(name) for name in ("H100_80GB", "L40S_48GB", "TPUv4")]
    [9.0, 8.9, None]
    """
    if name.casefold() in TPU_NAMES:
        return None
    file = _description_file(name.casefold())
    if file is None and Path(name).is_file() and Path(name).suffix != ".json":
        file = Path(name)
    if file is None:
        try:
            node = node_info(name)
        except HardwareError:
            return None
        if node.compute_capability is not None:
            return node.compute_capability
        file = _description_file((node.target or "").casefold())
    return None if file is None else _described_capability(file)


_CAPABILITY = re.compile(r"cuda_compute_capability \{ major: (\d+)(?: minor: (\d+))?")


def _described_capability(file: Path) -> float | None:
    try:
        match = _CAPABILITY.search(file.read_text())
    except (OSError, UnicodeDecodeError):
        return None
    return None if match is None else int(match[1]) + int(match[2] or 0) / 10


_WORD = re.compile(r"\w+")


def _description_file(folded: str) -> Path | None:
    file = _DIRECTORY / f"{folded}{_SUFFIX}"
    return file if _WORD.fullmatch(folded) and file.is_file() else None


def _node_target(node: NodeInfo, device: Device, *, location: str) -> Target:
    if node.target is None:
        raise HardwareError(
            f"no compiler at hand has a description of {node.full_name}",
            hint="name that of a like part as target in a node.json, or "
            "compile for another part (hespas compile --target TARGET -o FILE) and predict "
            f"the result on this one; targets: {', '.join(target_names())}",
        )
    folded = node.target.casefold()
    if folded in TPU_NAMES:
        return find_target(folded)
    file = _description_file(folded)
    if file is None:
        raise HardwareError(
            f"no target is named {node.target!r}",
            location=location,
            hint=suggestion(node.target, target_names()),
        )
    return _with_memory_of(_gpu(device.name, file), device, part=node.target.upper())


def recorded_target(name: str) -> Target:
    """Return a target by name, known to a compiler or not.

    Recording a step takes no compiler's description: that of a part of the same compute capability
    serves, or of the last one before it, with the node's own figures in it. Raises `HardwareError`
    as `find_target`, and for a node that is no NVIDIA GPU.

    >>> recorded_target("L40S_48GB").notes[:1]
    ("recorded for a part like A6000, with L40S_48GB's compute capability and multiprocessors",)
    """
    is_target = name.casefold() in {target_name.casefold() for target_name in target_names()}
    if is_target or (Path(name).is_file() and Path(name).suffix != ".json"):
        return find_target(name)
    capability, node = compute_capability(name), node_info(name)
    if node.target is not None:
        return find_target(name)
    if capability is None:
        raise HardwareError(
            f"steps of PyTorch are recorded for NVIDIA's GPUs, and {node.full_name} is none",
            hint="give another part, as H100_80GB",
        )
    from hespas.hardware.microarchitecture import (  # noqa: PLC0415 - of use to recordings alone
        load_microarchitecture,
    )

    count = load_microarchitecture(name).multiprocessors

    def distance(file: Path) -> tuple[float, int, str]:
        cores = _CORES.search(file.read_text())
        of_part = _described_capability(file)
        apart = inf if of_part is None or of_part > capability else capability - of_part
        return apart, abs(int(cores[1]) - count) if cores else count, file.stem

    like = min(_DIRECTORY.glob(f"*{_SUFFIX}"), key=distance)
    major, minor = divmod(round(10 * capability), 10)
    text = _CORES.sub(f"  core_count: {count}", like.read_text())
    text = _CAPABILITY.sub(f"cuda_compute_capability {{ major: {major} minor: {minor}", text)
    part = like.stem.upper()
    note = f"recorded for a part like {part}, with {name}'s compute capability and multiprocessors"
    target = GpuTarget(name=name, description=text, devices_per_host=_USUAL_HOST, notes=(note,))
    return _with_memory_of(target, load_device(name), part=part)


_CORES = re.compile(r"^  core_count: (\d+)$", re.MULTILINE)


def _gpu(name: str, file: Path) -> GpuTarget:
    try:
        description = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise HardwareError("cannot be read as text", location=str(file)) from error
    if _DESCRIPTION not in description:
        raise HardwareError(
            "is no description of a GPU for XLA", location=str(file), hint="give a target's name"
        )
    return GpuTarget(
        name=name,
        description=description,
        devices_per_host=_HOSTS.get(file.stem, _USUAL_HOST),
    )


def memory_bytes(target: GpuTarget) -> int | None:
    """Return a GPU's memory as compilers count it."""
    match = _MEMORY_SIZE.search(target.description)
    return None if match is None else int(match[1])


_MEMORY_SIZE = re.compile(r"^ *device_memory_size: (\d+)$", re.MULTILINE)


def _with_memory_of(target: GpuTarget, device: Device, *, part: str) -> GpuTarget:
    memory = {
        "memory_bandwidth": device.memory_bandwidth_bytes_per_s,
        "device_memory_size": device.memory_capacity_bytes,
    }
    description, notes = target.description, list(target.notes)
    for field, value in memory.items():
        pattern = re.compile(rf"^  {field}: (\d+)$", re.MULTILINE)
        described = pattern.search(description)
        if described is None or value is None or abs(int(described[1]) / value - 1) <= _SAME:
            continue
        description = pattern.sub(f"  {field}: {round(value)}", description)
        notes.append(f"compiled for a {part} with {target.name}'s {field}, {round(value)}")
    return replace(target, description=description, notes=tuple(notes))
