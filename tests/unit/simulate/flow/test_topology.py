from __future__ import annotations

import pytest

from hespas.hardware.interconnect import Dimension, Dimensions, Dragonfly, Interconnect, Shape
from hespas.hardware.links import LinkParameters
from hespas.hardware.machine_links import Edge, Graph
from hespas.simulate.flow.topology import Topology, make_topology

WIRE = LinkParameters(bandwidth_bytes_per_s=2e9, latency_s=1e-6)


def dimensions(*shapes: tuple[Shape, int]) -> Topology:
    found = [
        Dimension(
            shape=shape,
            size=size,
            parameters=WIRE,
            leaf_size=2 if shape is Shape.FAT_TREE else None,
            oversubscription=4.0 if shape is Shape.FAT_TREE else 1.0,
        )
        for shape, size in shapes
    ]
    return make_topology(Interconnect(name="n", fabric=Dimensions(dimensions=tuple(found))))


def way(topology: Topology, source: int, target: int) -> list[str]:
    links: list[int] = topology.routes([source], [target]).link.tolist()
    return [topology.name(link) for link in links]


@pytest.mark.parametrize("second", Shape, ids=str)
@pytest.mark.parametrize("first", Shape, ids=str)
def test_every_link_on_every_way_has_a_name_of_its_own(first: Shape, second: Shape) -> None:
    topology = dimensions((first, 4), (second, 6))
    pairs = [(one, other) for one in range(24) for other in range(24) if one != other]

    routes = topology.routes([one for one, _ in pairs], [other for _, other in pairs])

    links: set[int] = set(routes.link.tolist())
    names = {link: topology.name(link) for link in links}
    assert len(set(names.values())) == len(names)
    assert {topology.link_named(name) for name in names.values()} == links


def test_a_message_goes_along_the_first_dimension_first() -> None:
    topology = dimensions((Shape.RING, 4), (Shape.SWITCH, 2))

    # Device 6 has the coordinates (2, 1); two routes around are equally short, and up is taken.
    assert way(topology, 0, 6) == ["dim0.next.0", "dim0.next.1", "dim1.up.2", "dim1.down.6"]
    assert way(topology, 1, 0) == ["dim0.previous.1"]


def test_a_fat_tree_climbs_only_as_far_as_it_must() -> None:
    topology = dimensions((Shape.FAT_TREE, 6))

    near, far = way(topology, 0, 1), way(topology, 0, 5)

    assert near == ["dim0.up.0", "dim0.down.1"]
    assert far == ["dim0.up.0", "dim0.down.5", "dim0.leaf_up.0", "dim0.leaf_down.2"]
    links = [topology.link_named(name) for name in far]
    # Two devices at 2 GB/s, over 4, is 1 GB/s a leaf.
    assert topology.bytes_per_ns([link for link in links if link is not None]).tolist() == [
        2, 2, 1, 1,
    ]  # fmt: skip


def test_pairs_have_links_of_their_own_where_all_are_connected() -> None:
    assert way(dimensions((Shape.SWITCH, 2), (Shape.FULLY_CONNECTED, 3)), 1, 5) == ["dim1.to.1.5"]


def test_a_dragonfly_names_its_links() -> None:
    fabric = Dragonfly(
        groups=2,
        routers_per_group=1,
        devices_per_router=1,
        device_link=WIRE,
        local_link=WIRE,
        global_link=WIRE,
    )
    topology = make_topology(Interconnect(name="d", fabric=fabric))

    assert way(topology, 0, 1) == [
        "device0->router0.0",
        "router0.0->router1.0",
        "router1.0->device1",
    ]


def test_links_between_the_same_nodes_are_counted() -> None:
    edge = Edge(source="a", target="b", bandwidth_bytes_per_s=1e9, latency_s=0)
    graph = Graph(devices=("a", "b"), switches=(), edges=(edge, edge))
    topology = make_topology(Interconnect(name="g", fabric=graph))

    assert [topology.name(0), topology.name(1)] == ["a->b", "a->b#1"]
    assert topology.link_named("a->b#1") == 1
    assert topology.link_named("b->a") is None
