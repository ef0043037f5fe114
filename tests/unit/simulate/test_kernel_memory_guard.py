from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hespas.errors import SimulationError
from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape
from hespas.hardware.links import LinkParameters
from hespas.hardware.system import System
from hespas.program.collectives import CollectiveKind
from hespas.simulate import kernel
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.flow.simulate import simulate_flow
from hespas.tasks.graph import CollectiveTask, ComputeTask, Job, TaskGraph

MIB = 2**20


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "available_bytes", lambda: MIB)


def graph(devices: int, duration_ps: int = 1000) -> TaskGraph:
    compute = ComputeTask(id=1, name="c", depends_on=(), duration_ps=duration_ps)
    exchange = CollectiveTask(
        id=2,
        name="k",
        depends_on=(1,),
        kind=CollectiveKind.ALL_TO_ALL,
        size_bytes=MIB,
        group_table=None,
    )
    return TaskGraph(name="g", device_count=devices, tasks=(compute, exchange), group_tables=())


def test_there_is_some_memory() -> None:
    available = kernel.available_bytes()

    assert available is not None
    assert available > MIB


@pytest.mark.usefixtures("little")
def test_events_that_would_not_fit_are_refused(make_system: Callable[..., System]) -> None:
    job = Job(graphs=(graph(64), graph(64, 5)), graph_of_device=(0,) * 63 + (1,))
    small = Job(graphs=(graph(8), graph(8, 5)), graph_of_device=(0,) * 7 + (1,))

    def run(job: Job) -> None:
        shape = ("Switch", job.device_count)
        simulate(job, make_system(shape, algorithms=("direct",)), by_events=True)

    run(small)
    with pytest.raises(SimulationError, match=r"4032 messages .* 0\.0 GiB are available"):
        run(job)


@pytest.mark.usefixtures("little")
def test_ways_that_would_not_fit_are_refused() -> None:
    wire = LinkParameters(bandwidth_bytes_per_s=1e9, latency_s=1e-6)
    dimension = Dimension(shape=Shape.FULLY_CONNECTED, size=128, parameters=wire)
    network = Interconnect(name="n", fabric=Dimensions(dimensions=(dimension,)))

    every, halves = graph(128), (tuple(range(64)), tuple(range(64, 128)))
    among = replace(every.tasks[1], id=3, depends_on=(2,), group_table=0)
    both = replace(every, tasks=(*every.tasks, among), group_tables=(halves,))
    with pytest.raises(SimulationError, match="24320 messages to keep track of"):
        simulate_flow(both, network, algorithm="direct")
