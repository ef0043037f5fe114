"""Write a chart to a file: in Perfetto's format, or as JSON of Chrome's Trace Event Format.

Source: the Trace Event Format. "X" is a complete event, "s" and "f" the ends of a flow, "C" a value
of a counter, "M" a name. An end of a flow belongs to the slice that was begun last on its track, so
it directly follows that slice, at the same time.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import msgspec

from hespas.base.files import replaced_file
from hespas.report.timeline.chart import (
    Chart,
    Counter,
    Process,
    Slice,
    Track,
    whole_ns,
    with_notes_shown,
)
from hespas.report.timeline.perfetto import perfetto_packets

PERFETTO_SUFFIXES = frozenset({".pftrace", ".perfetto-trace"})
_COMPRESSED = ".gz"
_NOTES = "about this timeline"
_LEVEL = 6


def write_chart(chart: Chart, file: Path) -> None:
    """Write a chart, at once or not at all; equal charts give equal bytes.

    The name decides: ``.pftrace`` and ``.perfetto-trace`` are Perfetto's format, others JSON;
    ``.gz`` compresses. Raises `OutputError` for a file that can't be written.
    """
    is_compressed = file.suffix == _COMPRESSED
    suffix = Path(file.stem).suffix if is_compressed else file.suffix
    shown = with_notes_shown(chart, name=_NOTES)
    pieces = perfetto_packets(shown) if suffix in PERFETTO_SUFFIXES else chrome_json(shown)
    with replaced_file(file) as temporary, temporary.open("wb") as output:
        if is_compressed:
            # The time and the file's name stay out of it.
            pieces = [gzip.compress(b"".join(pieces), compresslevel=_LEVEL, mtime=0)]
        output.writelines(pieces)


_FLOW = '"name":"then","cat":"flow"'


def chrome_json(chart: Chart) -> Iterator[bytes]:
    """Yield the JSON in pieces; equal charts give equal bytes.

    Times are whole ns, written in us. Events are in order of time, as are slices of a track.
    """
    notes = _text({f"note {number}": note for number, note in enumerate(chart.notes, start=1)})
    yield f'{{"displayTimeUnit":"ns","otherData":{notes},"traceEvents":[\n'.encode()
    timed: list[tuple[int, str]] = []
    names: list[str] = []
    tids = count(len(chart.processes) + 1)
    for pid, process in enumerate(chart.processes, start=1):
        tracks = [(next(tids), track) for track in process.tracks]
        names.extend(_names(pid, process, tracks))
        for tid, track in tracks:
            timed.extend(_slice_events(pid, tid, track.slices))
        for counter in process.counters:
            timed.extend(_counter_events(pid, counter))
    timed.sort(key=lambda event: event[0])
    yield ",\n".join([*names, *[text for _, text in timed]]).encode()
    yield b"\n]}\n"


def _names(pid: int, process: Process, tracks: Iterable[tuple[int, Track]]) -> Iterator[str]:
    yield _metadata(pid, 0, "process_name", {"name": process.name})
    yield _metadata(pid, 0, "process_sort_index", {"sort_index": pid})
    for tid, track in tracks:
        yield _metadata(pid, tid, "thread_name", {"name": track.name})
        yield _metadata(pid, tid, "thread_sort_index", {"sort_index": tid})


def _metadata(pid: int, tid: int, name: str, arguments: object) -> str:
    return f'{{"name":"{name}","ph":"M","pid":{pid},"tid":{tid},"args":{_text(arguments)}}}'


def _slice_events(pid: int, tid: int, slices: Iterable[Slice]) -> Iterator[tuple[int, str]]:
    for each in slices:
        start_ns, end_ns = whole_ns(each.start_ps), whole_ns(each.end_ps)
        place = f'"pid":{pid},"tid":{tid},"ts":{_us_text(start_ns)}'
        arguments = f',"args":{_text(each.arguments)}' if each.arguments else ""
        what = f'"name":{_text(each.name)},"cat":{_text(each.category)},"ph":"X"'
        yield start_ns, f'{{{what},{place},"dur":{_us_text(end_ns - start_ns)}{arguments}}}'
        for flow in each.ends:
            yield start_ns, f'{{{_FLOW},"ph":"f","bp":"e","id":{flow},{place}}}'
        for flow in each.starts:
            yield start_ns, f'{{{_FLOW},"ph":"s","id":{flow},{place}}}'


def _counter_events(pid: int, counter: Counter) -> Iterator[tuple[int, str]]:
    name = _text(f"{counter.name} (bytes)")
    for at_ps, value in counter.points:
        at_ns = whole_ns(at_ps)
        text = f'"pid":{pid},"ts":{_us_text(at_ns)},"args":{{"value":{value}}}'
        yield at_ns, f'{{"name":{name},"ph":"C",{text}}}'


def _us_text(time_ns: int) -> str:
    """Return nanoseconds in microseconds, as a number that readers cut to the same nanosecond.

    Perfetto multiplies by 1000 and drops the fraction. Where the product is just below a whole
    number, 0.1 ns is added.

    >>> _us_text(5_000), _us_text(1_233), _us_text(1_001)
    ('5', '1.233', '1.0011')
    """
    whole, fraction = divmod(time_ns, 1000)
    if not fraction:
        return str(whole)
    text = f"{whole}.{fraction:03d}"
    is_kept = int(float(text) * 1000) == time_ns and int(fraction / 1000 * 1000) == fraction
    return text if is_kept else f"{text}1"


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
