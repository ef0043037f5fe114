"""Chakra traces node by node, for simulations that keep only what is under way in memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from hespas.errors import TraceError
from hespas.program.collectives import CollectiveKind
from hespas.tasks.chakra.nodes import EVERYONE, ParsedNode
from hespas.tasks.chakra.reader import node_location, parsed_nodes
from hespas.tasks.graph import CollectiveTask, ComputeTask

_HINT = "leave --stream out"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedTrace:
    """What a first reading of a device's trace says.

    ``reach`` is how far a node may stand behind the last node that it depends on, counted from the
    beginning of the file for nodes that depend on none: once a node has ended, only nodes up to
    ``reach`` behind it can start. ``groups`` are those of its collectives but for that of all
    devices, ``kinds`` what these do.
    """

    file: Path
    reach: int
    groups: frozenset[int]
    kinds: frozenset[CollectiveKind]


def scan_trace(file: Path) -> ScannedTrace:
    """Read a trace once, with 8 bytes of memory for each node.

    Raises `TraceError` for what `read_traces` refuses in one file, for ids that don't ascend, and
    for tasks that cannot be streamed: all but computations of devices and collectives.
    """
    ids = array("Q")
    reach = 0
    groups: set[int] = set()
    kinds: set[CollectiveKind] = set()
    for node in stream_trace(file):
        task = node.task
        if ids and task.id <= ids[-1]:
            _refuse(file, node, "its id is not above that of the node before")
        last = -1
        for dependency in task.depends_on:
            at = bisect_left(ids, dependency)
            if at == len(ids) or ids[at] != dependency:
                _refuse(file, node, f"it depends on {dependency}, which does not stand before it")
            last = max(last, at)
        reach = max(reach, len(ids) - last)
        ids.append(task.id)
        match task:
            case ComputeTask(is_on_host=False, has_duration=True):
                pass
            case CollectiveTask(recorded_ps=None):
                if node.group != EVERYONE:
                    groups.add(node.group)
                    kinds.add(task.kind)
            case _:
                _refuse(file, node, "only computations and collectives can be streamed")
    return ScannedTrace(file=file, reach=reach, groups=frozenset(groups), kinds=frozenset(kinds))


def stream_trace(file: Path) -> Iterator[ParsedNode]:
    """Yield the nodes of a trace but for metadata, whose dependencies others inherit."""
    inherited: dict[int, tuple[int, ...]] = {}
    for node in parsed_nodes(file):
        task = node.task
        if inherited and not inherited.keys().isdisjoint(task.depends_on):
            ends = [end for one in task.depends_on for end in inherited.get(one, (one,))]
            task = replace(task, depends_on=tuple(dict.fromkeys(ends)))
        if node.is_metadata:
            inherited[task.id] = task.depends_on
        else:
            yield node._replace(task=task)


def _refuse(file: Path, node: ParsedNode, message: str) -> NoReturn:
    raise TraceError(message, location=node_location(str(file), node), hint=_HINT)
