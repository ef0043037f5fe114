from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from hespas.errors import TraceError
from hespas.program.collectives import CollectiveKind
from hespas.tasks.chakra import format as et
from hespas.tasks.chakra.reader import read_traces
from hespas.tasks.chakra.writer import write_traces
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    GroupTable,
    Job,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
)


def compute(number: int, *after: int, ps: int = 1_000_000) -> ComputeTask:
    return ComputeTask(id=number, name=f"c{number}", depends_on=after, duration_ps=ps)


def all_reduce(number: int, *after: int, table: int | None = None) -> CollectiveTask:
    return CollectiveTask(
        id=number,
        name=f"ar{number}",
        depends_on=after,
        kind=CollectiveKind.ALL_REDUCE,
        size_bytes=4096,
        group_table=table,
    )


def graph(devices: int, tasks: Sequence[Task], tables: tuple[GroupTable, ...] = ()) -> TaskGraph:
    return TaskGraph(name="g", device_count=devices, tasks=tuple(tasks), group_tables=tables)


def nodes(file: Path) -> list[et.Node]:
    data = file.read_bytes()
    found = et.split_delimited(BytesIO(data), size_bytes=len(data), location=str(file))
    messages = list(found)
    assert et.schema().metadata.FromString(messages[0]).version == "0.0.4"
    return [et.schema().node.FromString(message) for message in messages[1:]]


def values(node: et.Node) -> dict[str, object]:
    return {a.name: getattr(a, a.WhichOneof("value") or "") for a in node.attr}


def node_bytes(number: int, kind: et.NodeType, **attributes: float | str | bool) -> bytes:
    fields = {bool: "bool_val", int: "int64_val", float: "double_val", str: "string_val"}
    node = et.schema().node(id=number, name=f"n{number}", type=kind)
    for name, value in attributes.items():
        node.attr.add(name=name, **{fields[type(value)]: value})
    return node.SerializeToString()


def write_raw(directory: Path, *contents: Sequence[bytes]) -> Path:
    directory.mkdir(exist_ok=True)
    head = et.schema().metadata(version="0.0.4").SerializeToString()
    for device, content in enumerate(contents):
        (directory / f"dev.{device}.et").write_bytes(et.delimited([head, *content]))
    return directory / "dev"


def test_a_node_has_the_bytes_the_format_asks_for(tmp_path: Path) -> None:
    write_traces(graph(1, [compute(1, ps=2_000_000)]), tmp_path)

    node = b"\x08\x01\x12\x02c1\x18\x04\x38\x02"
    not_cpu = b"\x52\x0e\x0a\x09is_cpu_op\xd8\x01\x00"
    exact = b"\x52\x16\x0a\x0bduration_ns\x19" + b"\x00\x00\x00\x00\x00\x40\x9f\x40"
    body = node + not_cpu + exact
    assert (tmp_path / "dev.0.et").read_bytes() == b"\x07\x0a\x050.0.4" + et.varint(
        len(body)
    ) + body


def test_a_collective_names_kind_size_and_group(tmp_path: Path) -> None:
    files = write_traces(graph(2, [compute(1), all_reduce(2, 1)]), tmp_path)

    assert [file.name for file in files] == ["dev.0.et", "dev.1.et", "comm_group.json"]
    collective = nodes(files[1])[1]
    assert (collective.id, collective.type) == (2, et.NodeType.COMM_COLL)
    assert list(collective.data_deps) == [1]
    expected = {"is_cpu_op": False, "comm_type": 0, "comm_size": 4096, "pg_name": "1"}
    assert values(collective) == expected
    assert json.loads(files[-1].read_text()) == {"1": [0, 1]}


def test_equal_devices_share_one_file(tmp_path: Path) -> None:
    *files, _ = write_traces(graph(64, [compute(1), all_reduce(2, 1)]), tmp_path)

    assert len({file.stat().st_ino for file in files}) == 1


