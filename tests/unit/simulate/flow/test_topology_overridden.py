"""Dead links: messages go around them where the network has a way."""

from __future__ import annotations

import pytest

from hespas.errors import HardwareError
from hespas.hardware.cluster import Cluster, LinkOverride
from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape
from hespas.hardware.links import LinkParameters
from hespas.hardware.machine_links import Edge, Graph
from hespas.hardware.presets import load_system
from hespas.program.collectives import CollectiveKind
from hespas.simulate.flow.simulate import simulate_flow
from hespas.simulate.flow.topology import make_topology
from hespas.tasks.graph import CollectiveTask, TaskGraph

LINK = LinkParameters(bandwidth_bytes_per_s=1e9, latency_s=1e-6)
SIZE = 8_000_000


def network(*dimensions: tuple[Shape, int]) -> Interconnect:
    made = [Dimension(shape=shape, size=size, parameters=LINK) for shape, size in dimensions]
    return Interconnect(name="n", fabric=Dimensions(dimensions=tuple(made)))


def dead(*names: str) -> Cluster:
    return Cluster(
        links=tuple(LinkOverride(link=name, bandwidth_scale=0) for name in names), source="c.yml"
    )


def way(of: Interconnect, cluster: Cluster, source: int, target: int) -> list[str]:
    topology = make_topology(of, cluster)
    routes = topology.routes([source], [target])
    assert routes.latency_ns[0] == pytest.approx(1000 * len(routes.link))
    return [topology.name(int(link)) for link in routes.link]


def test_a_ring_is_gone_around_the_other_way() -> None:
    ring, cut = network((Shape.RING, 8)), dead("dim0.next.3")
    names = [f"dim0.previous.{device}" for device in (3, 2, 1, 0, 7, 6, 5)]
    assert way(ring, cut, 3, 4) == names
    assert way(ring, cut, 4, 3) == ["dim0.previous.4"]
    assert way(network((Shape.RING, 2)), dead("dim0.next.0"), 0, 1) == ["dim0.previous.0"]


def test_devices_pass_on_what_others_cannot_send() -> None:
    assert way(network((Shape.FULLY_CONNECTED, 3)), dead("dim0.to.0.1"), 0, 1) == [
        "dim0.to.0.2",
        "dim0.to.2.1",
    ]
    rails = network((Shape.SWITCH, 4), (Shape.SWITCH, 2))
    # Over the switch of the node to a neighbour, over its rail, and back: as NCCL's PXN does.
    names = way(rails, dead("dim1.up.3"), 3, 7)
    assert [name.split(".")[0] for name in names] == [
        "dim0",
        "dim0",
        "dim1",
        "dim1",
        "dim0",
        "dim0",
    ]
    assert "dim1.up.3" not in names
    # To another device of the other node, a neighbour's rail alone will do.
    assert len(way(rails, dead("dim1.up.3"), 3, 4)) == 4


def test_graphs_are_searched() -> None:
    edges = [
        Edge(source=one, target=other, bandwidth_bytes_per_s=1e9, latency_s=1e-6)
        for one, other in ("ab", "ba", "bc", "cb", "ca", "ac")
    ]
    graph = Graph(devices=("a", "b", "c"), switches=(), edges=tuple(edges))
    triangle = Interconnect(name="t", fabric=graph)
    assert way(triangle, dead("a->b"), 0, 1) == ["a->c", "c->b"]


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (network((Shape.SWITCH, 4)), "dim0.up.1"),
        (network((Shape.SWITCH, 2), (Shape.RING, 1)), "dim0.up.1"),
        (network((Shape.LINE, 4)), "dim0.next.1"),
    ],
)
def test_a_device_without_a_way_is_refused(of: Interconnect, name: str) -> None:
    with pytest.raises(HardwareError) as caught:
        way(of, dead(name), 1, 0 if of.device_count == 2 else 2)
    assert f"crosses a dead link: {name} has a bandwidth_scale of 0" in str(caught.value)
    assert str(caught.value).startswith("c.yml: ")


def reduced_ps(
    of: Interconnect, cluster: Cluster | None, *groups: tuple[int, ...], algorithm: str = "ring"
) -> int:
    task = CollectiveTask(
        id=1,
        name="all_reduce",
        depends_on=(),
        size_bytes=SIZE,
        kind=CollectiveKind.ALL_REDUCE,
        group_table=0,
    )
    graph = TaskGraph(
        name="step", device_count=of.device_count, tasks=(task,), group_tables=(groups,)
    )
    return simulate_flow(graph, of, algorithm=algorithm, cluster=cluster).finish_ps


@pytest.mark.parametrize("name", ["dim0.to.0.1", "dim0.to.0.2", "dim0.to.3.1"])
def test_measured_collectives_need_all_links_between_pairs(name: str) -> None:
    # Over another pair's link go the bytes of both: measured bytes take twice as long.
    nodes = load_system("A100_SXM_40GB_4GPU").interconnect
    assert nodes is not None
    everyone = (0, 1, 2, 3)
    whole, cut = (
        reduced_ps(nodes, cluster, everyone, algorithm="auto") for cluster in (None, dead(name))
    )
    assert 1.5 * whole < cut < 2 * whole


def test_what_a_dead_nic_costs() -> None:
    rails = network((Shape.SWITCH, 4), (Shape.SWITCH, 2))
    pairs = ((0, 4), (1, 5), (2, 6), (3, 7))
    whole = reduced_ps(rails, None, *pairs)
    # 2 (n - 1) / n of the size at 1 GB/s, and two hops of two links.
    assert whole == pytest.approx(SIZE * 1e3 + 2 * 2e6)
    # Two devices share one NIC: twice the bytes cross it.
    cut = reduced_ps(rails, dead("dim1.up.3"), *pairs)
    assert cut == pytest.approx(2 * SIZE * 1e3, rel=0.01)
    # Alone, device 3 has its neighbour's NIC to itself.
    alone = reduced_ps(rails, dead("dim1.up.3"), (3, 7))
    assert alone == pytest.approx(SIZE * 1e3 + 2 * 6e6)
