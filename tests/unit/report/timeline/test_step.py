from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from hespas.hardware.cluster import Cluster
from hespas.hardware.interconnect import Shape, dimension_of
from hespas.hardware.system import RemoteMemory, RemoteMemoryKind, System
from hespas.program.collectives import CollectiveKind
from hespas.report.timeline.step import step_chart
from hespas.report.timeline.write import Chart, Slice
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.flow.simulate import simulate_flow
from hespas.simulate.models import ModelChoice, simulate_job
from hespas.simulate.options import Model
from hespas.simulate.timeline import Timeline
from hespas.tasks.graph import CollectiveTask, ComputeTask, ReceiveTask, SendTask, TaskGraph


def system(devices: int) -> System:
    dimension = dimension_of(Shape.SWITCH, devices, 100 * 2**30, 500e-9)
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
            kind=CollectiveKind.ALL_REDUCE,
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


def track(chart: Chart, process: str, name: str) -> Sequence[Slice]:
    (found,) = [
        each.slices
        for one in chart.processes
        if one.name == process
        for each in one.tracks
        if each.name == name
    ]
    return found


def tracks(chart: Chart) -> list[Sequence[Slice]]:
    return [each.slices for one in chart.processes for each in one.tracks]


def sum_ps(slices: Sequence[Slice]) -> int:
    return sum(each.end_ps - each.start_ps for each in slices)


def test_a_process_names_the_devices_it_stands_for(timeline: Timeline) -> None:
    names = [process.name for process in step_chart(timeline).processes]

    assert names == ["device 0", "device 1", "devices 2-3"]


def test_slices_of_a_track_are_in_order_apart_or_inside_each_other(timeline: Timeline) -> None:
    chart = step_chart(timeline)

    assert track(chart, "device 1", "receive 2")
    for slices in tracks(chart):
        for before, after in pairwise(slices):
            assert before.start_ps <= after.start_ps
            assert before.end_ps <= after.start_ps or after.end_ps <= before.end_ps


def test_computation_and_waiting_fill_the_step(timeline: Timeline) -> None:
    chart = step_chart(timeline)

    for process, device in (("device 0", 0), ("device 1", 1), ("devices 2-3", 2)):
        one = timeline.of_device(device)
        compute, waiting = track(chart, process, "compute"), track(chart, process, "waiting")
        assert sum_ps(compute) == one.compute_ps
        exposed_ps = one.communication_ps - one.overlap_ps
        assert sum_ps(track(chart, process, "exposed communication")) == exposed_ps
        filled = sorted((each.start_ps, each.end_ps) for each in (*compute, *waiting))
        assert filled[0][0] == 0
        assert filled[-1][1] == timeline.finish_ps
        assert all(before[1] == after[0] for before, after in pairwise(filled))


def test_a_slice_tells_what_it_is(timeline: Timeline) -> None:
    chart = step_chart(timeline)

    first = track(chart, "device 0", "compute")[0]
    assert (first.name, first.start_ps, first.end_ps) == ("a", 0, 5_000_123)
    assert first.arguments == {"id": 1, "label": "dot_general"}
    collective = track(chart, "device 0", "communication")[0]
    assert collective.arguments == {"id": 2, "kind": "ALL_REDUCE", "size_bytes": 1 << 20}
    assert track(chart, "device 0", "exposed communication")[0].category == "exposed"


def flows(chart: Chart) -> set[tuple[str, str]]:
    starts: dict[int, str] = {}
    ends: dict[int, str] = {}
    for process in chart.processes:
        for each in process.tracks:
            for one in each.slices:
                starts |= dict.fromkeys(one.starts, f"{one.name} on {process.name}")
                ends |= dict.fromkeys(one.ends, f"{one.name} on {process.name}")
    assert starts.keys() == ends.keys()
    return {(starts[flow], ends[flow]) for flow in starts}


def test_flows_lead_from_what_starts_communication_to_what_waits_for_it(
    timeline: Timeline,
) -> None:
    found = flows(step_chart(timeline))

    first, second, others = "device 0", "device 1", "devices 2-3"
    collective = {
        (f"{a} on {each}", f"{b} on {each}")
        for each in (first, second, others)
        for a, b in (("a", "ar"), ("ar", "c"))
    }
    sends = {
        (f"{a} on {first}", f"{b} on {first}") for a, b in (("b", "s"), ("b", "s2"), ("s", "c"))
    }
    # The receives were posted before: the messages lead to what waits for them.
    receives = {(f"{each} on {second}", f"c on {second}") for each in ("r", "r2")}
    messages = {(f"{each} on {first}", f"c on {second}") for each in ("s", "s2")}
    assert found == collective | sends | receives | messages