def test_devices_of_other_groups_differ_by_the_group_name(tmp_path: Path) -> None:
    tables = (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    *files, groups = write_traces(
        graph(4, [all_reduce(1, table=0), all_reduce(2, 1, table=1)], tables), tmp_path
    )

    names = [[values(node)["pg_name"] for node in nodes(file)] for file in files]
    assert names == [["1", "3"], ["1", "4"], ["2", "3"], ["2", "4"]]
    assert json.loads(groups.read_text()) == {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}


def test_without_collectives_one_group_holds_everyone(tmp_path: Path) -> None:
    *_, groups = write_traces(graph(3, [compute(1)]), tmp_path)

    assert json.loads(groups.read_text()) == {"1": [0, 1, 2]}


def test_a_device_outside_a_group_inherits_the_dependencies(tmp_path: Path) -> None:
    tasks = [compute(1), compute(2), all_reduce(3, 1, 2, table=0), compute(4, 3, 1)]
    *files, _ = write_traces(graph(3, tasks, (((0, 1),),)), tmp_path)

    assert [list(node.data_deps) for node in nodes(files[0])] == [[], [], [1, 2], [3, 1]]
    assert [list(node.data_deps) for node in nodes(files[2])] == [[], [], [1, 2]]


def test_a_ladder_of_skipped_tasks_costs_no_exponential_time(tmp_path: Path) -> None:
    tasks: list[Task] = [compute(1), all_reduce(2, 1, table=0), all_reduce(3, 1, table=0)]
    for number in range(4, 204, 2):
        before = (number - 2, number - 1)
        tasks += [all_reduce(number + i, *before, table=0) for i in range(2)]
    tasks.append(compute(300, 202, 203))

    write_traces(graph(3, tasks, (((0, 1),),)), tmp_path)

    assert [list(node.data_deps) for node in nodes(tmp_path / "dev.2.et")] == [[], [1]]


def test_transfers_name_both_ends_and_only_their_devices_have_them(tmp_path: Path) -> None:
    pairs = ((0, 1), (1, 2))
    common = {"name": "t", "pairs": pairs, "size_bytes": 64, "tag": 7}
    send = SendTask(id=1, depends_on=(), **common)  # pyright: ignore[reportArgumentType]
    receive = ReceiveTask(id=2, depends_on=(), **common)  # pyright: ignore[reportArgumentType]
    *files, _ = write_traces(graph(3, [send, receive]), tmp_path)

    kinds = [[(node.id, node.type) for node in nodes(file)] for file in files]
    assert kinds == [[(1, 5)], [(1, 5), (2, 6)], [(2, 6)]]
    expected = {"is_cpu_op": False, "comm_size": 64, "comm_src": 1, "comm_dst": 2, "comm_tag": 7}
    assert values(nodes(files[1])[0]) == values(nodes(files[2])[0]) == expected


def test_rounding_errors_are_carried_forward(tmp_path: Path) -> None:
    write_traces(graph(1, [compute(i, ps=400_000) for i in range(1, 11)]), tmp_path)

    found = nodes(tmp_path / "dev.0.et")
    assert [node.duration_micros for node in found] == [0, 1, 0, 1, 0, 0, 1, 0, 1, 0]
    assert {values(node)["duration_ns"] for node in found} == {400.0}


def test_writing_twice_gives_the_same_bytes_and_removes_what_is_stale(tmp_path: Path) -> None:
    tasks = [compute(1), all_reduce(2, 1)]
    write_traces(graph(8, tasks), tmp_path)
    before = (tmp_path / "dev.0.et").read_bytes()
    write_traces(graph(2, tasks), tmp_path)

    assert sorted(file.name for file in tmp_path.glob("*.et")) == ["dev.0.et", "dev.1.et"]
    assert (tmp_path / "dev.0.et").read_bytes() == before


def test_rewriting_one_device_leaves_former_twins_alone(tmp_path: Path) -> None:
    first, second = graph(2, [compute(1)]), graph(2, [compute(1), compute(2)])
    write_traces(first, tmp_path)
    write_traces(Job(graphs=(first, second), graph_of_device=(0, 1)), tmp_path)

    assert [len(nodes(tmp_path / f"dev.{device}.et")) for device in (0, 1)] == [1, 2]


def test_where_links_are_refused_files_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    *files, _ = write_traces(graph(3, [compute(1)]), tmp_path)

    assert len({file.stat().st_ino for file in files}) == 3
    assert len({file.read_bytes() for file in files}) == 1


def test_a_job_comes_back_as_it_was(tmp_path: Path) -> None:
    tables = (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    tasks = [compute(1), all_reduce(2, 1, table=0), all_reduce(3, 2, table=1), all_reduce(4, 3)]
    written = graph(4, tasks, tables)
    write_traces(written, tmp_path)

    job = read_traces(tmp_path / "dev", tmp_path / "comm_group.json")

    assert job == Job(graphs=(replace(written, name="dev 0"),), graph_of_device=(0, 0, 0, 0))


def test_what_arithmetic_bounds_comes_back_and_has_no_attribute_where_that_is_all(
    tmp_path: Path,
) -> None:
    task = replace(compute(1), arithmetic_share=0.25)
    file, *_ = write_traces(graph(2, [task, compute(2)]), tmp_path)

    assert read_traces(tmp_path / "dev").graphs[0].tasks == (task, compute(2))
    assert file.read_bytes().count(b"arithmetic_share") == 1


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), "half"])
def test_a_share_beyond_all_is_refused(share: float | str, tmp_path: Path) -> None:
    prefix = write_raw(tmp_path, [node_bytes(1, et.NodeType.COMP, arithmetic_share=share)])

    with pytest.raises(TraceError, match=r"arithmetic_share is .*, not a share"):
        read_traces(prefix)


