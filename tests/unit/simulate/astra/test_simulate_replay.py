from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.report.timeline.step import step_chart
from hespas.simulate.astra.simulate import simulate
from hespas.tasks.chakra import format as wire
from hespas.tasks.chakra.reader import read_traces
from hespas.tasks.graph import SendTask, TaskGraph

MakeSystem = Callable[..., System]
COMP, COLL = wire.NodeType.COMP, wire.NodeType.COMM_COLL
SEND, RECV = wire.NodeType.COMM_SEND, wire.NodeType.COMM_RECV


def node(
    number: int, kind: wire.NodeType, us: int, *after: int, **attributes: int | str | bool
) -> bytes:
    fields = {bool: "bool_val", int: "int64_val", str: "string_val"}
    made = wire.schema().node(
        id=number, name=f"n{number}", type=kind, duration_micros=us, data_deps=after
    )
    for name, value in attributes.items():
        made.attr.add(name=name, **{fields[type(value)]: value})
    return made.SerializeToString()


def write(directory: Path, *contents: Sequence[bytes]) -> Path:
    # As PyTorch's observer names its schema.
    head = wire.schema().metadata(version="1.1.1-chakra.0.0.4").SerializeToString()
    for device, content in enumerate(contents):
        (directory / f"t.{device}.et").write_bytes(wire.delimited([head, *content]))
    return directory / "t"


@pytest.fixture
def replaying(make_system: MakeSystem) -> System:
    return make_system(("Switch", 2), options={"replay-only": 1})


def test_everything_lasts_as_long_as_it_was_recorded(tmp_path: Path, replaying: System) -> None:
    content = [
        node(1, COMP, 10),
        # It names no group and no size, and its group has one member: nothing is communicated.
        node(2, COLL, 30, 1, comm_type=0, pg_name="default_pg"),
        node(3, SEND, 5, 1),
        node(4, RECV, 40, 1),
        node(5, COMP, 20, 1),
        node(6, wire.NodeType.MEM_LOAD, 0, 2, tensor_size=100),
        node(7, wire.NodeType.INVALID, 0, 3),
        node(8, COLL, 7, is_cpu_op=True),
        node(9, COMP, 2, is_cpu_op=True),
    ]

    job = read_traces(write(tmp_path, content, content[:2]), is_recorded=True)
    timeline = simulate(job, replaying)

    us = 1_000_000
    one = timeline.of_device(0)
    assert one.nodes == {
        1: (0, 10 * us),
        2: (10 * us, 40 * us),
        3: (40 * us, 45 * us),  # one of these at a time, the lowest id first
        4: (10 * us, 50 * us),  # but receives need no turn
        5: (10 * us, 30 * us),
        6: (45 * us, 45 * us + 1000),
        7: (45 * us + 1000, 45 * us + 2000),
        8: (0, 7 * us),
        9: (7 * us, 9 * us),
    }
    assert one.finish_ps == 50 * us
    assert one.compute_ps == 30 * us
    # What is replayed on the device counts as if it had computed.
    assert one.exposed_communication_ps == (50 - 30 - 30 - 5 - 40) * us - 2000
    assert timeline.of_device(1).finish_ps == 40 * us


def test_recorded_receives_that_overlap_have_tracks_of_their_own(
    tmp_path: Path, replaying: System
) -> None:
    content = [node(1, RECV, 10), node(2, RECV, 20), node(3, SEND, 5)]
    job = read_traces(write(tmp_path, content, content), is_recorded=True)

    (process,) = step_chart(simulate(job, replaying)).processes

    tracks = {each.name: len(each.slices) for each in process.tracks}
    assert tracks["receive 1"] == tracks["receive 2"] == tracks["communication"] == 1


def test_devices_that_recorded_the_same_are_simulated_once(
    tmp_path: Path, make_system: MakeSystem
) -> None:
    content = [node(1, COMP, 10), node(2, COLL, 30, 1, comm_type=0, comm_size=8)]
    system = make_system(("Switch", 8), options={"replay-only": 1})

    timeline = simulate(read_traces(write(tmp_path, *[content] * 8), is_recorded=True), system)

    assert [one.devices for one in timeline.classes] == [tuple(range(8))]


def test_tasks_that_were_not_recorded_are_named(replaying: System) -> None:
    send = SendTask(id=3, name="s", depends_on=(), pairs=((0, 1),), size_bytes=8, tag=0)
    graph = TaskGraph(name="g", device_count=2, tasks=(send,), group_tables=())

    with pytest.raises(SimulationError, match=r"g: .*recorded duration of task 3 \(s\)"):
        simulate(graph, replaying)


def test_where_pytorch_found_a_node_changes_nothing_and_what_is_not_known_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found: dict[str, int | str | bool] = {
        "rf_id": 1, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 4, "fw_tid": 0,
        "op_schema": "aten::mm(Tensor self) -> Tensor", "stream": 7,
    }  # fmt: skip
    plain = read_traces(write(tmp_path, [node(1, COMP, 10)]))

    assert read_traces(write(tmp_path, [node(1, COMP, 10, **found)])).graphs == plain.graphs
    assert not caplog.records
    odd = [node(1, COMP, 10, colour="red"), node(2, COMP, 10, colour="blue", weight=3)]
    assert read_traces(write(tmp_path, odd)).device_count == 1
    assert "unknown attributes are ignored: colour (2 nodes), weight (1 nodes)" in caplog.text
