"""Write a chart for Perfetto, or as Trace Event JSON.

Source: the Trace Event Format. "X" is a complete event, "s" and "f" the ends of a flow, "C" a value
of a counter, "M" a name. An end of a flow belongs to the slice that was begun last on its track, so
it directly follows that slice, at the same time.

Source: Perfetto's ``trace_packet.proto``, ``track_event.proto``, ``track_descriptor.proto`` and
``interned_data.proto``. The few fields that are needed are encoded here, under their numbers. Times
are in nanoseconds of the default clock. Names and texts that recur are interned.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path

import msgspec

from hespas.base.files import replaced_file
from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_NS
from hespas.tasks.chakra.format import varint

Argument = str | int | float | bool
Arguments = Mapping[str, Argument]


@frozen
class Slice:
    """A named interval; ``starts`` and ``ends`` number its flows."""

    name: str
    start_ps: int
    end_ps: int
    category: str
    arguments: Arguments = field(default_factory=dict[str, Argument])
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


@frozen
class Track:
    """Nested slices in order of start, outer ones first."""

    name: str
    slices: tuple[Slice, ...]


@frozen
class Counter:
    """Bytes over time; points are (time in ps, value)."""

    name: str
    points: tuple[tuple[int, int], ...]


@frozen
class Process:
    """Equal devices, with tracks and counters from the top."""

    name: str
    tracks: tuple[Track, ...]
    counters: tuple[Counter, ...] = ()


@frozen
class Chart:
    """Processes from the top; ``notes`` say what is hidden."""

    processes: tuple[Process, ...]
    notes: tuple[str, ...] = ()

    @property
    def slices(self) -> Iterator[Slice]:
        """All slices, process by process and track by track."""
        for process in self.processes:
            for track in process.tracks:
                yield from track.slices


def whole_ns(time_ps: int) -> int:
    """Round a time to ns, the unit of viewers."""
    return (time_ps + PS_PER_NS // 2) // PS_PER_NS


def with_notes_shown(chart: Chart) -> Chart:
    """Return the chart with its notes as first process."""
    if not chart.notes:
        return chart
    end_ps = max((item.end_ps for item in chart.slices), default=0)
    tracks = [
        Track(
            name=f"note {number}",
            slices=(Slice(name=note, start_ps=0, end_ps=end_ps, category="note"),),
        )
        for number, note in enumerate(chart.notes, start=1)
    ]
    about = Process(name="about this timeline", tracks=tuple(tracks))
    return replace(chart, processes=(about, *chart.processes))


def joined(chart: Chart, *, most_slices: int) -> Chart:
    """Join consecutive slices of a chart beyond ``most_slices``.

    The inside of joined slices is left out, as are flows; a note says so.
    """
    count = sum(1 for _ in chart.slices)
    if count <= most_slices:
        return chart
    group = -(-count // most_slices)
    note = (
        f"{count:,} slices are too many: on each track up to {group} that follow each other are "
        "shown as one, without what is inside of them and without arrows"
    )
    processes = [
        replace(process, tracks=tuple([_join_slices(track, group) for track in process.tracks]))
        for process in chart.processes
    ]
    return Chart(processes=tuple(processes), notes=(*chart.notes, note))


def _outer_slices(slices: Sequence[Slice]) -> Iterator[Slice]:
    reached_ps = -1
    for item in slices:
        if item.start_ps >= reached_ps:
            yield item
            reached_ps = max(item.end_ps, item.start_ps)


def _join_slices(track: Track, group: int) -> Track:
    outer = list(_outer_slices(track.slices))
    joins = (_joined_slice(outer[start : start + group]) for start in range(0, len(outer), group))
    return Track(name=track.name, slices=tuple(joins))


def _joined_slice(members: Sequence[Slice]) -> Slice:
    first, last = members[0], members[-1]
    if len(members) == 1:
        return replace(first, starts=(), ends=())
    busy_ps = sum(member.end_ps - member.start_ps for member in members)
    return Slice(
        name=f"{len(members)} slices, {first.name} to {last.name}",
        start_ps=first.start_ps,
        end_ps=last.end_ps,
        category=first.category,
        arguments={"slices": len(members), "busy_s": busy_ps / 1e12},
    )


PERFETTO_SUFFIXES = frozenset({".pftrace", ".perfetto-trace"})
_COMPRESSED = ".gz"
_LEVEL = 6


def write_chart(chart: Chart, file: Path) -> None:
    """Write a chart; equal charts give equal bytes.

    The file's name decides: ``.pftrace`` and ``.perfetto-trace`` are Perfetto's format, others
    JSON; ``.gz`` compresses. Raises `OutputError` for a file that can't be written.
    """
    is_compressed = file.suffix == _COMPRESSED
    suffix = Path(file.stem).suffix if is_compressed else file.suffix
    chart_with_notes = with_notes_shown(chart)
    pieces = (
        perfetto_packets(chart_with_notes)
        if suffix in PERFETTO_SUFFIXES
        else chrome_json(chart_with_notes)
    )
    with replaced_file(file) as temporary, temporary.open("wb") as output:
        if is_compressed:
            # The output must not hold the time and the file's name.
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
    for item in slices:
        start_ns, end_ns = whole_ns(item.start_ps), whole_ns(item.end_ps)
        place = f'"pid":{pid},"tid":{tid},"ts":{_us_text(start_ns)}'
        arguments = f',"args":{_text(item.arguments)}' if item.arguments else ""
        head = f'"name":{_text(item.name)},"cat":{_text(item.category)},"ph":"X"'
        yield start_ns, f'{{{head},{place},"dur":{_us_text(end_ns - start_ns)}{arguments}}}'
        for flow in item.ends:
            yield start_ns, f'{{{_FLOW},"ph":"f","bp":"e","id":{flow},{place}}}'
        for flow in item.starts:
            yield start_ns, f'{{{_FLOW},"ph":"s","id":{flow},{place}}}'


def _counter_events(pid: int, counter: Counter) -> Iterator[tuple[int, str]]:
    name = _text(f"{counter.name} (bytes)")
    for time_ps, value in counter.points:
        time_ns = whole_ns(time_ps)
        text = f'"pid":{pid},"ts":{_us_text(time_ns)},"args":{{"value":{value}}}'
        yield time_ns, f'{{"name":{name},"ph":"C",{text}}}'


def _us_text(time_ns: int) -> str:
    """Return ns in us, for readers that truncate.

    Perfetto multiplies by 1000 and drops the fraction. If the product is just below a whole number,
    0.1 ns is added.

    >>> _us_text(5_000), _us_text(1_233), _us_text(1_001)
    ('5', '1.233', '1.0011')
    """
    microseconds, fraction = divmod(time_ns, 1000)
    if not fraction:
        return str(microseconds)
    text = f"{microseconds}.{fraction:03d}"
    is_kept = int(float(text) * 1000) == time_ns and int(fraction / 1000 * 1000) == fraction
    return text if is_kept else f"{text}1"


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


class _Packet:
    """Fields of ``TracePacket``."""

    TIMESTAMP, SEQUENCE, TRACK_EVENT = 8, 10, 11
    INTERNED_DATA, SEQUENCE_FLAGS, TRACK_DESCRIPTOR = 12, 13, 60


class _Descriptor:
    """Fields of ``TrackDescriptor``."""

    UUID, NAME, PARENT, COUNTER, CHILD_ORDERING, RANK = 1, 2, 5, 8, 11, 12


class _Event:
    """Fields of ``TrackEvent``."""

    CATEGORY, ANNOTATION, TYPE, NAME, TRACK = 3, 4, 9, 10, 11
    COUNTER_VALUE, FLOW, FLOW_END = 30, 47, 48


class _Annotation:
    """Fields of ``DebugAnnotation``."""

    NAME, BOOL, INT, DOUBLE, STRING = 1, 2, 4, 5, 17


class _Interned:
    """Fields of ``InternedData``, each a table of texts."""

    CATEGORIES, NAMES, ARGUMENT_NAMES, TEXTS = 1, 2, 3, 29


_SLICE_BEGIN, _SLICE_END, _COUNTER = 1, 2, 4
_CLEARED, _NEEDED = 1, 2
_SEQUENCE, _PACKET = 1, 1
_UNIT, _UNIT_BYTES = 3, 3
_ROOT, _EXPLICIT = 0, 3
_VARINT, _FIXED64, _LENGTH = 0, 1, 2


def perfetto_packets(chart: Chart) -> Iterator[bytes]:
    """Yield the packets of a chart.

    A process is a track that holds others: viewers keep the order of such tracks alone.
    """
    texts = _Texts()
    yield _packet(_number(_Packet.SEQUENCE_FLAGS, _CLEARED))
    yield _descriptor(_number(_Descriptor.UUID, _ROOT) + _ORDERED)
    uuid = _ROOT
    for number, process in enumerate(chart.processes):
        uuid += 1
        parent = uuid
        yield _track(uuid, process.name, _number(_Descriptor.RANK, number) + _ORDERED)
        for rank, track in enumerate((*process.counters, *process.tracks)):
            uuid += 1
            position = _number(_Descriptor.PARENT, parent) + _number(_Descriptor.RANK, rank)
            match track:
                case Counter():
                    counter = _bytes(_Descriptor.COUNTER, _number(_UNIT, _UNIT_BYTES))
                    yield _track(uuid, track.name, position + counter)
                    yield from _values(uuid, track)
                case Track():
                    yield _track(uuid, track.name, position)
                    yield from _slices(uuid, track, texts)


def _track(uuid: int, name: str, fields: bytes) -> bytes:
    identity = _number(_Descriptor.UUID, uuid) + _bytes(_Descriptor.NAME, name.encode())
    return _descriptor(identity + fields)


def _descriptor(fields: bytes) -> bytes:
    return _packet(_bytes(_Packet.TRACK_DESCRIPTOR, fields))


def _values(uuid: int, counter: Counter) -> Iterator[bytes]:
    head = _number(_Event.TYPE, _COUNTER) + _number(_Event.TRACK, uuid)
    for time_ps, value in counter.points:
        yield _event(time_ps, head + _number(_Event.COUNTER_VALUE, value))


def _slices(uuid: int, track: Track, texts: _Texts) -> Iterator[bytes]:
    """Yield begins and ends; slices end before later ones begin."""
    begin = _number(_Event.TYPE, _SLICE_BEGIN) + _number(_Event.TRACK, uuid)
    end = _number(_Event.TYPE, _SLICE_END) + _number(_Event.TRACK, uuid)
    open_ends: list[int] = []
    for item in track.slices:
        while open_ends and open_ends[-1] <= item.start_ps:
            yield _event(open_ends.pop(), end)
        fields, new = _fields(item, texts)
        if new:
            yield _packet(
                _bytes(_Packet.INTERNED_DATA, new) + _number(_Packet.SEQUENCE_FLAGS, _NEEDED)
            )
        yield _event(item.start_ps, begin + fields)
        open_ends.append(item.end_ps)
    while open_ends:
        yield _event(open_ends.pop(), end)


def _fields(item: Slice, texts: _Texts) -> tuple[bytes, bytes]:
    parts = [
        _number(_Event.CATEGORY, texts.number(_Interned.CATEGORIES, item.category)),
        _number(_Event.NAME, texts.number(_Interned.NAMES, item.name)),
    ]
    parts.extend(texts.argument(name, value) for name, value in item.arguments.items())
    parts.extend(_fixed64(_Event.FLOW, flow) for flow in item.starts)
    parts.extend(_fixed64(_Event.FLOW_END, flow) for flow in item.ends)
    return b"".join(parts), texts.take_new()


def _value(value: Argument, texts: _Texts) -> bytes:
    match value:
        case bool():
            return _number(_Annotation.BOOL, int(value))
        case int():
            return _number(_Annotation.INT, value)
        case float():
            return _key(_Annotation.DOUBLE, _FIXED64) + struct.pack("<d", value)
        case str():
            return _number(_Annotation.STRING, texts.number(_Interned.TEXTS, value))


@dataclass(slots=True, kw_only=True)
class _Texts:
    """Numbers of interned texts, and encoded entries to write."""

    numbers: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    new: list[bytes] = field(default_factory=list[bytes])
    arguments: dict[tuple[str, str], bytes] = field(default_factory=dict[tuple[str, str], bytes])

    def argument(self, name: str, value: Argument) -> bytes:
        """Return an encoded argument; equal texts are encoded once."""
        if not isinstance(value, str):
            return self._argument(name, value)
        encoded = self.arguments.get((name, value))
        if encoded is None:
            encoded = self.arguments[name, value] = self._argument(name, value)
        return encoded

    def _argument(self, name: str, value: Argument) -> bytes:
        number = _number(_Annotation.NAME, self.number(_Interned.ARGUMENT_NAMES, name))
        return _bytes(_Event.ANNOTATION, number + _value(value, self))

    def number(self, table: int, text: str) -> int:
        number = self.numbers.get((table, text))
        if number is None:
            number = self.numbers[table, text] = len(self.numbers) + 1
            self.new.append(_bytes(table, _number(1, number) + _bytes(2, text.encode())))
        return number

    def take_new(self) -> bytes:
        entries = b"".join(self.new)
        self.new.clear()
        return entries


def _event(time_ps: int, fields: bytes) -> bytes:
    return _packet(
        _number(_Packet.TIMESTAMP, whole_ns(time_ps))
        + _bytes(_Packet.TRACK_EVENT, fields)
        + _number(_Packet.SEQUENCE_FLAGS, _NEEDED)
    )


def _packet(fields: bytes) -> bytes:
    return _bytes(_PACKET, fields + _number(_Packet.SEQUENCE, _SEQUENCE))


def _number(number: int, value: int) -> bytes:
    # Protobuf encodes a negative integer as the 64-bit one with the same low bits.
    return _key(number, _VARINT) + _base128(value & 0xFFFF_FFFF_FFFF_FFFF)


def _fixed64(number: int, value: int) -> bytes:
    return _key(number, _FIXED64) + struct.pack("<Q", value)


def _bytes(number: int, value: bytes) -> bytes:
    return _key(number, _LENGTH) + _base128(len(value)) + value


@cache
def _key(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def _base128(number: int) -> bytes:
    # Most numbers are small, and `varint` takes four times as long.
    return _SHORT[number] if number < len(_SHORT) else varint(number)


_SHORT = [varint(number) for number in range(1 << 14)]
_ORDERED = _number(_Descriptor.CHILD_ORDERING, _EXPLICIT)
"""The tracks inside of a track are in the order of their ranks."""