def test_involved_dimensions_come_back(tmp_path: Path) -> None:
    task = replace(all_reduce(1), involved_dimensions=(True, False))
    write_traces(graph(4, [task]), tmp_path)

    assert read_traces(tmp_path / "dev").graphs[0].tasks == (task,)


def test_a_whole_microsecond_file_reads_zero_as_one_nanosecond(tmp_path: Path) -> None:
    prefix = write_raw(tmp_path, [node_bytes(1, et.NodeType.COMP, is_cpu_op=False)])

    (task,) = read_traces(prefix).graphs[0].tasks

    assert isinstance(task, ComputeTask)
    assert task.duration_ps == 1000


@pytest.mark.parametrize(
    ("attributes", "has_duration", "duration_ps"),
    [
        ({"num_ops": 1000, "tensor_size": 64}, False, 1000),
        ({"num_ops": 1000}, False, 1000),
        ({"tensor_size": 64}, False, 1000),
        ({"num_ops": 0, "tensor_size": 0}, True, 1000),
        ({"num_ops": 1000, "duration_ns": 0}, True, 0),
        ({"num_ops": 1000, "is_cpu_op": True}, True, 1000),
        ({}, True, 1000),
    ],
)
def test_work_without_a_duration_is_marked(
    attributes: dict[str, int], has_duration: bool, duration_ps: int, tmp_path: Path
) -> None:
    prefix = write_raw(tmp_path / "given", [node_bytes(1, et.NodeType.COMP, **attributes)])

    job = read_traces(prefix)
    (task,) = job.graphs[0].tasks

    assert isinstance(task, ComputeTask)
    assert (task.has_duration, task.duration_ps) == (has_duration, duration_ps)
    write_traces(job.graphs[0], tmp_path / "again")
    assert read_traces(tmp_path / "again" / "dev").graphs[0].tasks == (task,)


COLL, SEND, COMP = (
    et.NodeType.COMM_COLL,
    et.NodeType.COMM_SEND,
    et.NodeType.COMP,
)


