"""What holds for hespas' own network model, whatever the job and the network."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from flow_transfers import Transfer, simulate_transfers
from hespas.base.units import PS_PER_S
from hespas.errors import SimulationError
from hespas.hardware.cluster import Cluster, LinkOverride
from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape
from hespas.hardware.links import LinkParameters
from hespas.prediction.figures.communication import Bus, sent_bytes
from hespas.program.collectives import CollectiveKind
from hespas.simulate.flow.simulate import simulate_flow
from hespas.simulate.flow.topology import make_topology
from hespas.simulate.flow.transfers import Demand, fair_rates
from hespas.simulate.models import on_cluster
from hespas.simulate.timeline import Timeline
from hespas.tasks.chakra.format import NUMBER_OF_KIND
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
    as_job,
    needs,
)

DEVICES = 8
TABLES = (
    ((0, 1, 2, 3), (4, 5, 6, 7)),
    ((0, 4), (1, 5), (2, 6), (3, 7)),
    ((0, 2, 4, 6), (1, 3, 5, 7)),
    ((3, 0, 5), (1, 2)),
)
PAIRS = (((0, 1), (2, 3)), tuple((device, (device + 1) % DEVICES) for device in range(DEVICES)))
ALGORITHMS = ("auto", "ring", "direct", "hierarchical", "halving-doubling")


@st.composite
def parameters(draw: st.DrawFn) -> LinkParameters:
    return LinkParameters(
        bandwidth_bytes_per_s=draw(st.sampled_from((1e9, 3e9, 7e9))),
        latency_s=draw(st.sampled_from((0.0, 1e-6, 3.7e-6))),
        step_overhead_s=draw(st.sampled_from((0.0, 5e-7))),
        reduces_in_switch=draw(st.booleans()),
    )


@st.composite
def networks(draw: st.DrawFn) -> Interconnect:
    sizes = draw(st.sampled_from(((8,), (4, 2), (2, 2, 2))))
    dimensions: list[Dimension] = []
    for size in sizes:
        shape = draw(st.sampled_from(Shape))
        is_tree = shape is Shape.FAT_TREE
        dimensions.append(
            Dimension(
                shape=shape,
                size=size,
                parameters=draw(parameters()),
                leaf_size=size // 2 if is_tree else None,
                oversubscription=draw(st.sampled_from((1.0, 2.0))) if is_tree else 1.0,
                spines=draw(st.sampled_from((None, 2))) if is_tree else None,
            )
        )
    return Interconnect(
        name="drawn",
        fabric=Dimensions(dimensions=tuple(dimensions)),
        endpoint_delay_s=draw(st.sampled_from((0.0, 1e-8))),
        memory_bytes_per_s=draw(st.sampled_from((None, 1e12))),
    )


@st.composite
def graphs(draw: st.DrawFn) -> TaskGraph:
    """Draw up to ten pieces of work, in the same order for all devices."""
    tasks: list[Task] = []
    for number in range(draw(st.integers(1, 10))):
        known = [task.id for task in tasks]
        before = draw(st.sets(st.sampled_from(known), max_size=2)) if known else set[int]()
        depends_on = tuple(sorted(before))
        match draw(st.sampled_from(("compute", "everyone", "group", "group", "transfer"))):
            case "compute":
                duration_ps = draw(st.integers(0, 40)) * 50_000_000
                tasks.append(
                    ComputeTask(id=number, name="c", depends_on=depends_on, duration_ps=duration_ps)
                )
            case "transfer":
                tasks += draw(transfers(number, depends_on))
            case kind:
                table = None if kind == "everyone" else draw(st.sampled_from(range(len(TABLES))))
                tasks.append(
                    CollectiveTask(
                        id=number,
                        name="k",
                        depends_on=depends_on,
                        kind=draw(st.sampled_from([*NUMBER_OF_KIND])),
                        size_bytes=draw(st.sampled_from((1, 1000, 4_000_000, 9_999_999))),
                        group_table=table,
                    )
                )
    return TaskGraph(name="g", device_count=DEVICES, tasks=tuple(tasks), group_tables=TABLES)


@st.composite
def transfers(draw: st.DrawFn, number: int, depends_on: tuple[int, ...]) -> list[Task]:
    pairs = draw(st.sampled_from(PAIRS))
    size_bytes = draw(st.integers(1, 2**20))
    send = SendTask(
        id=number, name="s", depends_on=depends_on, pairs=pairs, size_bytes=size_bytes, tag=number
    )
    receive = ReceiveTask(
        id=100 + number, name="r", depends_on=(), pairs=pairs, size_bytes=size_bytes, tag=number
    )
    return [send, receive]


def outcome(
    graph: TaskGraph, network: Interconnect, algorithm: str, *, is_folded: bool
) -> Timeline | str:
    try:
        return simulate_flow(graph, network, algorithm=algorithm, is_folded=is_folded)
    except SimulationError as error:
        return str(error)


@settings(deadline=None, max_examples=200)
@given(graph=graphs(), network=networks(), algorithm=st.sampled_from(ALGORITHMS))
def test_folding_changes_nothing(graph: TaskGraph, network: Interconnect, algorithm: str) -> None:
    folded = outcome(graph, network, algorithm, is_folded=True)
    unfolded = outcome(graph, network, algorithm, is_folded=False)

    if isinstance(folded, str) or isinstance(unfolded, str):
        assert isinstance(folded, str)
        assert isinstance(unfolded, str)
        return
    assert len(unfolded.classes) == DEVICES
    assert folded.as_json(with_nodes=True) == unfolded.as_json(with_nodes=True)


@settings(deadline=None, max_examples=50)
@given(graph=graphs(), network=networks(), link=st.integers(0, 7), device=st.integers(0, 7))
def test_folding_changes_nothing_on_a_cluster_that_is_not_perfect(
    graph: TaskGraph, network: Interconnect, link: int, device: int
) -> None:
    bad = LinkOverride(
        link=make_topology(network).name(link), bandwidth_scale=0.4, extra_latency_s=2e-6
    )
    cluster = Cluster(compute_scales={device: 1.5}, delays_s={7 - device: 1e-4}, links=(bad,))
    job = on_cluster(as_job(graph), cluster)

    folded, unfolded = (
        simulate_flow(job, network, algorithm="auto", cluster=cluster, is_folded=is_folded)
        for is_folded in (True, False)
    )

    assert folded.as_json(with_nodes=True) == unfolded.as_json(with_nodes=True)


@settings(deadline=None)
@given(graph=graphs(), network=networks())
def test_tasks_wait_for_what_they_need(graph: TaskGraph, network: Interconnect) -> None:
    timeline = simulate_flow(graph, network, algorithm="auto")

    for one in timeline.classes:
        for task in graph.tasks:
            for other in needs(task):
                if task.id in one.nodes and other in one.nodes:
                    assert one.nodes[task.id][0] >= one.nodes[other][1]
        assert one.finish_ps >= one.compute_ps


@st.composite
def demands(draw: st.DrawFn) -> tuple[dict[int, Demand], dict[int, int]]:
    capacities = dict(enumerate(draw(st.lists(st.integers(10, 60), min_size=1, max_size=5))))
    some_links = st.sets(st.sampled_from(sorted(capacities)), min_size=1)
    found: dict[int, Demand] = {}
    for number in range(draw(st.integers(1, 6))):
        uses = [(link, draw(st.integers(1, 3))) for link in sorted(draw(some_links))]
        found[number] = Demand(uses=tuple(uses), limit=draw(st.sampled_from((4, 9, 1000))))
    return found, capacities


def _carried(flows: Mapping[int, Demand], rates: Mapping[int, int], link: int) -> int:
    return sum(
        rates[number] * messages
        for number, demand in flows.items()
        for on, messages in demand.uses
        if on == link
    )


@given(demands())
def test_sharing_is_fair_and_conserves_capacity(
    drawn: tuple[dict[int, Demand], dict[int, int]],
) -> None:
    flows, capacities = drawn
    rates = fair_rates(flows, capacities)

    assert all(_carried(flows, rates, link) <= capacity for link, capacity in capacities.items())
    for number, demand in flows.items():
        # Who gets less than its limit is held back by a full link on which nobody gets more
        # (but for what dividing whole numbers leaves over).
        def is_bottleneck(link: int, own: int = rates[number]) -> bool:
            messages = [count for one in flows.values() for on, count in one.uses if on == link]
            left = capacities[link] - _carried(flows, rates, link)
            most = max(rates[n] for n, one in flows.items() if link in dict(one.uses))
            return left < sum(messages) and most - own < sum(messages)

        links = [link for link, _ in demand.uses]
        assert rates[number] == demand.limit or any(is_bottleneck(link) for link in links)


@st.composite
def dags(draw: st.DrawFn) -> list[Transfer]:
    found: list[Transfer] = []
    for number in range(draw(st.integers(1, 12))):
        source = draw(st.integers(0, DEVICES - 1))
        before = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set[int]()
        found.append(
            Transfer(
                source=source,
                target=(source + draw(st.integers(1, DEVICES - 1))) % DEVICES,
                size_bytes=draw(st.integers(0, 10**7)),
                depends_on=tuple(sorted(before)),
            )
        )
    return found


@settings(deadline=None)
@given(transfers=dags(), network=networks())
def test_transfers_take_no_less_than_chains_and_links(
    transfers: list[Transfer], network: Interconnect
) -> None:
    ends = simulate_transfers(network, transfers)

    topology = make_topology(network)
    routes = topology.routes([one.source for one in transfers], [one.target for one in transfers])
    carried: dict[int, int] = {}
    shortest = [float(latency) * 1e-9 for latency in routes.latency_ns]
    messages: list[int] = routes.message.tolist()
    crossed: list[int] = routes.link.tolist()
    for message, link in zip(messages, crossed, strict=True):
        carried[link] = carried.get(link, 0) + transfers[message].size_bytes
    for number, one in enumerate(transfers):
        own = [link for at, link in zip(messages, crossed, strict=True) if at == number]
        shortest[number] += one.size_bytes / float(topology.bytes_per_ns(own).min()) * 1e-9
        shortest[number] += max((shortest[other] for other in one.depends_on), default=0.0)
    tolerance = 1 + 1e-9
    assert all(end * tolerance >= least for end, least in zip(ends, shortest, strict=True))
    for link, size_bytes in carried.items():
        assert max(ends) * tolerance >= size_bytes / float(topology.bytes_per_ns([link])[0]) * 1e-9


WHOLE = (tuple(range(DEVICES)),)


@settings(deadline=None, max_examples=300)
@given(
    network=networks(),
    kind=st.sampled_from([*NUMBER_OF_KIND]),
    groups=st.sampled_from((WHOLE, *TABLES)),
    size_bytes=st.sampled_from((840, 840_000, 840_000_000)),
)
def test_no_more_is_reached_than_the_links_allow(
    network: Interconnect,
    kind: CollectiveKind,
    groups: tuple[tuple[int, ...], ...],
    size_bytes: int,
) -> None:
    task = CollectiveTask(
        id=0, name="k", depends_on=(), kind=kind, size_bytes=size_bytes, group_table=0
    )
    graph = TaskGraph(name="g", device_count=DEVICES, tasks=(task,), group_tables=(groups,))
    timeline = outcome(graph, network, "auto", is_folded=True)
    fabric = network.fabric
    assert isinstance(fabric, Dimensions)
    limit = Bus(dimensions=fabric.dimensions).limit_bytes_per_s(kind, groups[0])
    if isinstance(timeline, str) or limit is None or kind is CollectiveKind.BARRIER:
        return
    start, end = timeline.of_device(groups[0][0]).nodes[0]
    sent = sent_bytes(kind, len(groups[0]), size_bytes)
    assert sent * PS_PER_S <= limit * (end - start) * (1 + 1e-5)
