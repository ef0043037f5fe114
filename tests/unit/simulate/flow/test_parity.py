"""On one idle dimension, one collective takes exactly as long as in ASTRA-sim."""

from __future__ import annotations

import pytest

from hespas.hardware.system import (
    CollectiveKind,
    NetworkDimension,
    RemoteMemory,
    RemoteMemoryKind,
    System,
    Topology,
)
from hespas.schedule.tasks import CollectiveTask, CommunicationKind, TaskGraph
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.flow.simulate import simulate_flow

Case = tuple[str, str, CommunicationKind]
KINDS = (
    CommunicationKind.ALL_REDUCE,
    CommunicationKind.ALL_GATHER,
    CommunicationKind.REDUCE_SCATTER,
    CommunicationKind.ALL_TO_ALL,
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


def _graph(kind: CommunicationKind, devices: int, size_bytes: int) -> TaskGraph:
    task = CollectiveTask(
        id=1, name="k", depends_on=(), kind=kind, size_bytes=size_bytes, group_table=None
    )
    return TaskGraph(name="g", device_count=devices, tasks=(task,), group_tables=())


def _system(shape: str, devices: int, algorithm: str) -> System:
    dimension = NetworkDimension(
        topology=Topology(shape),
        npus_count=devices,
        bandwidth_bytes_per_s=93.7 * 2**30,
        latency_s=1234.567e-9,
    )
    return System(
        name="test",
        dimensions=(dimension,),
        implementations=dict.fromkeys(CollectiveKind, (algorithm,)),
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
    graph = _graph(CommunicationKind.ALL_TO_ALL, 8, 2**24)
    system = _system(shape, 8, "direct")

    # Seven messages at a time leave through one wire, or four go around one side of the ring.
    assert simulate_flow(graph, system).finish_ps > 4 * simulate(graph, system).finish_ps