def test_metadata_is_left_out_and_dependencies_lead_through_it(tmp_path: Path) -> None:
    def node(number: int, kind: et.NodeType, *after: int, **attributes: int | str) -> bytes:
        return (
            node_bytes(number, kind, **attributes)
            + et.schema().node(data_deps=after).SerializeToString()
        )

    metadata = et.NodeType.METADATA
    content = [
        node(1, COMP),
        node(2, metadata, 1, process="rank 0"),
        node(6, COMP, 4, 1, 2),  # before what it depends on
        node(3, COMP),
        node(4, metadata, 2, 3),
        node(5, metadata),
        node(7, COMP, 5),
        node(8, COLL, 2, 3, comm_type=0, comm_size=8, order_only="2"),
    ]

    tasks = read_traces(write_raw(tmp_path, content)).graphs[0].tasks

    assert {task.id: task.depends_on for task in tasks} == {
        1: (),
        3: (),
        6: (1, 3),
        7: (),
        8: (1, 3),
    }
    (collective,) = (task for task in tasks if isinstance(task, CollectiveTask))
    assert collective.order_only == (1,)
    circle = [node(1, metadata, 2), node(2, metadata, 1)]
    with pytest.raises(TraceError, match="in a circle"):
        read_traces(write_raw(tmp_path, circle))


def test_a_file_whose_nodes_are_out_of_order_is_put_in_order(tmp_path: Path) -> None:
    late = et.schema().node(id=1, name="a", type=et.NodeType.COMP, ctrl_deps=[2])
    prefix = write_raw(tmp_path, [late.SerializeToString(), node_bytes(2, et.NodeType.COMP)])

    tasks = read_traces(prefix).graphs[0].tasks

    assert [(task.id, task.depends_on) for task in tasks] == [(2, ()), (1, (2,))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([node_bytes(1, COLL, comm_size=8)], "node 1 (n1): comm_type is missing"),
        ([node_bytes(1, COLL, comm_type=0)], "node 1 (n1): comm_size is missing"),
        ([node_bytes(1, COLL, comm_type=0, comm_size=-1)], "comm_size is negative: -1"),
        ([node_bytes(1, COLL, comm_type=99, comm_size=1)], "comm_type 99 is not a collective"),
        ([node_bytes(1, COLL, comm_type=0, comm_size="8")], "comm_size is '8', not an integer"),
        ([node_bytes(1, COLL, comm_type=0, comm_size=1, pg_name="x")], "pg_name is 'x'"),
        ([node_bytes(1, COLL, comm_type=0, comm_size=1, pg_name="7")], "there is no group 7"),
        ([node_bytes(1, COLL, comm_type=0, comm_size=1, pg_name="2")], "group 2 doesn't hold"),
        ([node_bytes(1, SEND, comm_size=8, comm_dst=9, comm_tag=0)], "the peer 9 is not one of"),
        ([node_bytes(1, SEND, comm_size=8, comm_tag=0)], "comm_dst is missing"),
        ([node_bytes(1, SEND, comm_size=8, comm_dst=1, comm_src=1, comm_tag=0)], "part of device"),
        ([node_bytes(1, et.NodeType.MEM_LOAD)], "tensor_size is missing"),
        ([node_bytes(1, SEND, is_cpu_op=True)], "communication of the CPU has no model here"),
        ([node_bytes(1, COMP, duration_ns="long")], "duration_ns is 'long', not a duration"),
        ([node_bytes(1, COMP), node_bytes(1, COMP)], "node 1 (n1): the id is used twice"),
        ([b"\x08"], "message 1: the message is damaged"),
    ],
)  # fmt: skip
def test_a_bad_node_is_named(content: list[bytes], message: str, tmp_path: Path) -> None:
    groups = tmp_path / "groups.json"
    groups.write_text('{"1": [0], "2": [1]}')
    prefix = write_raw(tmp_path, content, [])

    with pytest.raises(TraceError) as caught:
        read_traces(prefix, groups)

    assert str(tmp_path / "dev.0.et") in str(caught.value)
    assert message in str(caught.value)


