from __future__ import annotations

import json
from collections.abc import Sequence
from math import comb
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from flow_transfers import Transfer, simulate_transfers
from hespas.errors import ConfigError, HardwareError
from hespas.hardware.cluster import Cluster, LinkOverride
from hespas.hardware.interconnect import Interconnect
from hespas.hardware.interconnect_file import read_interconnect
from hespas.simulate.flow.topology import make_topology

GB = 10**9
FABRIC: dict[str, Any] = {
    "leaves": 4,
    "devices_per_leaf": 8,
    "spines": 4,
    "device_link": {"bandwidth_bytes_per_s": 10e9, "latency_s": 0},
}
ACROSS = [Transfer(source=source, target=8 + source, size_bytes=GB) for source in range(8)]
BESIDE = [Transfer(source=16 + source, target=8 + source, size_bytes=GB) for source in range(8)]


def network(directory: Path, **given: Any) -> Interconnect:
    path = directory / "network.json"
    path.write_text(json.dumps({"leaf_spine": {**FABRIC, **given}}))
    return read_interconnect(path, name="fabric")


def ends(fabric: Interconnect, transfers: Sequence[Transfer]) -> float:
    return max(simulate_transfers(fabric, transfers))


def test_a_seed_without_a_hash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="drop it, or give routing: ecmp"):
        network(tmp_path, routing="spraying", seed=3)


def test_spraying_has_no_collisions(tmp_path: Path) -> None:
    assert ends(network(tmp_path, routing="spraying"), ACROSS) == pytest.approx(0.1)


@pytest.mark.parametrize("oversubscription", [1.0, 2.0, 4.0])
def test_oversubscribed_leaves_take_as_much_longer(tmp_path: Path, oversubscription: float) -> None:
    fabric = network(tmp_path, routing="spraying", oversubscription=oversubscription)
    assert ends(fabric, ACROSS) == pytest.approx(0.1 * oversubscription)


def test_collisions_are_as_frequent_as_chance_has_them(tmp_path: Path) -> None:
    """Two messages share one of four spines in a quarter of the draws."""
    pair = [ACROSS[0], ACROSS[1]]
    slow = [
        ends(network(tmp_path, seed=seed, oversubscription=4.0), pair) > 0.3 for seed in range(400)
    ]
    assert mean(slow) == pytest.approx(0.25, abs=0.06)


def test_the_fullest_spine_is_that_of_balls_in_bins(tmp_path: Path) -> None:
    """Eight messages over two spines, each as wide as four devices: k on one take k / 4 as long."""
    times = [ends(network(tmp_path, seed=seed, spines=2), ACROSS) for seed in range(300)]
    expected = mean(max(k, 8 - k, 4) / 4 * 0.1 for k in range(9) for _ in range(comb(8, k)))
    assert mean(times) == pytest.approx(expected, rel=0.05)


def test_a_seed_draws_the_same_collisions(tmp_path: Path) -> None:
    first = simulate_transfers(network(tmp_path, seed=3), ACROSS)
    assert first == simulate_transfers(network(tmp_path, seed=3), ACROSS)


def test_incast_shares_the_link_of_the_one_that_receives(tmp_path: Path) -> None:
    incast = [Transfer(source=source, target=0, size_bytes=GB) for source in range(8, 32)]
    for seed in range(20):
        assert ends(network(tmp_path, seed=seed), incast) == pytest.approx(2.4)


def test_a_second_job_never_speeds_up_the_first(tmp_path: Path) -> None:
    alone: list[float] = []
    shared: list[float] = []
    for seed in range(20):
        fabric = network(tmp_path, seed=seed)
        alone.append(ends(fabric, ACROSS))
        shared.append(max(simulate_transfers(fabric, [*ACROSS, *BESIDE])[: len(ACROSS)]))
        assert shared[-1] >= alone[-1] - 1e-12
    assert median(shared) > 1.5 * median(alone)


@pytest.mark.parametrize("routing", ["spraying", "adaptive"])
def test_uplinks_are_as_one_where_packets_go_over_all(tmp_path: Path, routing: str) -> None:
    (dimension,) = network(tmp_path, routing=routing).dimensions
    assert dimension.spines is None


def test_spraying_is_the_best_of_all_hashes(tmp_path: Path) -> None:
    best = ends(network(tmp_path, routing="spraying"), ACROSS)
    assert all(ends(network(tmp_path, seed=seed), ACROSS) >= best for seed in range(20))


BAD = [
    ({"spines": 0}, "spines"),
    ({"routing": "shortest"}, "routing"),
    ({"leaves": 1 << 20, "devices_per_leaf": 1 << 10}, "1,?048,?576|devices"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_what_has_no_meaning_is_refused(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, HardwareError), match=message):
        network(tmp_path, **given)


def of_nodes(directory: Path, **given: Any) -> Interconnect:
    """Return 16 nodes of 4 on leaves of 4 nodes: each device has a rail of its own."""
    link = {"bandwidth_bytes_per_s": 10e9, "latency_s": 0}
    tree = {"topology": "fat_tree", "size": 16, "leaf_size": 4, "link": link, **given}
    node = {"topology": "switch", "size": 4, "link": {**link, "bandwidth_bytes_per_s": 1e12}}
    path = directory / "network.json"
    path.write_text(json.dumps({"dimensions": [node, tree]}))
    return read_interconnect(path, name="fabric")


def test_rails_of_nodes_have_spines_of_their_own(tmp_path: Path) -> None:
    across = [Transfer(source=device, target=16 + device, size_bytes=GB) for device in range(16)]
    assert ends(of_nodes(tmp_path), across) == pytest.approx(0.1)
    slow = [ends(of_nodes(tmp_path, spines=4, seed=seed), across) for seed in range(20)]
    assert {round(10 * each) for each in slow} <= {1, 2, 3, 4}
    assert median(slow) >= 0.2


def test_messages_go_around_a_dead_spine(tmp_path: Path) -> None:
    fabric = of_nodes(tmp_path, spines=4)
    dead = [f"dim1.leaf_up.0.{spine}" for spine in range(3)]
    cluster = Cluster(links=tuple([LinkOverride(link=name, bandwidth_scale=0) for name in dead]))
    topology = make_topology(fabric, cluster)
    rails = topology.routes([0, 0, 0, 0], [16, 20, 24, 28])
    crossed = {topology.name(link) for link in rails.link.tolist()}
    assert {name for name in crossed if "leaf_up" in name} == {"dim1.leaf_up.0.3"}


def test_spines_belong_to_fat_trees(tmp_path: Path) -> None:
    for given, message in (
        ({"topology": "switch", "leaf_size": None, "spines": 2}, "spines"),
        ({"routing": "ecmp"}, "without spines"),
        ({"seed": 3}, "without spines"),
    ):
        with pytest.raises(HardwareError, match=message):
            of_nodes(tmp_path, **given)
