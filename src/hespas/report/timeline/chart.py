"""The description of a timeline that writers write: processes, tracks, slices, flows, counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hespas.base.units import PS_PER_NS

Argument = str | int | float | bool
Arguments = Mapping[str, Argument]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Something that lasts; ``starts`` and ``ends`` number the flows from it and to it."""

    name: str
    start_ps: int
    end_ps: int
    category: str
    arguments: Arguments = field(default_factory=dict[str, Argument])
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Slices in order of their starts, outer ones first: each ends before its outer one does."""

    name: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """Bytes over time: ``points`` are (time in ps, value), each until the next."""

    name: str
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Devices that behave alike, with their tracks and counters from top to bottom."""

    name: str
    tracks: tuple[Track, ...]
    counters: tuple[Counter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Processes from top to bottom. ``notes`` say, as sentences, what is not shown."""

    processes: tuple[Process, ...]
    notes: tuple[str, ...] = ()

    @property
    def slices(self) -> Iterator[Slice]:
        """All slices, process by process and track by track."""
        for process in self.processes:
            for track in process.tracks:
                yield from track.slices


def whole_ns(time_ps: int) -> int:
    """Return a time to the nearest ns, as viewers count; slices that touch or nest still do."""
    return (time_ps + PS_PER_NS // 2) // PS_PER_NS


def with_notes_shown(chart: Chart, *, name: str) -> Chart:
    """Return the chart with its notes as slices of a process ``name`` in front, if it has any."""
    if not chart.notes:
        return chart
    end_ps = max((each.end_ps for each in chart.slices), default=0)
    tracks = [
        Track(
            name=f"note {number}",
            slices=(Slice(name=note, start_ps=0, end_ps=end_ps, category="note"),),
        )
        for number, note in enumerate(chart.notes, start=1)
    ]
    return Chart(
        processes=(Process(name=name, tracks=tuple(tracks)), *chart.processes), notes=chart.notes
    )


def joined(chart: Chart, *, most_slices: int) -> Chart:
    """Join slices that follow each other on a track where there are more than ``most_slices``.

    What is inside of joined slices is left out, as are flows; a note says so.
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
