"""What a simulation found, for people."""

from __future__ import annotations

from hespas.simulate.timeline import ClassTimeline, Timeline
from hespas.trace.devices_text import devices_text
from hespas.units import format_time

_PS_PER_S = 1_000_000_000_000
_SHOWN = 16


def simulation_text(timeline: Timeline) -> str:
    """Return a line for each class of devices that behave alike, every figure with its unit."""
    lines = [f"Step time: {format_time(timeline.step_time_s)}"]
    lines += [_line(one) for one in timeline.classes[:_SHOWN]]
    if len(timeline.classes) > _SHOWN:
        lines.append(
            f"... and {len(timeline.classes) - _SHOWN} more classes of devices: see --json"
        )
    return "\n".join(lines)


def _line(one: ClassTimeline) -> str:
    figures = {
        "finish": one.finish_ps,
        "compute": one.compute_ps,
        "communication": one.communication_ps,
        "exposed communication": one.exposed_communication_ps,
        "overlap": one.overlap_ps,
    }
    listed = ", ".join(f"{name} {format_time(ps / _PS_PER_S)}" for name, ps in figures.items())
    return f"{devices_text(one.devices)}: {listed}"
