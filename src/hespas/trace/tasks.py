"""The task graph of a program: computation, collectives and transfers, with dependencies.

One graph describes all devices that run the same program. A device takes part in a collective
if a group names it, sends if a pair starts at it, receives if a pair ends at it; a task that
doesn't concern it is skipped, and what depended on that task depends on the task's own
dependencies instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CommunicationKind(Enum):
    """Collectives, as Chakra's ``CollectiveCommType`` numbers them."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTask:
    """Computation of a known duration on the device's compute stream.

    ``label`` groups tasks in reports (the dearest operation's kind).
    """

    id: int
    name: str
    depends_on: tuple[int, ...]
    duration_ps: int
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTask:
    """A collective among the devices of one group.

    ``group_table`` indexes `TaskGraph.group_tables`; None means one group of all devices.
    ``size_bytes`` is one rank's input: its shard for all-gather, its full buffer otherwise.
    """

    id: int
    name: str
    depends_on: tuple[int, ...]
    kind: CommunicationKind
    size_bytes: int
    group_table: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTask:
    """Every source in ``pairs`` sends ``size_bytes`` to its target."""

    id: int
    name: str
    depends_on: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    size_bytes: int
    tag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveTask:
    """Every target in ``pairs`` receives ``size_bytes`` from its source."""

    id: int
    name: str
    depends_on: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    size_bytes: int
    tag: int


Task = ComputeTask | CollectiveTask | SendTask | ReceiveTask

GroupTable = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGraph:
    """Tasks in an order where dependencies come first; ids ascend and are unique.

    ``group_tables`` holds each distinct division of the devices into groups once.
    """

    name: str
    device_count: int
    tasks: tuple[Task, ...]
    group_tables: tuple[GroupTable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a whole cluster runs: graphs, and which one each device follows.

    An SPMD program is one graph that every device follows.
    """

    graphs: tuple[TaskGraph, ...]
    graph_of_device: tuple[int, ...]
