"""The memory of a step, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterable

from hespas.base.units import format_quantity
from hespas.memory.liveness import HeldBuffer
from hespas.memory.usage import MemoryUse


def memory_json(use: MemoryUse, capacity_bytes: int | None, *, shown: int) -> dict[str, object]:
    """Return the documented object, with the ``shown`` largest buffers at the peak."""
    return {
        "peak_memory_bytes": use.peak_bytes,
        "memory_capacity_bytes": capacity_bytes,
        "fits": None if capacity_bytes is None else use.peak_bytes <= capacity_bytes,
        "argument_bytes": use.argument_bytes,
        "output_bytes": use.output_bytes,
        "alias_bytes": use.alias_bytes,
        "temporary_bytes": use.temporary_bytes,
        "gap_bytes": use.gap_bytes,
        "peak_place": use.peak_location,
        "held": [
            {
                "size_bytes": buffer.size_bytes,
                "type": buffer.type,
                "role": buffer.role.value,
                "place": buffer.location,
            }
            for buffer in use.held[:shown]
        ],
        "held_buffers": len(use.held),
        "host_memory_bytes": use.host_bytes,
        "host": None if use.host is None else _host_json(use.host, shown=shown),
    }


def _host_json(host: MemoryUse, *, shown: int) -> dict[str, object]:
    """Return what of the host's memory is for what: the keys as of device memory."""
    device_only = ("memory_capacity_bytes", "fits", "host_memory_bytes", "host")
    every = memory_json(host, None, shown=shown)
    return {key: value for key, value in every.items() if key not in device_only}


def memory_text(use: MemoryUse, capacity_bytes: int | None, *, source: str, shown: int) -> str:
    """Return the answer as lines of text, with the ``shown`` largest buffers at the peak.

    ``source`` names the program, and is left out of the places in it.
    """
    rows = [("Peak", use.peak_bytes, _fit(use.peak_bytes, capacity_bytes)), *_parts(use, source)]
    lines = [*_lines(rows), *_held(use, source, shown)]
    if use.host is not None:
        lines += ["", *_lines([("Host memory", use.host.peak_bytes, "for one device")])]
        lines += [*_lines(_parts(use.host, source)), *_held(use.host, source, shown)]
    return "\n".join(lines)


def _lines(rows: Iterable[tuple[str, int, str]]) -> list[str]:
    return [f"{name:<16}{_size(size):>12}  {note}".rstrip() for name, size, note in rows]


def _parts(use: MemoryUse, source: str) -> list[tuple[str, int, str]]:
    at = short_place(use.peak_location, source)
    return [
        ("  arguments", use.argument_bytes, ""),
        ("  outputs", use.output_bytes, _in_place(use)),
        ("  temporaries", use.temporary_bytes, at and f"at {at}"),
    ]


def _fit(peak_bytes: int, capacity_bytes: int | None) -> str:
    if capacity_bytes is None:
        return ""
    verb = "fits into" if peak_bytes <= capacity_bytes else "does not fit into"
    return f"{verb} {_size(capacity_bytes)}"


def _in_place(use: MemoryUse) -> str:
    return f"{_size(use.alias_bytes)} of them written over arguments" if use.alias_bytes else ""


def short_place(location: str, source: str) -> str:
    """Return a place without the program's name; compilers read programs under the name ``-``."""
    return location.removeprefix(f"{source}:").removeprefix("-:")


def _held(use: MemoryUse, source: str, shown: int) -> list[str]:
    buffers = use.held[:shown]
    if not buffers:
        return []
    width = max(len(buffer.type) for buffer in buffers)
    lines = [_line(buffer, width, source) for buffer in buffers]
    rest = use.held[shown:]
    if rest:
        size = _size(sum(buffer.size_bytes for buffer in rest))
        lines.append(f"{size:>12}  {len(rest)} more")
    if use.gap_bytes:
        lines.append(f"{_size(use.gap_bytes):>12}  between them")
    return ["", "At the peak:", *lines]


def _line(buffer: HeldBuffer, width: int, source: str) -> str:
    size, location = _size(buffer.size_bytes), short_place(buffer.location, source)
    return f"{size:>12}  {buffer.role.value:<9}  {buffer.type:<{width}}  {location}"


def _size(size_bytes: int) -> str:
    return format_quantity(size_bytes, "B")