def test_an_unknown_dependency_and_a_circle_are_named(tmp_path: Path) -> None:
    one = et.schema().node(id=1, name="a", type=COMP, data_deps=[2]).SerializeToString()
    two = et.schema().node(id=2, name="b", type=COMP, data_deps=[1]).SerializeToString()

    with pytest.raises(TraceError, match=r"node 1 \(a\): the node depends on 2, which is not"):
        read_traces(write_raw(tmp_path, [one]))
    with pytest.raises(TraceError, match="in a circle"):
        read_traces(write_raw(tmp_path, [one, two]))


def test_a_truncated_file_is_named_wherever_it_is_cut(tmp_path: Path) -> None:
    write_traces(graph(1, [compute(1), all_reduce(2, 1)]), tmp_path)
    file = tmp_path / "dev.0.et"
    data = file.read_bytes()
    whole = {0, 8, len(data) - len(data[8:].split(b"\x08\x02", 1)[1]) - 3}
    for end in set(range(len(data))) - whole:
        file.write_bytes(data[:end])
        with pytest.raises(TraceError, match=r"dev\.0\.et"):
            read_traces(tmp_path / "dev", tmp_path / "comm_group.json")


def test_a_missing_device_is_named(tmp_path: Path) -> None:
    write_traces(graph(3, [compute(1)]), tmp_path)
    (tmp_path / "dev.1.et").unlink()

    with pytest.raises(TraceError, match=r"dev\.1\.et is missing, but dev\.2\.et exists"):
        read_traces(tmp_path / "dev")


def test_no_files_and_no_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"there is no dev\.0\.et"):
        read_traces(tmp_path / "dev")
    with pytest.raises(TraceError, match="there is no such directory"):
        read_traces(tmp_path / "gone" / "dev")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        ('{"0": [0]}', "group '0': the name is not a positive number"),
        ('{"1": []}', "not a list of devices"),
        ('{"1": [0, 5]}', "5 is not one of the 2 devices"),
        ('{"1": [true]}', "True is not one of the 2 devices"),
        ('{"1": [0, 0]}', "a device is named twice"),
    ],
)
def test_a_bad_group_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    write_traces(graph(2, [compute(1)]), tmp_path)
    groups = tmp_path / "comm_group.json"
    groups.write_text(text)

    with pytest.raises(TraceError) as caught:
        read_traces(tmp_path / "dev", groups)

    assert str(groups) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (graph(2, [compute(2, 1), compute(1)]), "is not before it"),
        (graph(2, [all_reduce(1, table=0)]), "no group table 0"),
        (graph(2, [all_reduce(1, table=0)], (((0, 2),),)), "device 2 is not among"),
        (graph(2, [all_reduce(1, table=0)], (((0, 1), (1,)),)), "takes part twice"),
        (graph(2, [replace(all_reduce(1), size_bytes=-1)]), "the size is -1 bytes"),
        (graph(2, [compute(1, ps=-1)]), "negative duration"),
        (graph(2, [compute(1), compute(1)]), "the id is used twice"),
    ],
)
def test_a_graph_that_contradicts_itself_is_not_written(
    bad: TaskGraph, message: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError, match=message):
        write_traces(bad, tmp_path)


def test_importing_the_writer_leaves_protobuf_alone() -> None:
    code = "import sys, hespas.tasks.chakra.reader; sys.exit('google.protobuf' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_groups_of_the_same_members_in_another_order_are_refused(tmp_path: Path) -> None:
    groups = tmp_path / "groups.json"
    groups.write_text('{"1": [0, 1], "2": [1, 0]}')
    fields = {"comm_type": 0, "comm_size": 8}
    contents = [
        [node_bytes(i, COLL, pg_name=name, **fields) for i, name in enumerate(names, 1)]
        for names in ("12", "21")
    ]

    with pytest.raises(TraceError, match="in another order than in"):
        read_traces(write_raw(tmp_path, *contents), groups)
