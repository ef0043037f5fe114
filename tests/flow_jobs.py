"""Jobs of a few tasks, and a switch of 1 us and 1 GB/s a wire, so that 1 MB takes 1 ms."""

from __future__ import annotations

from dataclasses import replace

from hespas.hardware.interconnect import (
    Dimension,
    Dimensions,
    Interconnect,
    Shape,
)
from hespas.hardware.links import LinkParameters
from hespas.program.collectives import CollectiveKind
from hespas.tasks.graph import CollectiveTask, ComputeTask, ReceiveTask, SendTask, Task, TaskGraph

WIRE = LinkParameters(bandwidth_bytes_per_s=1e9, latency_s=1e-6)
MB = 10**6
US = 10**6
MS = 10**9


def one_dimension(
    shape: Shape, size: int, wire: LinkParameters = WIRE, **more: object
) -> Interconnect:
    dimension = Dimension(shape=shape, size=size, parameters=wire)
    return Interconnect(name="n", fabric=Dimensions(dimensions=(replace(dimension, **more),)))


SWITCH = one_dimension(Shape.SWITCH, 4)


def collective(
    number: int,
    *,
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
    size_bytes: int = 4 * MB,
    table: int | None = None,
    depends_on: tuple[int, ...] = (),
) -> CollectiveTask:
    return CollectiveTask(
        id=number,
        name=f"k{number}",
        depends_on=depends_on,
        kind=kind,
        size_bytes=size_bytes,
        group_table=table,
    )


def compute(number: int, duration_ps: int, depends_on: tuple[int, ...] = ()) -> ComputeTask:
    return ComputeTask(id=number, name=f"c{number}", depends_on=depends_on, duration_ps=duration_ps)


def graph(*tasks: Task, devices: int = 4, tables: object = ()) -> TaskGraph:
    return TaskGraph(
        name="g",
        device_count=devices,
        tasks=tasks,
        group_tables=tables,  # pyright: ignore[reportArgumentType] - tuples of tuples
    )


def transfer(number: int, source: int, target: int, **more: int) -> tuple[Task, Task]:
    size_bytes = more.get("size_bytes", MB)
    pairs = ((source, target),)
    send = SendTask(
        id=number, name="s", depends_on=(), pairs=pairs, size_bytes=size_bytes, tag=number
    )
    receive = ReceiveTask(
        id=number + 1, name="r", depends_on=(), pairs=pairs, size_bytes=size_bytes, tag=number
    )
    return send, receive
