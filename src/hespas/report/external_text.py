"""What another simulator found, for people."""

from __future__ import annotations

from hespas.schedule.tasks import devices_text
from hespas.simulate.external_result import DeviceFigures, ExternalResult
from hespas.units import PS_PER_NS, PS_PER_S, format_time

_SHOWN = 16
_HEADINGS = ("finish", "compute", "communication", "exposed communication", "overlap")


def external_text(result: ExternalResult) -> str:
    """Return a line for devices of equal figures; "-" is what the simulator doesn't say."""
    alike: dict[DeviceFigures, list[int]] = {}
    for device, figures in sorted(result.devices.items()):
        alike.setdefault(figures, []).append(device)
    rows = [("", *_HEADINGS)]
    rows += [_row(devices, figures) for figures, devices in list(alike.items())[:_SHOWN]]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [f"Step time: {_time(result.finish_ns)} (by {result.engine})"]
    for first, *rest in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells]))
    if len(alike) > _SHOWN:
        lines.append(f"... and {len(alike) - _SHOWN} more classes of devices: see --json")
    return "\n".join([*lines, *[f"Note: {note}" for note in result.notes]])


def _row(devices: list[int], figures: DeviceFigures) -> tuple[str, ...]:
    times_ns = (
        figures.finish_ns,
        figures.compute_ns,
        figures.communication_ns,
        figures.exposed_communication_ns,
        figures.overlap_ns,
    )
    return (devices_text(devices), *[_time(time_ns) for time_ns in times_ns])


def _time(time_ns: int | None) -> str:
    return "-" if time_ns is None else format_time(time_ns * PS_PER_NS / PS_PER_S)
