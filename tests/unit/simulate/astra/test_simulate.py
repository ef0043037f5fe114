"""Systems here move 1 B/ns at 100 ns a hop and 1 ns an endpoint; reductions are free."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hespas.errors import DeviceCountError, SimulationError
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.options import AstraSettings, ContentionModel
from hespas.tasks.graph import Job, Task
from small_jobs import (
    RING4,
    MakeSystem,
    all_gather_of_nothing,
    all_reduce,
    compute,
    graph,
    nodes_ns,
    receive,
    send,
)


def test_computation_keeps_fractions_of_a_nanosecond(make_system: MakeSystem) -> None:
    tasks = [compute(1, ns=0.25), compute(2, 1, ns=0), compute(3, 2, ns=1.5)]

    timeline = simulate(graph(1, tasks), make_system(("Switch", 1)))

    assert nodes_ns(timeline, 0) == {1: (0, 0.25), 2: (0.25, 0.25), 3: (0.25, 1.75)}
    assert timeline.step_time_s == 1.75e-9


def test_a_slot_goes_to_the_lowest_id(make_system: MakeSystem) -> None:
    tasks = [compute(5), compute(3), compute(4, 5)]

    timeline = simulate(graph(1, tasks), make_system(("Switch", 1)))

    assert nodes_ns(timeline, 0) == {3: (0, 10), 5: (10, 20), 4: (20, 30)}


def test_computation_and_a_collective_run_at_once(make_system: MakeSystem) -> None:
    tasks = [compute(1), all_reduce(2, 1), compute(3, 1, ns=500), compute(4, 2, 3)]

    timeline = simulate(graph(4, tasks), make_system(("FullyConnected", 4)))

    assert nodes_ns(timeline, 2)[2] == (10, 10 + RING4)
    (only,) = timeline.classes
    assert only.devices == (0, 1, 2, 3)
    assert only.finish_ps == (10 + RING4 + 10) * 1000
    assert only.compute_ps == 520_000
    assert only.exposed_communication_ps == only.finish_ps - 520_000
    assert only.overlap_ps == 500_000
    assert only.exposed_ps == {2: (RING4 - 500) * 1000}


def test_two_collectives_never_overlap(make_system: MakeSystem) -> None:
    timeline = simulate(
        graph(4, [all_reduce(1), all_reduce(2)]), make_system(("FullyConnected", 4))
    )

    assert nodes_ns(timeline, 0) == {1: (0, RING4), 2: (RING4, 2 * RING4)}


@pytest.mark.parametrize(("topology", "hops"), [("FullyConnected", 1), ("Switch", 2), ("Ring", 1)])
def test_latency_counts_once_a_hop(topology: str, hops: int, make_system: MakeSystem) -> None:
    timeline = simulate(graph(4, [all_reduce(1)]), make_system((topology, 4)))

    assert timeline.finish_ps == (7 + 6 * (hops * 100 + 100)) * 1000


def test_a_collective_smaller_than_the_system_is_enlarged(make_system: MakeSystem) -> None:
    system = make_system(("FullyConnected", 4))

    small, least = (simulate(graph(4, [all_reduce(1, size=size)]), system) for size in (1, 4))

    assert small.finish_ps == least.finish_ps == (7 + 6 * 101) * 1000


def test_two_dimensions_scatter_reduce_and_gather(make_system: MakeSystem) -> None:
    system = make_system(("FullyConnected", 4), ("FullyConnected", 2), algorithms=("ring", "ring"))

    timeline = simulate(graph(8, [all_reduce(1, size=800)]), system)

    scatter = gather = 4 + 3 * (100 + 200)
    inner = 3 + 2 * (100 + 100)
    assert timeline.finish_ps == (scatter + inner + gather) * 1000


def test_the_baseline_reduces_all_along_each_dimension(make_system: MakeSystem) -> None:
    system = make_system(
        ("FullyConnected", 4),
        ("FullyConnected", 2),
        algorithms=("ring", "ring"),
        optimization="baseline",
    )

    timeline = simulate(graph(8, [all_reduce(1, size=800)]), system)

    assert timeline.finish_ps == ((7 + 6 * 300) + (3 + 2 * 500)) * 1000


def test_chunks_queue_for_a_dimension(make_system: MakeSystem) -> None:
    one = RING4
    job = graph(4, [all_reduce(1, size=1200)])

    in_turn = simulate(job, make_system(("FullyConnected", 4), splits=3))
    two_at_once = simulate(job, make_system(("FullyConnected", 4), splits=3, active=2))

    assert in_turn.finish_ps == 3 * one * 1000
    assert two_at_once.finish_ps == 2 * one * 1000


def test_a_rest_makes_another_full_chunk(make_system: MakeSystem) -> None:
    timeline = simulate(
        graph(4, [all_reduce(1, size=1201)]), make_system(("FullyConnected", 4), splits=3)
    )

    assert timeline.finish_ps == 4 * RING4 * 1000


def test_small_groups_wait_ten_ns_at_endpoints(make_system: MakeSystem) -> None:
    tables = ((0, 1), (2, 3))
    timeline = simulate(
        graph(4, [all_reduce(1, table=0)], tables), make_system(("FullyConnected", 4))
    )

    assert len(timeline.classes) == 1
    assert timeline.finish_ps == (3 * 10 + 2 * (100 + 200)) * 1000


def test_devices_outside_a_group_do_not_wait(make_system: MakeSystem) -> None:
    tasks = [compute(1), all_reduce(2, 1, table=0), compute(3, 2)]
    timeline = simulate(graph(3, tasks, ((0, 1),)), make_system(("FullyConnected", 3)))

    assert [one.devices for one in timeline.classes] == [(0, 1), (2,)]
    assert nodes_ns(timeline, 2) == {1: (0, 10), 3: (10, 20)}


def test_a_member_that_never_comes_is_named(make_system: MakeSystem) -> None:
    job = Job(graphs=(graph(2, [all_reduce(2)]), graph(2, [compute(1)])), graph_of_device=(0, 1))

    with pytest.raises(SimulationError, match=r"device 0 started .*, but device 1 never did"):
        simulate(job, make_system(("FullyConnected", 2)))


def test_members_that_wait_for_each_other_are_named(make_system: MakeSystem) -> None:
    pairs = ((0, 1), (1, 0))
    first_reduces = graph(2, [all_reduce(1), receive(2, 1, pairs=pairs), send(3, 1, pairs=pairs)])
    first_receives = graph(2, [receive(2, pairs=pairs), all_reduce(1, 2), send(3, 1, pairs=pairs)])
    job = Job(graphs=(first_reduces, first_receives), graph_of_device=(0, 1))

    with pytest.raises(SimulationError) as caught:
        simulate(job, make_system(("FullyConnected", 2)))

    assert str(caught.value) == (
        "device 1 started receive 2 (r) at the start, but no send of the same ends, tag and size "
        "came; device 0 started ALL_REDUCE 1 (ar) of 400 bytes at the start, but device 1 never "
        "did (instead device 1 wait from the start on for task 2 (r))"
    )


def test_the_injection_scale_multiplies_the_endpoint_delay(make_system: MakeSystem) -> None:
    system = make_system(("FullyConnected", 4))
    work = graph(4, [all_reduce(1)])

    for by_events in (False, True):
        timeline = simulate(
            work, system, settings=AstraSettings(injection_scale=5.9), by_events=by_events
        )
        assert nodes_ns(timeline, 0)[1] == (0, RING4 + 7 * 4)
    with pytest.raises(SimulationError, match="the injection scale is -1"):
        simulate(work, system, settings=AstraSettings(injection_scale=-1))


def test_a_link_that_is_taken_makes_messages_wait(make_system: MakeSystem) -> None:
    system = make_system(("Ring", 4))
    tasks = [
        send(1, pairs=((0, 2),)),
        receive(2, pairs=((0, 2),)),
        send(3, pairs=((1, 2),)),
        receive(4, pairs=((1, 2),)),
    ]

    timeline = simulate(graph(4, tasks), system, network=ContentionModel.CONGESTION_AWARE)

    # 50 bytes take 50 ns of a link, and 100 ns of latency; the link from 1 to 2 is free by then.
    assert nodes_ns(timeline, 0)[1] == (0, 300)
    assert nodes_ns(timeline, 1)[3] == (0, 150)
    tasks[2:] = [send(3, pairs=((0, 2),), tag=1), receive(4, pairs=((0, 2),), tag=1)]
    timeline = simulate(graph(4, tasks), system, network=ContentionModel.CONGESTION_AWARE)
    assert nodes_ns(timeline, 0) == {1: (0, 300), 3: (300, 600)}


def test_members_with_other_sizes_are_named(make_system: MakeSystem) -> None:
    job = Job(
        graphs=tuple(graph(2, [all_reduce(2, size=size)]) for size in (8, 16)),
        graph_of_device=(0, 1),
    )

    with pytest.raises(
        SimulationError, match=r"of 8 bytes .*, and as its partners device 1 .* 16 bytes"
    ):
        simulate(job, make_system(("FullyConnected", 2)))


def test_a_ring_waits_for_its_longest_way(make_system: MakeSystem) -> None:
    job = graph(8, [all_reduce(1, table=0)], ((0, 1, 2, 3), (4, 5, 6, 7)))

    timeline = simulate(job, make_system(("Ring", 8)))

    # From 3 back to 0 it is three hops; what comes from there is handed on to 1, 2 and 3.
    ends = [nodes_ns(timeline, device)[1][1] for device in range(4)]
    assert max(ends) == 7 * 10 + 6 * (100 + 100) + 2 * 200


def test_a_message_without_its_other_end_is_named(make_system: MakeSystem) -> None:
    pairs = ((0, 1),)
    with pytest.raises(SimulationError, match=r"device 0 started send 1 \(s\) .* no receive"):
        simulate(graph(2, [send(1, pairs=pairs)]), make_system(("Ring", 2)))
    with pytest.raises(SimulationError, match=r"device 1 started receive 1 \(r\) .* no send"):
        simulate(graph(2, [receive(1, pairs=pairs)]), make_system(("Ring", 2)))


def test_the_system_must_have_the_jobs_devices(make_system: MakeSystem) -> None:
    with pytest.raises(DeviceCountError, match="the job is for 2 devices, test has 4"):
        simulate(graph(2, [compute(1)]), make_system(("Ring", 4)))


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([all_gather_of_nothing()], r"ALL_GATHER 1 \(ar\): 0 bytes can't be cut"),
        ([all_reduce(1, table=0)], r"the group \[0\] has only one member"),
        ([replace(all_reduce(1), kind=CollectiveKind.BARRIER)], "BARRIER has no model"),
        ([send(1, pairs=((0, 0),))], "device 0 sends to itself"),
        ([send(1, pairs=((0, 1),), size=0)], "has no bytes to send"),
    ],
)
def test_what_has_no_meaning_is_refused(
    tasks: list[Task], message: str, make_system: MakeSystem
) -> None:
    with pytest.raises(SimulationError, match=message):
        simulate(graph(2, tasks, ((0,), (1,))), make_system(("FullyConnected", 2)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithms": ("tree",)}, "the collective algorithm tree has no model here; use ring"),
        ({"algorithms": ("ring3",)}, "ring3 has no model here"),
        ({"algorithms": ()}, "there is no all-reduce-implementation"),
        ({"options": {"roofline-enabled": 1}}, "roofline-enabled needs peak-perf"),
        ({"options": {"model-shared-bus": 1}}, "model-shared-bus has no model here"),
        ({"splits": 0}, "must be positive"),
        ({"optimization": "none"}, "collective-optimization none has no model here"),
    ],
)
def test_a_system_outside_the_model_is_refused(
    changes: dict[str, object], message: str, make_system: MakeSystem
) -> None:
    with pytest.raises(SimulationError, match=message):
        simulate(graph(2, [all_reduce(1)]), make_system(("Ring", 2), **changes))


def test_the_json_form_has_whole_numbers_where_they_are(make_system: MakeSystem) -> None:
    tasks = [compute(1, ns=0.5), compute(2, 1, ns=10.5)]

    timeline = simulate(graph(1, tasks), make_system(("Switch", 1)))

    assert timeline.as_json(with_nodes=True) == {
        "step_time_ns": 11,
        "devices": {
            "0": {
                "finish_ns": 11,
                "compute_ns": 11,
                "communication_ns": 0,
                "exposed_communication_ns": 0,
                "overlap_ns": 0,
            }
        },
        "nodes": {"0": {"1": [0, 0.5], "2": [0.5, 11]}},
    }
    assert "nodes" not in timeline.as_json()


def test_no_time_is_lost_on_many_equal_devices(make_system: MakeSystem) -> None:
    columns = tuple(tuple(range(start, 4096, 64)) for start in range(64))
    rows = tuple(tuple(range(start, start + 64)) for start in range(0, 4096, 64))
    tasks = [compute(1), all_reduce(2, 1, table=0), all_reduce(3, 2, table=1)]
    system = make_system(("Switch", 64), ("Switch", 64), algorithms=("ring", "ring"))

    timeline = simulate(graph(4096, tasks, rows, columns), system)

    assert len(timeline.classes) == 1
    assert math.isclose(timeline.finish_ps, 10_000 + 2 * (127 * 10 + 126 * 264) * 1000)
