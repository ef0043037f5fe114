"""A simulation as text, hespas' or another simulator's: a line for each class of devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hespas.base.units import PS_PER_NS, PS_PER_S, format_time
from hespas.report.assumptions import assumption_lines
from hespas.simulate.timeline import DeviceFigures, ExternalResult, Timeline
from hespas.tasks.graph import devices_text

_SHOWN = 16
_HEADINGS = ("finish", "compute", "communication", "exposed communication", "overlap")


def simulation_text(timeline: Timeline) -> str:
    """Return a line for each class of devices that behave alike, every figure with its unit."""
    rows = [
        (
            one.devices,
            (
                one.finish_ps,
                one.compute_ps,
                one.communication_ps,
                one.exposed_communication_ps,
                one.overlap_ps,
            ),
        )
        for one in timeline.classes
    ]
    return "\n".join([
        f"Step time: {format_time(timeline.step_time_s)}",
        *_parts(timeline),
        *_table(rows),
        *assumption_lines((*timeline.imperfections, *timeline.assumptions), ()),
    ])  # fmt: skip


def _parts(timeline: Timeline) -> list[str]:
    """Return the parts of the step, where it has others than a line of the table."""
    parts = timeline.parts
    if timeline.as_specified is None and not parts.host_transfer_ps:
        return []
    rows = [
        ("compute", parts.compute_ps),
        ("exposed communication", parts.exposed_communication_ps),
    ]
    if parts.host_transfer_ps:
        rows.append(("exposed host transfers", parts.exposed_host_transfer_ps))
    if timeline.as_specified is not None:
        rows.append(("stragglers", parts.straggler_ps))
    return [f"  {name:<22}{format_time(part_ps / PS_PER_S):>12}" for name, part_ps in rows]


def external_text(result: ExternalResult) -> str:
    """Return a line for devices of equal figures; "-" marks what the simulator does not report."""
    devices_of: dict[DeviceFigures, list[int]] = {}
    for device, figures in sorted(result.devices.items()):
        devices_of.setdefault(figures, []).append(device)
    rows = [
        (
            devices,
            [
                None if time_ns is None else time_ns * PS_PER_NS
                for time_ns in (
                    figures.finish_ns,
                    figures.compute_ns,
                    figures.communication_ns,
                    figures.exposed_communication_ns,
                    figures.overlap_ns,
                )
            ],
        )
        for figures, devices in devices_of.items()
    ]
    finish = format_time(result.finish_ns * PS_PER_NS / PS_PER_S)
    return "\n".join([
        f"Step time: {finish} (by {result.engine})",
        *(_table(rows) if rows else []),
        *[f"Note: {note}" for note in result.notes],
    ])  # fmt: skip


def _table(rows: Sequence[tuple[Iterable[int], Sequence[int | None]]]) -> list[str]:
    """Return the lines of a table of classes of devices and their times in ps."""
    cells = [("", *_HEADINGS)]
    cells += [
        (
            devices_text(devices),
            *["-" if ps is None else format_time(ps / PS_PER_S) for ps in times_ps],
        )
        for devices, times_ps in rows[:_SHOWN]
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([
            f"{first:<{widths[0]}}",
            *[f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)],
        ])
        for first, *rest in cells
    ]  # fmt: skip
    if len(rows) > _SHOWN:
        lines.append(f"... and {len(rows) - _SHOWN} more classes of devices: see the JSON output")
    return lines
