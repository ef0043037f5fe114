from __future__ import annotations

from pathlib import Path

from hespas.program.collectives import CollectiveKind
from hespas.tasks.chakra.reader import read_traces
from hespas.tasks.chakra.writer import write_traces
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    ReceiveTask,
    SendTask,
    TaskGraph,
    find_roles,
    own_tasks,
)


def make_graph() -> TaskGraph:
    compute = ComputeTask(id=0, name="c", depends_on=(), duration_ps=1)
    send = SendTask(id=1, name="s", depends_on=(0,), pairs=((0, 1),), size_bytes=1, tag=1)
    later = CollectiveTask(
        id=2,
        name="k",
        depends_on=(0, 1),
        kind=CollectiveKind.ALL_REDUCE,
        size_bytes=4,
        group_table=None,
        order_only=(1,),
    )
    receive = ReceiveTask(id=3, name="r", depends_on=(), pairs=((0, 1),), size_bytes=1, tag=1)
    tasks = (compute, send, later, receive)
    return TaskGraph(name="g", device_count=2, tasks=tasks, group_tables=())


def test_dependencies_that_only_keep_the_order_can_be_left_out() -> None:
    graph = make_graph()
    roles = find_roles(graph)

    def waits(device: int, *, keeps_order: bool) -> tuple[int, ...]:
        own = own_tasks(graph, roles, roles.key(device), keeps_order=keeps_order)
        return {task.id: depends_on for task, _, depends_on in own}[2]

    assert waits(0, keeps_order=True) == (0, 1)
    assert waits(0, keeps_order=False) == (0,)
    # Device 1 doesn't send: what waits for the send waits for what it waits for.
    assert waits(1, keeps_order=True) == (0,)
    assert waits(1, keeps_order=False) == (0,)


def test_traces_note_them(tmp_path: Path) -> None:
    *_, groups = write_traces(make_graph(), tmp_path)

    job = read_traces(tmp_path / "dev", groups)

    first, second = (job.graphs[index] for index in job.graph_of_device)
    found = {task.id: task for task in first.tasks}[2]
    assert isinstance(found, CollectiveTask)
    assert (found.depends_on, found.order_only) == ((0, 1), (1,))
    other = {task.id: task for task in second.tasks}[2]
    assert isinstance(other, CollectiveTask)
    assert (other.depends_on, other.order_only) == ((0,), ())
