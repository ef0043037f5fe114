"""Rules of ASTRA-sim that its recorded runs don't decide, each worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hespas.errors import SimulationError
from hespas.hardware.interconnect import Shape, dimension_of
from hespas.hardware.system import RemoteMemory, RemoteMemoryKind, System
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.plan import Queues
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.options import AstraSettings, ContentionModel
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    Job,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
)

MakeSystem = Callable[..., System]


def graph(devices: int, *tasks: Task) -> TaskGraph:
    return TaskGraph(name="g", device_count=devices, tasks=tasks, group_tables=())


def all_reduce(number: int, *after: int, size: int = 800) -> CollectiveTask:
    return CollectiveTask(
        id=number,
        name="ar",
        depends_on=after,
        kind=CollectiveKind.ALL_REDUCE,
        size_bytes=size,
        group_table=None,
    )


def compute(number: int, *after: int, ns: int) -> ComputeTask:
    return ComputeTask(id=number, name="c", depends_on=after, duration_ps=ns * 1000)


def pair(tag: int, other_tag: int, size: int = 8) -> tuple[Task, Task]:
    pairs = ((0, 1),)
    send = SendTask(id=1, name="s", depends_on=(), pairs=pairs, size_bytes=size, tag=tag)
    return send, ReceiveTask(
        id=2, name="r", depends_on=(), pairs=pairs, size_bytes=size, tag=other_tag
    )


def test_one_ring_after_another_dimension_is_a_ring_of_all_devices(
    make_system: MakeSystem,
) -> None:
    shape = (("FullyConnected", 2), ("FullyConnected", 2))
    baseline = make_system(*shape, algorithms=("ring", "oneRing"), optimization="baseline")
    local = make_system(*shape, algorithms=("ring", "oneRing"))

    for by_events in (False, True):
        # A ring of 2, and then one of 4: 100 ns a hop and 1 ns a byte, 1 ns at an endpoint.
        two = 3 * 1 + 2 * (100 + 400)
        four = 7 * 1 + 6 * (100 + 200)
        timeline = simulate(graph(4, all_reduce(1)), baseline, by_events=by_events)
        assert timeline.finish_ps == (two + four) * 1000
        # Scattered among 2, a half is reduced among 4, and gathered among 2 again.
        scatter = gather = 2 * 1 + 100 + 400
        four = 7 * 1 + 6 * (100 + 100)
        timeline = simulate(graph(4, all_reduce(1)), local, by_events=by_events)
        assert timeline.finish_ps == (scatter + four + gather) * 1000


def test_tags_are_taken_modulo_half_a_billion(make_system: MakeSystem) -> None:
    system = make_system(("Switch", 2))

    for by_events in (False, True):
        timeline = simulate(graph(2, *pair(7, 500_000_007)), system, by_events=by_events)
        assert timeline.finish_ps == 208_000
    with pytest.raises(SimulationError, match="no receive of the same ends"):
        simulate(graph(2, *pair(7, 8)), system)


def test_a_computation_of_no_bytes_is_skipped_by_the_roofline(make_system: MakeSystem) -> None:
    system = replace(
        make_system(("Switch", 1), options={"roofline-enabled": 1, "peak-perf": 1}),
        local_memory_bandwidth_bytes_per_s=100e9,
    )
    timed = replace(compute(1, ns=1), operations=10**6, tensor_bytes=1)
    skipped = replace(compute(2, 1, ns=1), operations=10**6, tensor_bytes=0)
    follower = replace(compute(3, 2, ns=1), operations=10**6, tensor_bytes=1)
    later = replace(compute(4, 1, ns=1), operations=10**6, tensor_bytes=1)

    timeline = simulate(graph(1, timed, skipped, follower, later), system)

    # It ends when it starts, but its follower waits for the next end of anything.
    us = 1_000_000
    assert timeline.of_device(0).nodes == {
        1: (0, us),
        2: (us, us),
        3: (2 * us, 3 * us),
        4: (us, 2 * us),
    }
    with pytest.raises(SimulationError, match="needs num_ops, above 0, and tensor_size"):
        simulate(graph(1, replace(timed, operations=0)), system)


def test_turns_in_queues_go_on_from_collective_to_collective() -> None:
    queues = Queues(width=1)

    assert [queues.allocate(range(2), 3) for _ in range(3)] == [0, 1, 0]
    assert [queues.allocate(range(4, 8), 2) for _ in range(3)] == [0, 2, 0]
    assert queues.allocate(range(1), 5) == queues.allocate(range(1), 5) == 0


def test_every_other_collective_of_one_chunk_turns_backwards(make_system: MakeSystem) -> None:
    system = make_system(("Ring", 4), optimization="baseline")
    slow, fast = (
        graph(4, all_reduce(1), compute(2, 1, ns=ns), all_reduce(3, 2)) for ns in (1001, 1)
    )
    job = Job(graphs=(fast, slow), graph_of_device=(0, 0, 1, 0))

    forwards, alternating = (
        simulate(job, system, settings=AstraSettings(num_queues_per_dim=queues))
        for queues in (1, 2)
    )

    # With two queues the second collective takes the other one, whose ring turns backwards: the
    # wait for the straggler, device 2, goes around the other way.
    assert [alternating.of_device(device).nodes[3] for device in range(4)] == [
        forwards.of_device((4 - device) % 4).nodes[3] for device in range(4)
    ]
    assert forwards.of_device(1).nodes[3] != forwards.of_device(3).nodes[3]


@pytest.mark.parametrize("by_events", [False, True])
def test_what_takes_no_time_at_the_very_start_is_refused_and_later_is_not(
    make_system: MakeSystem, by_events: bool
) -> None:
    system = replace(make_system(("Switch", 4)), endpoint_delay_s=0)

    with pytest.raises(SimulationError, match="takes no time at the very start"):
        simulate(graph(4, all_reduce(1)), system, by_events=by_events)
    later = simulate(graph(4, compute(1, ns=1), all_reduce(2, 1)), system, by_events=by_events)
    assert later.finish_ps == (1 + 6 * (200 + 200)) * 1000


def test_a_message_without_latency_at_the_very_start_is_refused(make_system: MakeSystem) -> None:
    system = make_system(("FullyConnected", 2))
    free = dimension_of(Shape.FULLY_CONNECTED, 2, 1e15, 0.0)
    system = replace(system, dimensions=(free,))

    for network in ContentionModel:
        with pytest.raises(SimulationError, match="a message takes no time at the very start"):
            simulate(graph(2, *pair(1, 1)), system, network=network)


def test_a_memory_access_of_no_time_at_the_very_start_is_refused(make_system: MakeSystem) -> None:
    memory = RemoteMemory(
        kind=RemoteMemoryKind.PER_NPU_MEMORY_EXPANSION,
        latency_s=0.5e-9,
        bandwidth_bytes_per_s=100e9,
    )
    load = MemoryTask(id=1, name="m", depends_on=(), size_bytes=99, is_store=False)
    system = replace(make_system(("Switch", 1)), remote_memory=memory)

    with pytest.raises(SimulationError, match="a memory access takes no time"):
        simulate(graph(1, load), system)
