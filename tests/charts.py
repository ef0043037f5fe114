"""Read back what timelines are written as, by the documented rules of both formats."""

from __future__ import annotations

import gzip
import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class ReadSlice:
    """A slice as a viewer has it: times in ns, and the slices inside of it."""

    name: str
    start_ns: int
    end_ns: int
    depth: int
    category: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(kw_only=True)
class ReadChart:
    """What a viewer knows: slices and counters by process and track, and flows as pairs."""

    tracks: dict[tuple[str, str], list[ReadSlice]]
    counters: dict[tuple[str, str], list[tuple[int, int]]]
    flows: list[tuple[ReadSlice, ReadSlice]]

    @property
    def slices(self) -> list[ReadSlice]:
        return [each for slices in self.tracks.values() for each in slices]


def read_chart(file: Path) -> ReadChart:
    """Read a file of either format; `AssertionError` where it breaks a rule of its format."""
    content = file.read_bytes()
    if file.suffix == ".gz":
        content = gzip.decompress(content)
    return read_json(content) if content.startswith(b"{") else read_packets(content)


def read_json(content: bytes) -> ReadChart:
    """Read Trace Event JSON as Perfetto does: times are cut to ns, events sorted by time."""
    events: list[dict[str, Any]] = json.loads(content)["traceEvents"]
    processes = {each["pid"]: each["args"]["name"] for each in events if is_name(each, "process")}
    threads = {
        (each["pid"], each["tid"]): (processes[each["pid"]], each["args"]["name"])
        for each in events
        if is_name(each, "thread")
    }
    tracks: dict[tuple[str, str], list[ReadSlice]] = {name: [] for name in threads.values()}
    assert len(tracks) == len(threads), "two tracks of a process have one name"
    counters: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    open_slices: dict[tuple[str, str], list[ReadSlice]] = defaultdict(list)
    begun: dict[int, ReadSlice] = {}
    flows: list[tuple[ReadSlice, ReadSlice]] = []
    timed = sorted(
        (each for each in events if each["ph"] != "M"), key=lambda each: int(each["ts"] * 1000)
    )
    for event in timed:
        at_ns = int(event["ts"] * 1000)
        if event["ph"] == "C":
            name = (processes[event["pid"]], event["name"])
            counters[name].append((at_ns, event["args"]["value"]))
            continue
        track = threads[event["pid"], event["tid"]]
        opened = open_slices[track]
        match event["ph"]:
            case "X":
                end_ns = at_ns + int(event["dur"] * 1000)
                while opened and opened[-1].end_ns <= at_ns:
                    opened.pop()
                assert not opened or end_ns <= opened[-1].end_ns, "it ends after its outer one"
                one = ReadSlice(
                    name=event["name"],
                    start_ns=at_ns,
                    end_ns=end_ns,
                    depth=len(opened),
                    category=event["cat"],
                    arguments=event.get("args", {}),
                )
                tracks[track].append(one)
                opened.append(one)
            case "s":
                assert event["id"] not in begun
                begun[event["id"]] = opened[-1]
            case "f":
                assert event["bp"] == "e"
                flows.append((begun.pop(event["id"]), opened[-1]))
            case other:
                raise AssertionError(f"unknown event {other}")
    assert not begun, "flows without an end"
    return ReadChart(tracks=tracks, counters=dict(counters), flows=flows)


def is_name(event: dict[str, Any], what: str) -> bool:
    return event["ph"] == "M" and event["name"] == f"{what}_name"


