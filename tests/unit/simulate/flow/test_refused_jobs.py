from __future__ import annotations

from dataclasses import replace

import pytest

from flow_jobs import SWITCH, collective, compute, graph, transfer
from hespas.errors import ConfigError, DeviceCountError, SimulationError
from hespas.hardware.interconnect import (
    switched,
)
from hespas.schedule.tasks import (
    CommunicationKind,
    Job,
    Task,
)
from hespas.simulate.flow.simulate import simulate_flow


def test_unequal_orders_are_a_deadlock_with_its_reasons() -> None:
    # Two groups of the same members, written in another order, are two groups.
    tables = (((0, 1, 2, 3),), ((3, 2, 1, 0),))
    usual = graph(collective(1, table=0), collective(2, table=1, depends_on=(1,)), tables=tables)
    turned = graph(collective(2, table=1), collective(3, table=0, depends_on=(2,)), tables=tables)
    job = Job(graphs=(usual, turned), graph_of_device=(0, 0, 1, 1))

    with pytest.raises(SimulationError) as caught:
        simulate_flow(job, SWITCH, algorithm="ring")

    message = str(caught.value)
    assert "devices 0-1 started ALL_REDUCE 1 (k1) of 4000000 bytes at the start" in message
    assert "but devices 2-3 never did" in message
    assert "wait from the start on for task 2 (k2)" in message
    assert "their orders differ first at devices 0-1: task 1 (k1) and devices 2-3: task 2 (k2)" in (
        message
    )


def test_different_collectives_of_a_group_are_refused() -> None:
    ours = graph(collective(1), devices=4)
    theirs = graph(collective(1, size_bytes=8), devices=4)
    job = Job(graphs=(ours, theirs), graph_of_device=(0, 0, 0, 1))

    with pytest.raises(
        SimulationError, match=r"devices 0-2 started .* of 4000000 bytes .* device 3"
    ):
        simulate_flow(job, SWITCH)


def test_a_message_that_nobody_receives_is_named() -> None:
    send, _ = transfer(1, 0, 1)

    with pytest.raises(
        SimulationError, match=r"device 0 started send 1 \(s\) at the start, but no"
    ):
        simulate_flow(graph(send), SWITCH)


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match="the algorithm is 'rings'"):
        simulate_flow(graph(collective(1)), SWITCH, algorithm="rings")


def test_what_has_no_algorithm_is_refused() -> None:
    network = replace(SWITCH, algorithms={"all_to_all": ("halvingDoubling",)})

    with pytest.raises(
        SimulationError, match=r"among the 4 devices .* no halving-doubling algorithm"
    ):
        simulate_flow(graph(collective(1, kind=CommunicationKind.ALL_TO_ALL)), network)


def test_a_job_of_another_size_is_refused() -> None:
    with pytest.raises(DeviceCountError, match="for 4 devices"):
        simulate_flow(graph(collective(1)), switched(8, bandwidth_bytes_per_s=1e9, latency_s=1e-6))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (compute(1, -1), "the duration is -1 ps"),
        (collective(1, size_bytes=-4), "the size is -4 bytes"),
        (transfer(1, 0, 1, size_bytes=-4)[0], "the size is -4 bytes"),
        (collective(1, table=0), r"the group \[0\] has only one member"),
    ],
)
def test_impossible_tasks_are_refused(task: Task, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        simulate_flow(graph(task, tables=(((0,), (1, 2)),)), SWITCH)


def test_a_job_may_do_nothing() -> None:
    network = switched(1, bandwidth_bytes_per_s=1e9, latency_s=0)

    assert simulate_flow(graph(devices=1), network).finish_ps == 0
