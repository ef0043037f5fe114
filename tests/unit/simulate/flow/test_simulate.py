"""Jobs whose times can be worked out by hand: 1 us a wire, 1 GB/s, so 1 MB takes 1 ms."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from flow_jobs import MB, MS, SWITCH, US, WIRE, collective, compute, graph, one_dimension, transfer
from hespas.errors import ConfigError, DeviceCountError, HardwareError, SimulationError
from hespas.hardware.cluster import Cluster, LinkOverride
from hespas.hardware.interconnect import (
    Dimension,
    Dimensions,
    Dragonfly,
    Interconnect,
    Shape,
    dimension_of,
    switched,
)
from hespas.hardware.links import Link, LinkParameters, MeasuredCollective, Protocol, load_link
from hespas.hardware.system import ASTRA_SHAPES, RemoteMemory, RemoteMemoryKind, System
from hespas.program.collectives import COMMON_KINDS, CollectiveKind
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.flow.simulate import simulate_flow
from hespas.tasks.graph import HOST_LAUNCH, CollectiveTask, Job, Task, TaskGraph


def alone_ps(
    kind: CollectiveKind, algorithm: str, network: Interconnect, size_bytes: int = 4 * MB
) -> int:
    task = collective(1, kind=kind, size_bytes=size_bytes)
    job = graph(task, devices=network.device_count)
    return simulate_flow(job, network, algorithm=algorithm).finish_ps


@pytest.mark.parametrize(
    ("kind", "algorithm", "expected_ps"),
    [
        ("ALL_REDUCE", "ring", 6 * (2 * US + MS)),
        ("ALL_REDUCE", "direct", 2 * (2 * US + 3 * MS)),
        ("ALL_REDUCE", "halving-doubling", 2 * (2 * US + 2 * MS + 2 * US + MS)),
        # Depth 2; at the second level two children send to one parent.
        ("ALL_REDUCE", "double-binary-tree", 4 * 2 * US + 2 * (8 * MS + 4 * MS)),
        ("REDUCE_SCATTER", "ring", 3 * (2 * US + MS)),
        ("ALL_GATHER", "ring", 3 * (2 * US + 4 * MS)),
        ("ALL_GATHER", "halving-doubling", 2 * US + 4 * MS + 2 * US + 8 * MS),
        ("ALL_TO_ALL", "direct", 2 * US + 3 * MS),
        ("ALL_TO_ALL", "ring", 6 * (2 * US + MS)),
        ("BROADCAST", "ring", 3 * 2 * US + 4 * MS),
        ("BROADCAST", "binomial-tree", 2 * (2 * US + 4 * MS)),
        ("REDUCE", "binomial-tree", 2 * (2 * US + 4 * MS)),
        # All others' messages come down one wire, or leave by one.
        ("GATHER", "direct", 2 * US + 12 * MS),
        ("SCATTER", "direct", 2 * US + 3 * MS),
        ("BARRIER", "dissemination", 2 * 2 * US),
    ],
)
def test_algorithms_on_a_switch(kind: str, algorithm: str, expected_ps: int) -> None:
    assert alone_ps(CollectiveKind[kind], algorithm, SWITCH) == expected_ps


@pytest.mark.parametrize(("is_launched", "start_ps"), [(True, 2 * MS), (False, 3 * MS)])
def test_a_kernel_that_was_ready_first_starts_first(is_launched: bool, start_ps: int) -> None:
    launched = replace(compute(1, MS), is_on_host=True, label=HOST_LAUNCH if is_launched else "")
    tasks = (
        launched,
        compute(2, MS, depends_on=(1,)),
        compute(3, MS, depends_on=(2,)),
        compute(4, MS, depends_on=(1,)),  # in another stream of the device
    )
    (timeline,) = simulate_flow(graph(*tasks), SWITCH).classes
    assert timeline.nodes[4][0] == start_ps


@pytest.mark.parametrize(
    ("kind", "expected_ps"),
    [
        # A step's two messages, of half of a quarter, go by links of their own, of 1 us.
        ("ALL_REDUCE", 6 * (US + MS // 2)),
        ("REDUCE_SCATTER", 3 * (US + MS // 2)),
        ("ALL_GATHER", 3 * (US + 2 * MS)),
    ],
)
def test_a_ring_goes_both_ways(kind: str, expected_ps: int) -> None:
    network = one_dimension(Shape.RING, 4)
    assert alone_ps(CollectiveKind[kind], "bidirectional-ring", network) == expected_ps
    assert alone_ps(CollectiveKind[kind], "auto", network) <= expected_ps


def test_two_have_one_way_to_each_other() -> None:
    network = one_dimension(Shape.RING, 2)
    both = alone_ps(CollectiveKind.ALL_REDUCE, "bidirectional-ring", network)
    assert both == alone_ps(CollectiveKind.ALL_REDUCE, "ring", network)


def test_a_torus_goes_both_ways_along_each_axis() -> None:
    line = Dimension(shape=Shape.RING, size=4, parameters=WIRE)
    network = Interconnect(name="torus", fabric=Dimensions(dimensions=(line, line)))
    one = replace(network, algorithms={"all_gather": ("ring", "ring")})
    both = replace(network, algorithms={"all_gather": ("bidirectional-ring", "bidirectional-ring")})
    gather = graph(collective(1, kind=CollectiveKind.ALL_GATHER), devices=16)
    times = [simulate_flow(gather, each).finish_ps for each in (one, both, network)]
    assert times[0] == 3 * (US + 4 * MS) + 3 * (US + 16 * MS)
    assert times[1] == 3 * (US + 2 * MS) + 3 * (US + 8 * MS)
    assert times[2] <= times[1]


def test_a_switch_that_reduces() -> None:
    able = one_dimension(Shape.SWITCH, 4, msgspec.structs.replace(WIRE, reduces_in_switch=True))

    assert alone_ps(CollectiveKind.ALL_REDUCE, "in-switch", able) == 2 * US + 4 * MS
    assert alone_ps(CollectiveKind.ALL_REDUCE, "auto", able) == 2 * US + 4 * MS
    with pytest.raises(SimulationError, match="no switch that reduces"):
        alone_ps(CollectiveKind.ALL_REDUCE, "in-switch", SWITCH)


def test_trees_in_pieces() -> None:
    wire = msgspec.structs.replace(WIRE, pipeline_bytes=MB)
    network = one_dimension(Shape.SWITCH, 4, wire)

    # Two halves of 2 MB in 2 pieces, over a depth of 2, up and down: 5 steps. The member with
    # most to do sends 3 pieces in one tree, and one in the other, at a time.
    assert alone_ps(CollectiveKind.ALL_REDUCE, "double-binary-tree", network) == 5 * (
        2 * US + 4 * MS
    )


def test_the_cheapest_algorithm_depends_on_the_size() -> None:
    network = one_dimension(Shape.SWITCH, 8)
    kind = CollectiveKind.ALL_REDUCE

    for size_bytes in (8, 80_000_000):
        times = {
            algorithm: alone_ps(kind, algorithm, network, size_bytes)
            for algorithm in ("ring", "direct", "halving-doubling", "double-binary-tree")
        }
        assert alone_ps(kind, "auto", network, size_bytes) == min(times.values())
    assert alone_ps(kind, "ring", network, 8) > 3 * alone_ps(kind, "auto", network, 8)


def test_a_collective_along_two_dimensions() -> None:
    slow = LinkParameters(bandwidth_bytes_per_s=5e8, latency_s=1e-5)
    inner = Dimension(shape=Shape.RING, size=4, parameters=WIRE)
    outer = Dimension(shape=Shape.SWITCH, size=2, parameters=slow)
    network = Interconnect(
        name="n",
        fabric=Dimensions(dimensions=(inner, outer)),
        algorithms={"all_reduce": ("ring",)},
    )

    timeline = simulate_flow(graph(collective(1), devices=8), network)

    # Scatter and gather 4 MB among 4; in between, 1 MB between 2 devices, in halves.
    within = 3 * (US + MS)
    assert timeline.finish_ps == 2 * within + 2 * (20 * US + MS)
    assert any("hierarchical (ring, ring, ring)" in one for one in timeline.assumptions)


ROWS = ((0, 1), (2, 3))
COLUMNS = ((0, 2), (1, 3))


def test_groups_have_streams_of_their_own() -> None:
    first, second = collective(1, table=0), collective(2, table=1)
    network = one_dimension(Shape.FULLY_CONNECTED, 4)

    both = simulate_flow(graph(first, second, tables=(ROWS, COLUMNS)), network, algorithm="ring")
    same = simulate_flow(
        graph(first, replace(second, group_table=0), tables=(ROWS,)), network, algorithm="ring"
    )

    # Two steps of 2 MB over one wire. Different wires: at once. The same group: in order.
    assert both.finish_ps == 2 * (US + 2 * MS)
    assert same.finish_ps == 2 * both.finish_ps


def test_groups_share_wires() -> None:
    first, second = collective(1, table=0), collective(2, table=1)

    timeline = simulate_flow(graph(first, second, tables=(ROWS, COLUMNS)), SWITCH, algorithm="ring")

    assert timeline.finish_ps == 2 * (2 * US + 4 * MS)


def test_what_comes_later_slows_what_is_under_way() -> None:
    tasks = (collective(1, table=0), compute(2, 3 * MS), collective(3, table=1, depends_on=(2,)))

    timeline = simulate_flow(graph(*tasks, tables=(ROWS, COLUMNS)), SWITCH, algorithm="ring")

    nodes = timeline.of_device(0).nodes
    # A step is 2 us + 2 ms. When the second begins to send, the first has 1.002 ms of its second
    # step left, which now takes twice as long.
    assert nodes[1] == (0, 5 * MS + 6 * US)
    # The second has moved half of that, has 0.998 ms left, and then a step alone.
    assert nodes[3] == (3 * MS, 5 * MS + 6 * US + 998 * US + 2 * US + 2 * MS)


def test_messages_to_different_devices_overlap_and_share() -> None:
    first, second = transfer(1, 0, 1), transfer(3, 0, 2)

    timeline = simulate_flow(graph(*first, *second), SWITCH)

    assert timeline.finish_ps == 2 * US + 2 * MS
    assert timeline.of_device(2).nodes == {4: (0, 2 * US + 2 * MS)}


@pytest.mark.parametrize(("waits", "expected_ps"), [(False, 5 * MS), (True, 6 * MS + 2 * US)])
def test_large_messages_wait_for_their_receiver(*, waits: bool, expected_ps: int) -> None:
    protocols = (
        Protocol(name="eager", up_to_bytes=1000),
        Protocol(name="rendezvous", up_to_bytes=None, waits_for_receiver=waits),
    )
    network = one_dimension(Shape.SWITCH, 4, msgspec.structs.replace(WIRE, protocols=protocols))
    send, receive = transfer(1, 0, 1)
    late = replace(receive, depends_on=(9,))

    timeline = simulate_flow(graph(compute(9, 5 * MS), send, late), network)

    assert timeline.of_device(1).nodes[2] == (5 * MS, expected_ps)


def test_protocols_have_costs_and_shares() -> None:
    protocols = (
        Protocol(name="LL", up_to_bytes=MB, bandwidth_fraction=0.5),
        Protocol(name="simple", up_to_bytes=None, overhead_s=7e-6),
    )
    network = one_dimension(Shape.SWITCH, 4, msgspec.structs.replace(WIRE, protocols=protocols))

    assert alone_ps(CollectiveKind.ALL_TO_ALL, "ring", network, 4 * MB) == 6 * (2 * US + 2 * MS)
    assert alone_ps(CollectiveKind.ALL_TO_ALL, "ring", network, 8 * MB) == 6 * (9 * US + 2 * MS)


def test_every_message_of_a_step_has_its_overhead() -> None:
    network = one_dimension(
        Shape.FULLY_CONNECTED, 4, msgspec.structs.replace(WIRE, step_overhead_s=5e-6)
    )

    assert alone_ps(CollectiveKind.ALL_TO_ALL, "direct", network) == 15 * US + US + MS


def table_of(members: int, algorithm: str = "ring", protocol: str = "simple") -> Link:
    fit = MeasuredCollective(
        algorithm=algorithm,
        protocol=protocol,
        up_to_bytes=None,
        latency_s=30e-6,
        bandwidth_bytes_per_s=4e8,
    )
    return Link(name="L", source="s", collectives={"all_reduce": {members: (fit,)}})


def test_measured_collectives_take_what_was_measured() -> None:
    network = one_dimension(Shape.SWITCH, 4, measured=table_of(4))

    timeline = simulate_flow(graph(collective(1)), network)

    assert timeline.finish_ps == 30 * US + 10 * MS
    assert "all_reduce runs as measured ring (simple) on L" in timeline.assumptions


def test_an_algorithm_that_nobody_knows_is_not_named() -> None:
    network = one_dimension(Shape.SWITCH, 4, measured=table_of(4, "measured", "measured"))
    timeline = simulate_flow(graph(collective(1)), network)
    assert "all_reduce runs as measured on L" in timeline.assumptions


def test_a_link_whose_collectives_were_measured_is_reported_in_short() -> None:
    network = one_dimension(Shape.SWITCH, 4, measured=load_link("PCIe4_L40S"))
    timeline = simulate_flow(graph(collective(1)), network)
    assert "PCIe4_L40S is PCI Express 4.0 x16 without peer access" in timeline.assumptions
    assert any(text.endswith(" on PCIe4_L40S") for text in timeline.assumptions)


def test_other_group_sizes_are_scaled_and_reported() -> None:
    network = one_dimension(Shape.SWITCH, 4, measured=table_of(2))

    timeline = simulate_flow(graph(collective(1)), network)

    # 3 times the steps; 3/2 instead of 1 of the buffer over each wire.
    assert timeline.finish_ps == 90 * US + 15 * MS
    assert any("among 4 is scaled from the measurement among 2" in one
               for one in timeline.assumptions)  # fmt: skip


def test_measured_collectives_share_wires_too() -> None:
    network = one_dimension(Shape.SWITCH, 4, measured=table_of(2))
    alone = simulate_flow(graph(collective(1, table=0), tables=(ROWS,)), network).finish_ps
    both = graph(collective(1, table=0), collective(2, table=1), tables=(ROWS, COLUMNS))

    # 4 MB in 10 ms takes 0.4 of a wire: two fit.
    assert alone == 30 * US + 10 * MS
    assert simulate_flow(both, network).finish_ps == alone
    narrow = replace(
        network,
        fabric=Dimensions(
            dimensions=(
                Dimension(
                    shape=Shape.SWITCH,
                    size=4,
                    parameters=msgspec.structs.replace(WIRE, bandwidth_bytes_per_s=4e8),
                    measured=table_of(2),
                ),
            )
        ),
    )
    assert simulate_flow(both, narrow).finish_ps == 30 * US + 20 * MS


def test_a_bad_wire_slows_the_groups_that_use_it() -> None:
    bad = Cluster(
        links=(LinkOverride(link="dim0.up.3", bandwidth_scale=0.5, extra_latency_s=1e-6),)
    )

    timeline = simulate_flow(
        graph(collective(1, table=0), tables=(ROWS,)), SWITCH, algorithm="ring", cluster=bad
    )

    assert timeline.of_device(0).finish_ps == 2 * (2 * US + 2 * MS)
    assert timeline.of_device(2).finish_ps == 2 * (3 * US + 4 * MS)
    assert [one.devices for one in timeline.classes] == [(0, 1), (2, 3)]


def test_a_bad_wire_slows_measured_collectives_too() -> None:
    network = one_dimension(Shape.SWITCH, 4, measured=table_of(4))
    bad = Cluster(links=(LinkOverride(link="dim0.down.1", bandwidth_scale=0.5),))

    timeline = simulate_flow(graph(collective(1)), network, cluster=bad)

    assert timeline.finish_ps == 30 * US + 20 * MS
    assert any("take as much longer as a ring" in one for one in timeline.assumptions)


@pytest.mark.parametrize("name", ["dim0.up.4", "dim1.up.0", "dim0.left.0", "wire"])
def test_a_wire_that_is_not_there_is_refused(name: str) -> None:
    bad = Cluster(links=(LinkOverride(link=name, bandwidth_scale=0.5),))

    with pytest.raises(HardwareError, match="there is no link"):
        simulate_flow(graph(collective(1)), SWITCH, cluster=bad)


def test_a_dragonfly_runs_jobs() -> None:
    fabric = Dragonfly(
        groups=2,
        routers_per_group=2,
        devices_per_router=2,
        device_link=WIRE,
        local_link=WIRE,
        global_link=WIRE,
    )
    network = Interconnect(name="d", fabric=fabric)

    timeline = simulate_flow(graph(collective(1), devices=8), network, algorithm="ring")

    # The slowest message of a step goes over a router more in its group.
    assert timeline.finish_ps == 14 * (4 * US + MS // 2)


# Jobs that are refused.


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
        simulate_flow(graph(collective(1, kind=CollectiveKind.ALL_TO_ALL)), network)


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


# On one idle dimension, one collective takes exactly as long as in ASTRA-sim.

Case = tuple[str, str, CollectiveKind]
KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)
# Where no two messages of the algorithm share a link: elsewhere ASTRA-sim's are faster.
FREE = [
    ("ring", "Ring", KINDS),
    ("ring", "Switch", KINDS),
    ("ring", "FullyConnected", KINDS),
    ("direct", "FullyConnected", KINDS),
    ("halvingDoubling", "FullyConnected", KINDS[:3]),
    ("halvingDoubling", "Switch", KINDS[:3]),
    ("doubleBinaryTree", "FullyConnected", KINDS[:1]),
]
CASES: list[Case] = [(algorithm, shape, kind) for algorithm, shape, kinds in FREE for kind in kinds]


def _graph(kind: CollectiveKind, devices: int, size_bytes: int) -> TaskGraph:
    task = CollectiveTask(
        id=1, name="k", depends_on=(), kind=kind, size_bytes=size_bytes, group_table=None
    )
    return TaskGraph(name="g", device_count=devices, tasks=(task,), group_tables=())


def _system(shape: str, devices: int, algorithm: str) -> System:
    dimension = dimension_of(ASTRA_SHAPES[shape], devices, 93.7 * 2**30, 1234.567e-9)
    return System(
        name="test",
        dimensions=(dimension,),
        implementations=dict.fromkeys(COMMON_KINDS, (algorithm,)),
        endpoint_delay_s=7e-9,
        preferred_dataset_splits=1,
        active_chunks_per_dimension=1,
        collective_optimization="baseline",
        scheduling_policy="LIFO",
        local_memory_bandwidth_bytes_per_s=1555.2e9,
        remote_memory=RemoteMemory(kind=RemoteMemoryKind.NO_MEMORY_EXPANSION),
        options={},
    )


@pytest.mark.parametrize("devices", [2, 8, 64])
@pytest.mark.parametrize("size_bytes", [2**24 + 4096, 1_234_567])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_collective_alone(devices: int, size_bytes: int, case: Case) -> None:
    algorithm, shape, kind = case
    graph = _graph(kind, devices, size_bytes)
    system = _system(shape, devices, algorithm)

    assert simulate_flow(graph, system).finish_ps == simulate(graph, system).finish_ps


@pytest.mark.parametrize("shape", ["Ring", "Switch"])
def test_messages_of_a_direct_collective_share_links(shape: str) -> None:
    graph = _graph(CollectiveKind.ALL_TO_ALL, 8, 2**24)
    system = _system(shape, 8, "direct")

    # Seven messages at a time leave through one wire, or four go around one side of the ring.
    assert simulate_flow(graph, system).finish_ps > 4 * simulate(graph, system).finish_ps
