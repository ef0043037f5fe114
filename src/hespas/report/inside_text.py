"""What is inside a node, figure by figure and each with its source."""

from __future__ import annotations

from dataclasses import fields

from hespas.hardware.device import Device
from hespas.hardware.microarchitecture import Microarchitecture, read_microarchitecture
from hespas.hardware.presets import MICROARCHITECTURE
from hespas.units import format_bytes_binary, format_quantity, format_time

_BANDWIDTH = "_bytes_per_s"


def inside_lines(device: Device) -> list[str]:
    """Return a line for each figure, under a head; none for a device that is not described.

    Raises `hespas.errors.HespasError` for a file that can't be read.
    """
    inside = _inside(device)
    if inside is None:
        return []
    lines = [
        f"  {_key(name):<26} {_shown(name, value):<12} {inside.sources[_key(name)]}"
        for name, value in _figures(inside).items()
    ]
    return ["", f"Inside ({MICROARCHITECTURE}):", *lines]


def inside_json(device: Device) -> dict[str, object] | None:
    """Return the figures and their sources as the file has them; None where there is no file.

    Raises `hespas.errors.HespasError` for a file that can't be read.
    """
    inside = _inside(device)
    if inside is None:
        return None
    figures = {_key(name): value for name, value in _figures(inside).items()}
    return {**figures, "sources": dict(inside.sources)}


def _inside(device: Device) -> Microarchitecture | None:
    file = device.microarchitecture
    return None if file is None else read_microarchitecture(file)


def _figures(inside: Microarchitecture) -> dict[str, float]:
    names = [field.name for field in fields(inside) if field.name != "sources"]
    return {name: getattr(inside, name) for name in names}


def _key(name: str) -> str:
    """Return the key of a figure in the file, which leaves bandwidths' unit out."""
    return name.removesuffix(_BANDWIDTH)


def _shown(name: str, value: float) -> str:
    if name.endswith(_BANDWIDTH):
        return format_quantity(value, "B/s")
    if name.endswith("_hz"):
        return format_quantity(value, "Hz")
    if name.endswith("_bytes"):
        return format_bytes_binary(value)
    return format_time(value) if name.endswith("_s") else f"{value:g}"
