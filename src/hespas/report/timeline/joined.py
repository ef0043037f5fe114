"""Fewer slices: those that follow each other on a track are joined where there are too many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hespas.report.timeline.chart import Chart, Process, Slice, Track


def joined(chart: Chart, *, most_slices: int) -> Chart:
    """Return a chart of about ``most_slices`` slices, with a note of what was joined.

    Each track with more than its share has its slices joined in groups of equal numbers; what is
    inside of them is left out, as are flows.
    """
    count = sum(1 for _ in chart.slices)
    if count <= most_slices:
        return chart
    group = -(-count // most_slices)
    note = (
        f"{count:,} slices are too many: on each track up to {group} that follow each other are "
        "shown as one, without what is inside of them and without arrows"
    )
    processes = [_process(each, group) for each in chart.processes]
    return Chart(processes=tuple(processes), notes=(*chart.notes, note))


def _process(process: Process, group: int) -> Process:
    tracks = [
        Track(name=track.name, slices=tuple(_joined(list(_outer(track.slices)), group)))
        for track in process.tracks
    ]
    return replace(process, tracks=tuple(tracks))


def _outer(slices: Sequence[Slice]) -> Iterator[Slice]:
    """Yield the slices that are in no other one."""
    reached_ps = -1
    for each in slices:
        if each.start_ps >= reached_ps:
            yield each
            reached_ps = max(each.end_ps, each.start_ps)


def _joined(slices: Sequence[Slice], group: int) -> Iterator[Slice]:
    for at in range(0, len(slices), group):
        members = slices[at : at + group]
        first, last = members[0], members[-1]
        if len(members) == 1:
            yield replace(first, starts=(), ends=())
            continue
        busy_ps = sum(each.end_ps - each.start_ps for each in members)
        yield Slice(
            name=f"{len(members)} slices, {first.name} to {last.name}",
            start_ps=first.start_ps,
            end_ps=last.end_ps,
            category=first.category,
            arguments={"slices": len(members), "busy_s": busy_ps / 1e12},
        )
