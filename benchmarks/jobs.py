"""Jobs of any size for benchmarks/simulate.py: run one, and print what it came to.

    python benchmarks/jobs.py llm 1024 [--model hespas]

``llm`` is 1000 nodes of a language model's training: computation, a tensor-parallel all-reduce
among 8 devices, computation, a data-parallel one among the others, 250 times. In ``straggler``
one device computes 10 % longer, in ``unequal`` every device differs. ``direct`` is one direct
all-reduce over all devices.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from hespas.hardware.interconnect import Shape, dimension_of
from hespas.hardware.system import RemoteMemory, RemoteMemoryKind, System
from hespas.program.collectives import COMMON_KINDS, CollectiveKind
from hespas.tasks.graph import CollectiveTask, ComputeTask, Job, Task, TaskGraph

if TYPE_CHECKING:
    from hespas.simulate.timeline import Timeline

TENSOR_PARALLEL = 8
LAYERS = 250


def system(devices: int, *, algorithm: str = "ring") -> System:
    """Return nodes of 8 devices, all connected, behind a switch; or one switch of them all."""
    shape = ((Shape.FULLY_CONNECTED, TENSOR_PARALLEL), (Shape.SWITCH, devices // 8))
    if algorithm != "ring":
        shape = ((Shape.FULLY_CONNECTED, devices),)
    dimensions = [dimension_of(topology, count, 100 * 2**30, 500e-9) for topology, count in shape]
    return System(
        name=f"{devices} devices",
        dimensions=tuple(dimensions),
        implementations=dict.fromkeys(COMMON_KINDS, (algorithm,) * len(dimensions)),
        endpoint_delay_s=10e-9,
        preferred_dataset_splits=1,
        active_chunks_per_dimension=1,
        collective_optimization="localBWAware",
        scheduling_policy="LIFO",
        local_memory_bandwidth_bytes_per_s=1600e9,
        remote_memory=RemoteMemory(kind=RemoteMemoryKind.NO_MEMORY_EXPANSION),
        options={},
    )


def _all_reduce(number: int, table: int | None, size_bytes: int) -> CollectiveTask:
    return CollectiveTask(
        id=number,
        name="all-reduce",
        depends_on=(number - 1,) if number > 1 else (),
        kind=CollectiveKind.ALL_REDUCE,
        size_bytes=size_bytes,
        group_table=table,
    )


def _compute(number: int, duration_ps: int) -> ComputeTask:
    before = (number - 1,) if number > 1 else ()
    return ComputeTask(id=number, name="compute", depends_on=before, duration_ps=duration_ps)


def llm(devices: int) -> TaskGraph:
    """Return 1000 nodes: see the module."""
    tasks: list[Task] = []
    for layer in range(LAYERS):
        tasks += [
            _compute(4 * layer + 1, 100_000_000),
            _all_reduce(4 * layer + 2, 0, 16 << 20),
            _compute(4 * layer + 3, 100_000_000),
            _all_reduce(4 * layer + 4, 1, 64 << 20),
        ]
    inner = tuple(tuple(range(i, i + 8)) for i in range(0, devices, TENSOR_PARALLEL))
    outer = tuple(tuple(range(i, devices, TENSOR_PARALLEL)) for i in range(TENSOR_PARALLEL))
    return TaskGraph(
        name="llm", device_count=devices, tasks=tuple(tasks), group_tables=(inner, outer)
    )


def slower(graph: TaskGraph, percent: int) -> TaskGraph:
    """Return a graph whose computations take longer."""
    tasks = [
        replace(task, duration_ps=task.duration_ps * (100 + percent) // 100)
        if isinstance(task, ComputeTask)
        else task
        for task in graph.tasks
    ]
    return replace(graph, tasks=tuple(tasks))


def straggler(devices: int) -> Job:
    """Return the language model with one device that computes 10 % longer."""
    graph = llm(devices)
    of_device = (0,) * (devices - 1) + (1,)
    return Job(graphs=(graph, slower(graph, 10)), graph_of_device=of_device)


def unequal(devices: int) -> Job:
    """Return the language model with devices that all compute at different speeds."""
    graph = llm(devices)
    graphs = [slower(graph, percent) for percent in range(devices)]
    return Job(graphs=tuple(graphs), graph_of_device=tuple(range(devices)))


def direct(devices: int) -> TaskGraph:
    """Return one all-reduce over all devices."""
    return TaskGraph(
        name="direct",
        device_count=devices,
        tasks=(_all_reduce(1, None, 64 << 20),),
        group_tables=(),
    )


JOBS: dict[str, Callable[[int], Job | TaskGraph]] = {
    "llm": llm,
    "straggler": straggler,
    "unequal": unequal,
    "direct": direct,
}


def simulator(model: str) -> Callable[[Job | TaskGraph, System], Timeline]:
    """Return what simulates by a model; only that one is imported."""
    if model == "hespas":
        return import_module("hespas.simulate.flow.simulate").simulate_flow
    return import_module("hespas.simulate.astra.simulate").simulate


def main() -> None:
    """Simulate one job, and print when it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("devices", type=int)
    parser.add_argument("--model", choices=("astra-sim", "hespas"), default="astra-sim")
    arguments = parser.parse_args()
    cluster = system(arguments.devices, algorithm="direct" if arguments.job == "direct" else "ring")
    timeline = simulator(arguments.model)(JOBS[arguments.job](arguments.devices), cluster)
    print(f"{timeline.step_time_s * 1e3:.6f} ms, {len(timeline.classes)} classes")


if __name__ == "__main__":
    main()
