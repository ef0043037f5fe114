"""NCCL across nodes: latencies by its tables, bandwidths of the node and the ports."""

from __future__ import annotations

from statistics import median

import pytest

from flow_jobs import collective, graph
from hespas.hardware.links import load_link
from hespas.hardware.sized import find_system
from hespas.hardware.system import interconnect_of
from hespas.program.collectives import CollectiveKind
from hespas.simulate.flow.nccl import Nodes, Protocol, candidates
from hespas.simulate.flow.simulate import simulate_flow
from hespas.simulate.timeline import Timeline

GIB = 1 << 30
US = 1_000_000


def run(
    kind: str,
    devices: int,
    buffer_bytes: int,
    *,
    groups: tuple[tuple[int, ...], ...] | None = None,
    part: str = "H100_80GB",
    algorithm: str = "specified",
) -> Timeline:
    members = devices if groups is None else len(groups[0])
    size_bytes = buffer_bytes // members if kind == "ALL_GATHER" else buffer_bytes
    table = None if groups is None else 0
    task = collective(1, kind=CollectiveKind[kind], size_bytes=size_bytes, table=table)
    job = graph(task, devices=devices, tables=() if groups is None else (groups,))
    network = interconnect_of(find_system(f"{devices}x{part}"))
    return simulate_flow(job, network, algorithm=algorithm)


def bus_gb_per_s(kind: str, devices: int, buffer_bytes: int, part: str = "H100_80GB") -> float:
    finish_s = run(kind, devices, buffer_bytes, part=part).finish_ps / 1e12
    passes = 2 if kind == "ALL_REDUCE" else 1
    return passes * (devices - 1) / devices * buffer_bytes / finish_s / 1e9


def rails(devices: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(first, devices, 8)) for first in range(8))


def test_large_rings_through_nodes_reach_the_slower_of_nvlink_and_all_ports() -> None:
    """Eight ports of 50 GB/s are more than NVLink's 340 GB/s on H100, and less than B200's."""
    alone = bus_gb_per_s("ALL_GATHER", 8, 32 * GIB)
    assert bus_gb_per_s("ALL_GATHER", 32, 32 * GIB) == pytest.approx(alone, rel=0.01)
    assert bus_gb_per_s("ALL_GATHER", 32, 32 * GIB, part="B200_180GB") == pytest.approx(
        400, rel=0.01
    )


def test_large_all_reduces_are_trees_of_nodes_whose_switches_reduce() -> None:
    """Two trees of half the data cross each port twice in each direction; two nodes only once."""
    plan = run("ALL_REDUCE", 128, 8 * GIB)
    assert any("NCCL's NVLS tree (Simple)" in text for text in plan.assumptions)
    assert bus_gb_per_s("ALL_REDUCE", 128, 32 * GIB) == pytest.approx(400 * 127 / 128, rel=0.01)
    assert bus_gb_per_s("ALL_REDUCE", 16, 32 * GIB) > 450


def test_rings_take_a_step_for_each_member_and_trees_for_each_doubling() -> None:
    """14,336 steps of 1 us and 2,047 of 2.7 us, after 6.6 us: what grows with the devices."""
    gathered_us = run("ALL_GATHER", 16384, 16384 * 8).finish_ps / US
    assert gathered_us == pytest.approx(6.6 + 14336 * 1.0 + 2047 * 2.7, rel=0.01)
    reduced_us = [run("ALL_REDUCE", 8 * nodes, 1024).finish_ps / US for nodes in (64, 128)]
    assert reduced_us[0] == pytest.approx(6.8 + 2 * (7 * 0.6 + 6 * 5.0), rel=0.01)
    assert reduced_us[1] - reduced_us[0] == pytest.approx(2 * 5.0, rel=0.01)


def test_groups_of_one_device_a_node_gather_by_aggregated_trees() -> None:
    """PAT: 8 us, 4 us for each doubling of the nodes, 2.8 us for each member."""
    plan = run("ALL_GATHER", 512, 1 << 22, groups=rails(512))
    assert any("NCCL's PAT (Simple)" in text for text in plan.assumptions)
    sent_us = 63 / 64 * (1 << 22) / (0.75 * 50e3)
    assert plan.finish_ps / US == pytest.approx(8 + 6 * 4 + 64 * 2.8 + sent_us, rel=0.01)


def test_a_port_of_one_device_carries_a_large_all_gather_of_its_rail() -> None:
    finish_s = run("ALL_GATHER", 64, 8 * GIB, groups=rails(64)).finish_ps / 1e12
    assert 7 / 8 * 8 * GIB / finish_s == pytest.approx(50e9, rel=0.01)


@pytest.mark.parametrize("kind", ["ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER"])
@pytest.mark.parametrize("size_bytes", [1 << 16, 1 << 22, 1 << 28, 1 << 32])
def test_more_nodes_never_take_less_time(kind: str, size_bytes: int) -> None:
    times = [run(kind, devices, size_bytes).finish_ps for devices in (16, 32, 64, 256, 1024)]
    assert times == sorted(times)


@pytest.mark.parametrize("kind", ["ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER"])
def test_no_collective_beats_what_the_ports_carry(kind: str) -> None:
    """Whatever the algorithm, a node receives all that its members lack."""
    for devices in (16, 64, 512):
        bound_s = GIB * (devices - 8) / devices / 400e9
        assert run(kind, devices, GIB).finish_ps / 1e12 >= bound_s


def test_other_algorithms_remain_by_name() -> None:
    named = run("ALL_REDUCE", 64, GIB, algorithm="hierarchical")
    assert any("hierarchical (" in text for text in named.assumptions)
    assert not any("runs as NCCL's" in text for text in named.assumptions)


@pytest.mark.parametrize("name", ["NVLink3_A100", "NVLink4_H100", "NVLink4_H200", "NVLink5_B200"])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_nccls_tables_are_near_measured_collectives_of_a_node(name: str, kind: str) -> None:
    """The tables, which nothing was fitted to, are within 30 % in the median."""
    link, large = load_link(name), 1 << 29
    errors: list[float] = []
    for members in (2, 4, 8):
        fit = link.measured(kind, members, large)
        assert fit is not None
        ring = fit.bandwidth_bytes_per_s * (members - 1) / members
        nodes = Nodes(count=1, members=members, hop_us=0.0, ring_bytes_per_s=ring)
        for size in (1 << bits for bits in range(10, 30)):
            own = link.measured(kind, members, size)
            assert own is not None
            estimated_s = min(
                one.latency_us * 1e-6 + one.in_node_s for one in candidates(kind, nodes, size)
            )
            errors.append(abs(estimated_s / own.time_s(size) - 1))
    assert median(errors) < 0.3


def test_candidates_have_the_latencies_of_nccls_tables() -> None:
    nodes = Nodes(count=64, members=8, hop_us=2.7, ring_bytes_per_s=340e9, switch_bytes_per_s=264e9)
    found = {(one.algorithm, one.protocol): one for one in candidates("all_reduce", nodes, 1 << 20)}
    assert found["ring", Protocol.LL128].latency_us == pytest.approx(14 + 894 * 1.9 + 128 * 4)
    assert found["tree", Protocol.SIMPLE].latency_us == pytest.approx(8.4 + 2 * (7 * 4 + 6 * 14))
    assert found["NVLS tree", Protocol.SIMPLE].latency_us == pytest.approx(25 + 2 * 6 * 14)
