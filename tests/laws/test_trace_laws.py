from __future__ import annotations

import tempfile
from io import BytesIO
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hespas.tasks.chakra import format as wire
from hespas.tasks.chakra.format import NUMBER_OF_KIND
from hespas.tasks.chakra.reader import read_traces
from hespas.tasks.chakra.writer import write_traces
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    GroupTable,
    Job,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
    as_job,
    find_roles,
    own_tasks,
)

DEVICES = 5


@st.composite
def group_tables(draw: st.DrawFn, *, are_sorted: bool) -> GroupTable:
    devices = draw(st.permutations(range(DEVICES)))
    used = draw(st.integers(min_value=1, max_value=DEVICES))
    cuts = draw(st.sets(st.sampled_from(range(1, used)))) if used > 1 else set[int]()
    edges = [0, *sorted(cuts), used]
    groups = [devices[start:end] for start, end in pairwise(edges)]
    return tuple([tuple(sorted(group) if are_sorted else group) for group in groups])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    count = draw(st.integers(min_value=1, max_value=DEVICES))
    ends = [draw(st.permutations(range(DEVICES)))[:count] for _ in range(2)]
    return tuple(zip(*ends, strict=True))


@st.composite
def tasks(draw: st.DrawFn, number: int, tables: int) -> Task:
    before = draw(st.sets(st.sampled_from(range(1, number)))) if number > 1 else set[int]()
    depends_on = tuple(sorted(before))
    sizes, tags = st.integers(min_value=0, max_value=2**40), st.integers(0, 9)
    kind = draw(st.sampled_from((ComputeTask, CollectiveTask, SendTask, ReceiveTask)))
    if kind is ComputeTask:
        duration_ps = draw(st.integers(min_value=0, max_value=10**10))
        return ComputeTask(
            id=number,
            name="c",
            depends_on=depends_on,
            duration_ps=duration_ps,
            arithmetic_share=draw(st.sampled_from((0.0, 0.25, 1.0))),
        )
    if kind is CollectiveTask:
        return CollectiveTask(
            id=number,
            name="coll",
            depends_on=depends_on,
            kind=draw(st.sampled_from([*NUMBER_OF_KIND])),
            size_bytes=draw(sizes),
            group_table=draw(st.sampled_from((None, *range(tables)))),
        )
    make = SendTask if kind is SendTask else ReceiveTask
    return make(
        id=number,
        name="p",
        depends_on=depends_on,
        pairs=draw(pairs()),
        size_bytes=draw(sizes),
        tag=draw(tags),
    )


@st.composite
def graphs(draw: st.DrawFn, *, are_sorted: bool = False) -> TaskGraph:
    tables = draw(st.lists(group_tables(are_sorted=are_sorted), max_size=3))
    count = draw(st.integers(min_value=0, max_value=8))
    found = [draw(tasks(number, len(tables))) for number in range(1, count + 1)]
    return TaskGraph(name="g", device_count=DEVICES, tasks=tuple(found), group_tables=tuple(tables))


def view(job: Job, device: int) -> list[object]:
    """Return what one device does, however graphs and tables say it."""
    graph = job.graphs[job.graph_of_device[device]]
    roles = find_roles(graph)
    seen: list[object] = []
    for task, partner, depends_on in own_tasks(graph, roles, roles.key(device)):
        match task:
            case ComputeTask():
                what: object = (task.duration_ps, task.arithmetic_share)
            case CollectiveTask(group_table=None):
                what = (task.kind, task.size_bytes, tuple(range(DEVICES)))
            case CollectiveTask(group_table=int(table)):
                group = graph.group_tables[table][partner]
                everyone = tuple(range(DEVICES))
                what = (task.kind, task.size_bytes, everyone if len(group) == DEVICES else group)
            case CollectiveTask():
                what = None
            case SendTask() | ReceiveTask():
                what = (task.size_bytes, task.tag, partner)
            case MemoryTask() | EmptyTask():
                what = task
        seen.append((type(task), task.id, task.name, depends_on, what))
    return seen


@settings(deadline=None, max_examples=60)
@given(graph=graphs())
def test_what_all_devices_do_is_read_as_written(graph: TaskGraph) -> None:
    job = as_job(graph)
    found = written_and_read(job)
    for device in range(DEVICES):
        assert view(found, device) == view(job, device)


# Lists of the same devices in several orders would be several groups, which devices that do
# other things might not use in the same order; the reader refuses that.
@settings(deadline=None, max_examples=60)
@given(
    first=graphs(are_sorted=True),
    second=graphs(are_sorted=True),
    split=st.integers(min_value=0, max_value=DEVICES),
)
def test_what_two_parts_do_is_read_as_written(
    first: TaskGraph, second: TaskGraph, split: int
) -> None:
    graph_of_device = (0,) * split + (1,) * (DEVICES - split)
    job = Job(graphs=(first, second), graph_of_device=graph_of_device)
    found = written_and_read(job)
    for device in range(DEVICES):
        assert view(found, device) == view(job, device)


def written_and_read(job: Job) -> Job:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_traces(job, directory)
        return read_traces(directory / "dev", directory / "comm_group.json")


@settings(deadline=None, max_examples=60)
@given(graph=graphs())
def test_files_hold_whole_microseconds_that_add_up_and_point_backwards(graph: TaskGraph) -> None:
    durations = [task.duration_ps for task in graph.tasks if isinstance(task, ComputeTask)]
    with tempfile.TemporaryDirectory() as name:
        *files, _ = write_traces(as_job(graph), Path(name))
        for file in files:
            seen: set[int] = set()
            micros = 0
            data = file.read_bytes()
            stream = BytesIO(data)
            found = wire.split_delimited(stream, size_bytes=len(data), location=str(file))
            for message in list(found)[1:]:
                node = wire.schema().node.FromString(message)
                assert seen.issuperset(node.data_deps)
                seen.add(node.id)
                micros += node.duration_micros
            assert abs(micros * 10**6 - sum(durations)) < 10**6


@settings(deadline=None, max_examples=30)
@given(graph=graphs())
def test_the_same_job_gives_the_same_bytes(graph: TaskGraph) -> None:
    contents: list[list[bytes]] = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as name:
            contents.append([file.read_bytes() for file in write_traces(graph, Path(name))])
    assert contents[0] == contents[1]
