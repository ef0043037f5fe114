from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hespas.hardware.system import (
    CollectiveKind,
    NetworkDimension,
    RemoteMemory,
    RemoteMemoryKind,
    System,
    Topology,
)
from hespas.schedule.perfetto import write_perfetto
from hespas.schedule.tasks import (
    CollectiveTask,
    CommunicationKind,
    ComputeTask,
    ReceiveTask,
    SendTask,
    TaskGraph,
)
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.flow.simulate import simulate_flow
from hespas.simulate.timeline import Timeline


@dataclass(frozen=True)
class Track:
    process: str
    name: str


def system(devices: int) -> System:
    dimension = NetworkDimension(
        topology=Topology.SWITCH,
        npus_count=devices,
        bandwidth_bytes_per_s=100 * 2**30,
        latency_s=500e-9,
    )
    return System(
        name="test",
        dimensions=(dimension,),
        implementations={CollectiveKind.ALL_REDUCE: ("ring",)},
        endpoint_delay_s=1e-9,
        preferred_dataset_splits=1,
        active_chunks_per_dimension=1,
        collective_optimization="baseline",
        scheduling_policy="LIFO",
        local_memory_bandwidth_bytes_per_s=1555e9,
        remote_memory=RemoteMemory(kind=RemoteMemoryKind.NO_MEMORY_EXPANSION),
        options={},
    )


@pytest.fixture
def timeline() -> Timeline:
    ends = {"pairs": ((0, 1),), "size_bytes": 1 << 20}
    tasks = (
        ComputeTask(id=1, name="a", depends_on=(), duration_ps=5_000_123, label="dot_general"),
        CollectiveTask(
            id=2,
            name="ar",
            depends_on=(1,),
            kind=CommunicationKind.ALL_REDUCE,
            size_bytes=1 << 20,
            group_table=None,
        ),
        ComputeTask(id=3, name="b", depends_on=(1,), duration_ps=9_000_000),
        SendTask(id=4, name="s", depends_on=(3,), tag=0, **ends),  # pyright: ignore[reportArgumentType]
        ReceiveTask(id=5, name="r", depends_on=(), tag=0, **ends),  # pyright: ignore[reportArgumentType]
        SendTask(id=6, name="s2", depends_on=(3,), tag=1, **ends),  # pyright: ignore[reportArgumentType]
        ReceiveTask(id=7, name="r2", depends_on=(), tag=1, **ends),  # pyright: ignore[reportArgumentType]
        ComputeTask(id=8, name="c", depends_on=(2, 4, 5, 7), duration_ps=1_500),
    )
    graph = TaskGraph(name="g", device_count=4, tasks=tasks, group_tables=())
    return simulate(graph, system(4))


def read(file: Path) -> tuple[dict[Track, list[dict[str, Any]]], list[str]]:
    events = json.loads(file.read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    tracks: dict[Track, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            name = threads[event["pid"], event["tid"]]
            tracks[Track(processes[event["pid"]], name)].append(event)
    return tracks, list(processes.values())


def test_a_process_names_the_devices_it_stands_for(timeline: Timeline, tmp_path: Path) -> None:
    write_perfetto(timeline, tmp_path / "t.json")

    _, processes = read(tmp_path / "t.json")

    assert processes == ["device 0", "device 1", "devices 2-3"]


def test_events_of_a_track_are_in_order_and_apart(timeline: Timeline, tmp_path: Path) -> None:
    write_perfetto(timeline, tmp_path / "t.json")

    tracks, _ = read(tmp_path / "t.json")

    assert Track("device 1", "receive 2") in tracks
    for events in tracks.values():
        for before, after in pairwise(events):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-9


def test_tracks_add_up_to_the_timeline(timeline: Timeline, tmp_path: Path) -> None:
    write_perfetto(timeline, tmp_path / "t.json")

    tracks, _ = read(tmp_path / "t.json")

    def sum_us(process: str, track: str) -> float:
        return sum(event["dur"] for event in tracks[Track(process, track)])

    for process, device in (("device 0", 0), ("device 1", 1), ("devices 2-3", 2)):
        one = timeline.of_device(device)
        assert sum_us(process, "compute") == pytest.approx(one.compute_ps / 1e6)
        hidden_ps = one.overlap_ps
        exposed_us = (one.communication_ps - hidden_ps) / 1e6
        assert sum_us(process, "exposed communication") == pytest.approx(exposed_us)
    ends = [event["ts"] + event["dur"] for events in tracks.values() for event in events]
    assert max(ends) == pytest.approx(timeline.finish_ps / 1e6)


def test_an_event_tells_what_it_is(timeline: Timeline, tmp_path: Path) -> None:
    write_perfetto(timeline, tmp_path / "t.json")

    tracks, _ = read(tmp_path / "t.json")

    first = tracks[Track("device 0", "compute")][0]
    assert (first["name"], first["ts"], first["dur"]) == ("a", 0, 5.000123)
    assert first["args"] == {"id": 1, "label": "dot_general"}
    collective = tracks[Track("device 0", "communication")][0]
    assert collective["args"] == {"id": 2, "kind": "ALL_REDUCE", "size_bytes": 1 << 20}
    assert tracks[Track("device 0", "exposed communication")][0]["cat"] == "exposed"


def test_the_same_timeline_gives_the_same_bytes(timeline: Timeline, tmp_path: Path) -> None:
    write_perfetto(timeline, tmp_path / "1.json")
    write_perfetto(timeline, tmp_path / "2.json")

    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()


def test_every_stream_of_our_own_model_has_a_track(tmp_path: Path) -> None:
    tables = (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    compute = ComputeTask(id=1, name="c", depends_on=(), duration_ps=5_000_000)
    both = [
        CollectiveTask(
            id=number,
            name=f"k{number}",
            depends_on=(),
            kind=CommunicationKind.ALL_REDUCE,
            size_bytes=1 << 20,
            group_table=number - 2,
        )
        for number in (2, 3)
    ]
    graph = TaskGraph(name="g", device_count=4, tasks=(compute, *both), group_tables=tables)

    write_perfetto(simulate_flow(graph, system(4)), tmp_path / "t.json")

    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events
             if event["name"] == "thread_name"}  # fmt: skip
    tracks = {event["name"]: names[event["tid"]] for event in events
              if event["ph"] == "X" and event["cat"] == "communication"}  # fmt: skip
    assert tracks == {"k2": "collectives of devices 0-1", "k3": "collectives of devices 0, 2"}
    exposed = [event for event in events if event.get("cat") == "exposed"]
    assert [names[event["tid"]] for event in exposed] == ["exposed communication"]
    assert exposed[0]["ts"] == 5
