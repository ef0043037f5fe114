"""What a simulation found, for people."""

from __future__ import annotations

from textwrap import fill

from hespas.schedule.tasks import devices_text
from hespas.simulate.timeline import ClassTimeline, Timeline
from hespas.units import PS_PER_S, format_time

_SHOWN = 16
_HEADINGS = ("finish", "compute", "communication", "exposed communication", "overlap")


def simulation_text(timeline: Timeline) -> str:
    """Return a line for each class of devices that behave alike, every figure with its unit."""
    shown = [_row(one) for one in timeline.classes[:_SHOWN]]
    rows = [("", *_HEADINGS), *shown]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        f"Step time: {format_time(timeline.step_time_s)}",
        *(_line(row, widths) for row in rows),
    ]
    if len(timeline.classes) > _SHOWN:
        lines.append(
            f"... and {len(timeline.classes) - _SHOWN} more classes of devices: see --json"
        )
    if timeline.assumptions:
        lines += ["Assumed:", *(_item(one) for one in timeline.assumptions)]
    return "\n".join(lines)


def _item(text: str) -> str:
    return fill(f"  - {text}", 100, subsequent_indent="    ", break_on_hyphens=False)


def _row(one: ClassTimeline) -> tuple[str, ...]:
    times_ps = (
        one.finish_ps,
        one.compute_ps,
        one.communication_ps,
        one.exposed_communication_ps,
        one.overlap_ps,
    )
    return (devices_text(one.devices), *(format_time(ps / PS_PER_S) for ps in times_ps))


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    first = f"{row[0]:<{widths[0]}}"
    rest = (f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
    return "  ".join([first, *rest])