@dataclass(kw_only=True)
class Packets:
    """What the packets so far say, by the numbers of tracks, flows and tables of texts."""

    names: dict[int, str] = field(default_factory=dict[int, str])
    parents: dict[int, int] = field(default_factory=dict[int, int])
    counting: set[int] = field(default_factory=set[int])
    tables: dict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    slices: dict[int, list[ReadSlice]] = field(default_factory=lambda: defaultdict(list))
    opened: dict[int, list[ReadSlice]] = field(default_factory=lambda: defaultdict(list))
    values: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    begun: dict[int, list[ReadSlice]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[int, list[ReadSlice]] = field(default_factory=lambda: defaultdict(list))

    def describe(self, told: dict[int, list[Any]]) -> None:
        """Take in a ``TrackDescriptor``."""
        uuid = told[1][0]
        assert uuid not in self.names
        if uuid == 0 or 5 not in told:
            assert told[11] == [3], "the tracks inside have an order"
            self.names[uuid] = told.get(2, [b""])[0].decode()
            return
        self.names[uuid] = told[2][0].decode()
        self.parents[uuid] = told[5][0]
        assert 12 in told
        if 8 in told:
            self.counting.add(uuid)

    def event(self, at_ns: int, told: dict[int, list[Any]]) -> None:
        """Take in a ``TrackEvent``."""
        track = told[11][0]
        assert track in self.parents
        match told[9][0]:
            case 1:
                self.begin(at_ns, track, told)
            case 2:
                self.opened[track].pop().end_ns = at_ns
            case _:
                assert track in self.counting
                self.values[track].append((at_ns, told[30][0]))

    def begin(self, at_ns: int, track: int, told: dict[int, list[Any]]) -> None:
        one = ReadSlice(
            name=self.tables[2][told[10][0]],
            start_ns=at_ns,
            end_ns=-1,
            depth=len(self.opened[track]),
            category=self.tables[1][told[3][0]],
            arguments=dict(annotation(each, self.tables) for each in told.get(4, [])),
        )
        assert not self.slices[track] or at_ns >= self.slices[track][-1].start_ns
        self.slices[track].append(one)
        self.opened[track].append(one)
        for flow in told.get(47, []):
            self.begun[flow].append(one)
        for flow in told.get(48, []):
            self.ended[flow].append(one)


def read_packets(content: bytes) -> ReadChart:
    """Read Perfetto's packets: ``TrackDescriptor``, ``TrackEvent``, ``InternedData``."""
    packets = Packets()
    for number, packet in fields_of(content):
        assert number == 1
        fields = grouped(packet)
        assert fields[10] == [1]
        for texts in fields.get(12, []):
            for table, entry in fields_of(texts):
                text = grouped(entry)
                packets.tables[table][text[1][0]] = text[2][0].decode()
        for descriptor in fields.get(60, []):
            packets.describe(grouped(descriptor))
        for event in fields.get(11, []):
            packets.event(fields[8][0], grouped(event))
    assert not any(packets.opened.values()), "slices without an end"
    assert all(each.end_ns >= each.start_ns for one in packets.slices.values() for each in one)
    assert packets.begun.keys() == packets.ended.keys()
    assert all(len(ends) == 1 for ends in (*packets.begun.values(), *packets.ended.values()))
    named = {
        track: (packets.names[parent], packets.names[track])
        for track, parent in packets.parents.items()
    }
    return ReadChart(
        tracks={
            name: packets.slices[track]
            for track, name in named.items()
            if track not in packets.counting
        },
        counters={named[track]: packets.values[track] for track in packets.counting},
        flows=[(packets.begun[flow][0], packets.ended[flow][0]) for flow in packets.begun],
    )


def annotation(content: bytes, tables: dict[int, dict[int, str]]) -> tuple[str, Any]:
    fields = grouped(content)
    name = tables[3][fields.pop(1)[0]]
    ((kind, (value,)),) = fields.items()
    match kind:
        case 2:
            return name, bool(value)
        case 4:
            return name, value - (1 << 64) if value >> 63 else value
        case 5:
            return name, struct.unpack("<d", value)[0]
        case _:
            assert kind == 17
            return name, tables[29][value]


def grouped(content: bytes) -> dict[int, list[Any]]:
    """Return the values of a message by the numbers of their fields."""
    found: dict[int, list[Any]] = defaultdict(list)
    for number, value in fields_of(content):
        found[number].append(value)
    return dict(found)


def fields_of(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protobuf message: integers, or bytes."""
    at = 0
    while at < len(content):
        key, at = base128(content, at)
        match key & 7:
            case 0:
                value, at = base128(content, at)
                yield key >> 3, value
            case 1:
                raw, at = content[at : at + 8], at + 8
                yield key >> 3, int.from_bytes(raw, "little") if key >> 3 in (47, 48) else raw
            case 2:
                size, at = base128(content, at)
                assert at + size <= len(content)
                yield key >> 3, content[at : at + size]
                at += size
            case other:
                raise AssertionError(f"wire type {other}")


def base128(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        digit = content[at]
        at += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value, at
        shift += 7
