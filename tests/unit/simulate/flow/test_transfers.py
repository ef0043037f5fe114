"""Finish times that can be worked out by hand, and that SimGrid gives too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flow_transfers import Transfer, simulate_transfers
from hespas.errors import SimulationError
from hespas.hardware.interconnect import (
    Dimension,
    Dimensions,
    Dragonfly,
    DragonflyRouting,
    Interconnect,
    Shape,
    switched,
)
from hespas.hardware.links import LinkParameters
from hespas.hardware.machine_links import Edge, Graph
from hespas.simulate.flow import topology
from hespas.simulate.flow.topology import Integers
from simgrid_judge import TOLERANCE, random_case

MIB = 2**20
# 400 Gb/s and 1 us a link
WIRE = LinkParameters(bandwidth_bytes_per_s=50e9, latency_s=1e-6)
NETWORK = switched(8, bandwidth_bytes_per_s=50e9, latency_s=1e-6)


def _ring(members: int, message_bytes: int, first: int = 0) -> list[Transfer]:
    """An all-reduce: 2 (n - 1) steps, in each of which a member sends what it got before."""
    transfers: list[Transfer] = []
    for step in range(2 * (members - 1)):
        for member in range(members):
            before = first + (step - 1) * members + (member - 1) % members
            own = first + (step - 1) * members + member
            transfers.append(
                Transfer(
                    source=member,
                    target=(member + 1) % members,
                    size_bytes=message_bytes,
                    depends_on=(before, own) if step else (),
                )
            )
    return transfers


def _us(ends: tuple[float, ...]) -> float:
    return round(max(ends) * 1e6, 1)


def test_a_ring() -> None:
    assert _us(simulate_transfers(NETWORK, _ring(8, 8 * MIB))) == 2376.8


def test_two_rings_on_the_same_wires() -> None:
    large = _ring(8, 8 * MIB)
    both = large + _ring(4, 8 * MIB, first=len(large))

    assert _us(simulate_transfers(NETWORK, both)) == 3383.4


def test_everyone_to_everyone_through_an_oversubscribed_fat_tree() -> None:
    tree = Dimension(
        shape=Shape.FAT_TREE, size=64, parameters=WIRE, leaf_size=8, oversubscription=2
    )
    network = Interconnect(name="t", fabric=Dimensions(dimensions=(tree,)))
    pairs = [(a, b) for a in range(64) for b in range(64) if a != b]
    transfers = [Transfer(source=a, target=b, size_bytes=MIB) for a, b in pairs]

    ends = simulate_transfers(network, transfers)

    assert _us(ends) == 2352.8
    # Those within a leaf have more to share.
    assert ends[pairs.index((0, 1))] < max(ends)


def test_seven_to_one() -> None:
    transfers = [Transfer(source=a, target=0, size_bytes=16 * MIB) for a in range(1, 8)]

    assert _us(simulate_transfers(NETWORK, transfers)) == 2350.8


def test_what_is_left_is_shared_again() -> None:
    # The short one ends at 2 us of latency + 2 x 100 us; the long one had half until then.
    transfers = [
        Transfer(source=0, target=1, size_bytes=5_000_000),
        Transfer(source=0, target=2, size_bytes=15_000_000),
    ]

    ends = simulate_transfers(NETWORK, transfers)

    assert ends == pytest.approx((202e-6, 402e-6), rel=1e-12)


def test_a_torus_goes_the_shorter_way() -> None:
    ring = Dimension(shape=Shape.RING, size=4, parameters=WIRE)
    network = Interconnect(name="t", fabric=Dimensions(dimensions=(ring, ring)))

    ends = simulate_transfers(
        network,
        [
            Transfer(source=0, target=3, size_bytes=0),
            Transfer(source=0, target=10, size_bytes=0),
            Transfer(source=5, target=4, size_bytes=50_000),
        ],
    )

    assert ends == pytest.approx((1e-6, 4e-6, 2e-6))


def test_a_dragonfly_takes_one_wire_between_groups() -> None:
    fast = LinkParameters(bandwidth_bytes_per_s=100e9, latency_s=1e-7)
    slow = LinkParameters(bandwidth_bytes_per_s=10e9, latency_s=1e-6)
    fabric = Dragonfly(
        groups=3,
        routers_per_group=2,
        devices_per_router=2,
        device_link=fast,
        local_link=fast,
        global_link=slow,
    )
    network = Interconnect(name="d", fabric=fabric)

    near, far = simulate_transfers(
        network,
        [
            Transfer(source=0, target=2, size_bytes=0),
            # Router 1 of group 0 has the wire to group 2, whose router 0 has the one back.
            Transfer(source=0, target=8, size_bytes=10_000),
        ],
    )

    assert near == pytest.approx(3e-7)
    assert far == pytest.approx(1e-7 + 1e-7 + 1e-6 + 1e-7 + 1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_a_group_between_spreads_the_messages_of_two_groups(seed: int) -> None:
    """Eight messages from group 0 to group 1: over one link, or by the links of nine groups."""
    link = LinkParameters(bandwidth_bytes_per_s=1e9, latency_s=1e-6)
    minimal = Dragonfly(
        groups=11,
        routers_per_group=4,
        devices_per_router=2,
        device_link=link,
        local_link=link,
        global_link=link,
    )
    around = replace(minimal, routing=DragonflyRouting.VALIANT, seed=seed)
    messages = [Transfer(source=one, target=8 + one, size_bytes=1_000_000) for one in range(8)]
    near, far = [
        simulate_transfers(Interconnect(name="d", fabric=fabric), messages)
        for fabric in (minimal, around)
    ]
    assert max(near) > 0.008
    assert max(far) < 0.006
    assert min(far) > min(near) / 8 + 2e-6
    inside = [Transfer(source=0, target=2, size_bytes=0)]
    ends = simulate_transfers(Interconnect(name="d", fabric=around), inside)
    assert ends == pytest.approx((3e-6,))


def test_equal_ways_through_a_graph_are_spread() -> None:
    spines = [f"s{number}" for number in range(4)]
    edges = [
        Edge(source=one, target=other, bandwidth_bytes_per_s=1e9, latency_s=0)
        for spine in spines
        for leaf in ("l0", "l1")
        for one, other in ((leaf, spine), (spine, leaf))
    ]
    for device in range(16):
        leaf = f"l{device // 8}"
        for one, other in ((f"d{device}", leaf), (leaf, f"d{device}")):
            edges.append(Edge(source=one, target=other, bandwidth_bytes_per_s=1e9, latency_s=0))
    devices = tuple(f"d{device}" for device in range(16))
    graph = Graph(devices=devices, switches=("l0", "l1", *spines), edges=tuple(edges))
    network = Interconnect(name="g", fabric=graph)
    transfers = [Transfer(source=a, target=8 + a, size_bytes=1_000_000) for a in range(8)]

    ends = simulate_transfers(network, transfers)

    # All over one spine would take 8 ms, evenly over four 2 ms; the way is the same each time.
    assert 2e-3 <= max(ends) < 8e-3
    assert ends == simulate_transfers(network, transfers)


@pytest.mark.parametrize(
    "transfer",
    [
        Transfer(source=0, target=0, size_bytes=1),
        Transfer(source=0, target=8, size_bytes=1),
        Transfer(source=0, target=1, size_bytes=-1),
        Transfer(source=0, target=1, size_bytes=1, depends_on=(0,)),
    ],
)
def test_impossible_transfers_are_refused(transfer: Transfer) -> None:
    with pytest.raises(SimulationError, match="transfer 0"):
        simulate_transfers(NETWORK, [transfer])


# Random transfers end when SimGrid says so: validation/simgrid_judge.py wrote the figures.

ENDS_S: dict[str, list[float]] = json.loads(
    (Path(__file__).parent / "simgrid_cases.json").read_text()
)


def upwards(here: Integers, there: Integers, size: int) -> Integers:
    """Return how far a message goes around a ring: upwards where both ways are equally long."""
    up = (there - here) % size
    return np.where(up <= size - up, up, up - size)


@pytest.mark.parametrize("number", ENDS_S)
def test_transfers_end_when_they_do_in_simgrid(
    number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SimGrid was given these routes. It judges how links are shared, whatever the routes.
    monkeypatch.setattr(topology, "_shorter_way", upwards)
    case = random_case(int(number))

    ends_s = simulate_transfers(case.network, case.transfers)

    assert ends_s == pytest.approx(ENDS_S[number], rel=TOLERANCE, abs=0)


def test_several_kinds_of_networks_are_compared() -> None:
    assert len({random_case(int(number)).name for number in ENDS_S}) >= 6
