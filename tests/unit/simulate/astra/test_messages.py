"""Systems here move 1 B/ns at 100 ns a hop and 1 ns an endpoint; reductions are free."""

from __future__ import annotations

from hespas.simulate.astra.simulate import simulate
from hespas.tasks.graph import (
    Job,
)
from small_jobs import (
    RING4,
    MakeSystem,
    all_reduce,
    compute,
    graph,
    nodes_ns,
    receive,
    send,
)


def test_a_send_ends_on_arrival_and_so_does_an_early_receive(make_system: MakeSystem) -> None:
    pairs = ((0, 1),)
    tasks = [compute(1), send(2, 1, pairs=pairs), receive(3, pairs=pairs)]

    timeline = simulate(graph(2, tasks), make_system(("FullyConnected", 2)))

    assert nodes_ns(timeline, 0) == {1: (0, 10), 2: (10, 160)}
    assert nodes_ns(timeline, 1) == {1: (0, 10), 3: (0, 160)}


def test_a_late_receive_ends_when_it_is_posted(make_system: MakeSystem) -> None:
    pairs = ((0, 1),)
    tasks = [
        send(1, pairs=pairs),
        compute(2, ns=1000),
        receive(3, 2, pairs=pairs),
        compute(4, 3),
    ]

    timeline = simulate(graph(2, tasks), make_system(("FullyConnected", 2)))

    assert nodes_ns(timeline, 1) == {2: (0, 1000), 3: (1000, 1000), 4: (1000, 1010)}


def test_equal_messages_match_in_order(make_system: MakeSystem) -> None:
    pairs = ((0, 1),)
    tasks = [
        send(1, pairs=pairs),
        compute(2, 1, ns=1000),
        send(3, 2, pairs=pairs),
        receive(4, pairs=pairs),
        receive(5, pairs=pairs),
    ]

    timeline = simulate(graph(2, tasks), make_system(("FullyConnected", 2)))

    assert nodes_ns(timeline, 1)[4] == (0, 150)
    assert nodes_ns(timeline, 1)[5] == (0, 1300)


def test_a_diagonal_message_costs_only_the_first_dimension(make_system: MakeSystem) -> None:
    pairs = ((0, 3),)
    system = make_system(("FullyConnected", 2), ("Switch", 2), algorithms=("ring", "ring"))

    timeline = simulate(graph(4, [send(1, pairs=pairs), receive(2, pairs=pairs)]), system)

    assert timeline.finish_ps == (100 + 50) * 1000


def test_a_shift_around_a_ring_is_simulated_per_device_where_order_matters(
    make_system: MakeSystem,
) -> None:
    pairs = tuple((device, (device + 1) % 4) for device in range(4))
    tasks = [send(1, pairs=pairs), receive(2, pairs=pairs), compute(3, 1, 2)]

    timeline = simulate(graph(4, tasks), make_system(("Ring", 4)))

    assert {one.finish_ps for one in timeline.classes} == {160_000}
    assert sorted(device for one in timeline.classes for device in one.devices) == [0, 1, 2, 3]


def test_pipeline_stages_of_several_devices_fold(make_system: MakeSystem) -> None:
    pairs = tuple((device, device + 8) for device in range(8))
    first = graph(16, [compute(1), send(2, 1, pairs=pairs)])
    second = graph(16, [receive(2, pairs=pairs), compute(3, 2, ns=20)])
    job = Job(graphs=(first, second), graph_of_device=(0,) * 8 + (1,) * 8)

    timeline = simulate(job, make_system(("Switch", 16)))

    assert [one.devices for one in timeline.classes] == [tuple(range(8)), tuple(range(8, 16))]
    assert timeline.finish_ps == (10 + 250 + 20) * 1000


def test_what_a_late_member_sends_first_ends_six_hops_away(make_system: MakeSystem) -> None:
    job = Job(
        graphs=tuple(graph(4, [compute(1, ns=ns), all_reduce(2, 1)]) for ns in (10, 20)),
        graph_of_device=(0, 0, 1, 0),
    )

    timeline = simulate(job, make_system(("FullyConnected", 4)))

    assert [nodes_ns(timeline, device)[2] for device in range(4)] == [
        (10, 20 + RING4),
        (10, 10 + RING4),
        (20, 10 + RING4),
        (10, 10 + RING4),
    ]