def test_a_flow_leads_forward_in_time(timeline: Timeline) -> None:
    chart = step_chart(timeline)

    begun = {flow: each.start_ps for each in chart.slices for flow in each.starts}
    for each in chart.slices:
        assert all(begun[flow] < each.start_ps for flow in each.ends)


def test_a_device_that_is_late_is_what_the_others_wait_for() -> None:
    tasks = (
        ComputeTask(id=0, name="work", depends_on=(), duration_ps=1_000_000),
        CollectiveTask(
            id=1,
            name="ar",
            depends_on=(0,),
            kind=CollectiveKind.ALL_REDUCE,
            size_bytes=1 << 20,
            group_table=None,
        ),
        ComputeTask(id=2, name="after", depends_on=(1,), duration_ps=1_000_000),
    )
    graph = TaskGraph(name="g", device_count=4, tasks=tasks, group_tables=())
    choice = ModelChoice(model=Model.HESPAS, cluster=Cluster(compute_scales={3: 3.0}))

    timeline = simulate_job(graph, system(4), choice)
    chart = step_chart(timeline)

    assert [each.name for each in chart.processes] == ["devices 0-2", "device 3"]
    collective, wait = track(chart, "devices 0-2", "collectives of devices 0-3")
    assert collective.name == "ar"
    assert wait.name == "waits for device 3"
    assert (wait.start_ps, wait.end_ps) == (1_000_000, 3_000_000)
    assert [each.name for each in track(chart, "device 3", "collectives of devices 0-3")] == ["ar"]
    waits = track(chart, "devices 0-2", "waiting")
    assert [each.name for each in waits] == ["waits for ar", "waits for the end of device 3"]
    assert waits[-1].end_ps == timeline.finish_ps


def test_every_stream_of_our_own_model_has_a_track() -> None:
    tables = (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    compute = ComputeTask(id=1, name="c", depends_on=(), duration_ps=5_000_000)
    both = [
        CollectiveTask(
            id=number,
            name=f"k{number}",
            depends_on=(),
            kind=CollectiveKind.ALL_REDUCE,
            size_bytes=1 << 20,
            group_table=number - 2,
        )
        for number in (2, 3)
    ]
    graph = TaskGraph(name="g", device_count=4, tasks=(compute, *both), group_tables=tables)

    (process,) = step_chart(simulate_flow(graph, system(4))).processes

    assert {each.name: [one.name for one in each.slices] for each in process.tracks} == {
        "compute": ["c"],
        "collectives of devices 0, 2": ["k3"],
        "collectives of devices 0-1": ["k2"],
        "exposed communication": ["k2"],
        "waiting": ["waits for k2"],
    }
    exposed = process.tracks[3].slices
    assert exposed[0].start_ps == 5_000_000


def many(count: int) -> Timeline:
    tasks = tuple([
        ComputeTask(id=number, name=f"c{number}", depends_on=(), duration_ps=1_000)
        for number in range(count)
    ])  # fmt: skip
    graph = TaskGraph(name="g", device_count=3, tasks=tasks, group_tables=())
    return simulate_job(
        graph, system(3), ModelChoice(cluster=Cluster(compute_scales={1: 2.0, 2: 3.0}))
    )


def test_classes_are_left_out_where_there_are_too_many_slices() -> None:
    timeline = many(100)

    chart = step_chart(timeline, most_slices=450)

    assert [each.name for each in chart.processes] == ["device 0", "device 2"]
    assert chart.notes == (
        "1 of 3 classes of devices are not shown: the slowest and the first are, up to 450 slices",
    )


def test_slices_are_joined_where_one_class_has_too_many() -> None:
    timeline = many(100)

    chart = step_chart(timeline, most_slices=40)

    assert [each.name for each in chart.processes] == ["device 2"]
    slices = track(chart, "device 2", "compute")
    assert len(slices) <= 40
    assert sum_ps(slices) == timeline.slowest.compute_ps
    assert slices[0].name == "3 slices, c0 to c2"
    assert "100 slices are too many" in chart.notes[-1]
