"""Read Chakra traces back into a job.

Files are read message by message, equal files once. Traces that differ only in groups and peers
become one task graph.
"""

from __future__ import annotations

import logging
import os
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import NoReturn, TypeVar

from hespas.base.frozen import frozen
from hespas.errors import TraceError
from hespas.program.collectives import CollectiveKind
from hespas.tasks.chakra.format import Group, read_groups, schema, split_delimited
from hespas.tasks.chakra.nodes import EVERYONE, ParsedNode, parse_node
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    GroupTable,
    Job,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
    inherit,
    needs,
)

log = logging.getLogger("hespas")

Pairs = tuple[tuple[int, int], ...]
_Message = TypeVar("_Message")
_Claims = Mapping[tuple[int, int | None, int], ParsedNode]


def read_traces(prefix: Path, comm_groups: Path | None = None, *, is_recorded: bool = False) -> Job:
    """Read ``<prefix>.<device>.et`` for all devices, and their groups.

    One file is read at a time, message by message; equal files are read once, and devices that
    differ only in groups and peers share a graph.
    A compute node takes ``duration_ns`` if it has one, else ``duration_micros``, of which 0 means
    1 ns, as in ASTRA-sim; a node with work (``num_ops``, ``tensor_size``) and neither becomes a
    task without ``has_duration``. Metadata nodes are left out, and their dependents inherit their
    dependencies. A group name that is absent, "" or "0" means all devices. With ``is_recorded`` all
    tasks take their recorded durations, for systems with ``replay-only``. Unknown attributes are
    ignored and named in a warning. Raises `TraceError`, naming file and node, for missing, damaged
    or contradictory content, and for communication of the CPU, which has no model.
    """
    files = trace_files(prefix)
    groups = {} if comm_groups is None else read_groups(comm_groups, len(files))
    context = _GroupTables(groups, len(files))
    traces: list[_Trace] = []
    shared: dict[tuple[Task, ...], tuple[Task, ...]] = {}
    unknown_counts: Counter[str] = Counter()
    for devices in distinct_files(files):
        location = str(files[devices[0]])
        parsed = list(parsed_nodes(files[devices[0]], is_recorded=is_recorded))
        unknown_counts.update([name for node in parsed for name in node.unknown])
        collectives = [node for node in parsed if isinstance(node.task, CollectiveTask)]
        context.check_order([node.group for node in collectives], location)
        nodes = [_with_global_group(node, context.global_groups) for node in parsed]
        claims = {(node.group, node.own, node.peer): node for node in nodes}
        for device in devices:
            _check_claims(claims, device, str(files[device]), context)
        ordered = list(_without_metadata(_dependencies_first(nodes, location)))
        trace = _trace(ordered, tuple(devices))
        traces.append(replace(trace, tasks=shared.setdefault(trace.tasks, trace.tasks)))
    if unknown_counts:
        counts = sorted(unknown_counts.items())
        names = ", ".join(f"{name} ({count} nodes)" for name, count in counts)
        log.warning("%s: unknown attributes are ignored: %s", prefix, names)
    return _merged(prefix.name, traces, groups, len(files))


def read_messages(path: Path) -> tuple[ParsedNode, ...]:
    """Read one member's part of a custom collective, dependencies first.

    A peer is a position in the group. Raises `TraceError`, naming file and node.
    """
    try:
        parsed = list(parsed_nodes(path, with_notes=True))
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", location=str(path)) from None
    return tuple(_without_metadata(_dependencies_first(parsed, str(path))))


class _GroupTables:
    """The groups by number, and the groups of all devices."""

    def __init__(self, groups: Mapping[int, Group], device_count: int) -> None:
        self.device_count = device_count
        self.members = {number: frozenset(group) for number, group in groups.items()}
        self.global_groups = {
            number for number, members in self.members.items() if len(members) == device_count
        }
        self._twins = self._find_twins()
        self._orders: dict[frozenset[int], tuple[tuple[int, ...], str]] = {}

    def _find_twins(self) -> dict[int, frozenset[int]]:
        """Return the groups whose members equal another group's."""
        everyone = {EVERYONE: frozenset(range(self.device_count))}
        members = self.members | everyone if self.global_groups else self.members
        counts = Counter(members.values())
        return {number: group for number, group in members.items() if counts[group] > 1}

    def check_order(self, used: Iterable[int], file: str) -> None:
        """Raise if groups of equal members alternate differently between files.

        A job distinguishes groups by their members only. Files that disagree on the order would
        look like a job whose collectives match, although the devices deadlock.
        """
        orders: dict[frozenset[int], tuple[int, ...]] = {}
        for number in used:
            if number in self._twins:
                members = self._twins[number]
                orders[members] = (*orders.get(members, ()), number)
        for members, order in orders.items():
            earlier, earlier_file = self._orders.setdefault(members, (order, file))
            common_length = min(len(earlier), len(order))
            if earlier[:common_length] != order[:common_length]:
                message = f"groups of the same members come in another order than in {earlier_file}"
                raise TraceError(message, location=file)


def trace_files(prefix: Path) -> list[Path]:
    """Return each device's trace; `TraceError` if one is missing."""
    pattern = re.compile(rf"{re.escape(prefix.name)}\.(0|[1-9][0-9]*)\.et")
    if not prefix.parent.is_dir():
        raise TraceError("there is no such directory", location=str(prefix.parent))
    matches = (pattern.fullmatch(entry.name) for entry in os.scandir(prefix.parent))
    file_of = {int(match[1]): prefix.parent / match[0] for match in matches if match}
    if not file_of:
        hint = "give the part of the names before .<device>.et"
        raise TraceError(f"there is no {prefix.name}.0.et", location=str(prefix.parent), hint=hint)
    missing = next((device for device in range(max(file_of)) if device not in file_of), None)
    if missing is not None:
        message = (
            f"{prefix.name}.{missing}.et is missing, but {prefix.name}.{max(file_of)}.et exists"
        )
        raise TraceError(message, location=str(prefix.parent))
    return [file_of[device] for device in range(len(file_of))]


def distinct_files(files: list[Path]) -> list[list[int]]:
    """Group devices by equal traces: by inode, then by hash."""
    by_inode: dict[tuple[int, int], list[int]] = {}
    by_hash: dict[bytes, list[int]] = {}
    for device, file in enumerate(files):
        status = file.stat()
        inode = (status.st_dev, status.st_ino)
        if inode not in by_inode:
            with file.open("rb") as stream:
                digest = file_digest(stream, blake2b).digest()
            by_inode[inode] = by_hash.setdefault(digest, [])
        by_inode[inode].append(device)
    return list(by_hash.values())


_PART_BYTES = 2**20


def parsed_nodes(
    file: Path, *, with_notes: bool = False, is_recorded: bool = False
) -> Iterator[ParsedNode]:
    """Yield a trace's nodes as they are read.

    Raises `TraceError`, naming file and node, for damaged content.
    """
    location = str(file)
    parse = schema().node.FromString
    with file.open("rb", buffering=_PART_BYTES) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        messages = split_delimited(stream, size_bytes=size_bytes, location=location)
        metadata = next(messages, None)
        if metadata is None:
            raise TraceError("the file holds no metadata", location=location)
        _decode(schema().metadata.FromString, metadata, f"{location}: metadata")
        for index, message in enumerate(messages, 1):
            yield parse_node(
                _decode(parse, message, f"{location}: message {index}"),
                location,
                with_notes=with_notes,
                is_recorded=is_recorded,
            )


def _decode(parse: Callable[[bytes], _Message], message: bytes, location: str) -> _Message:
    try:
        return parse(message)
    except schema().decode_error as error:
        raise TraceError("the message is damaged", location=location) from error


def _with_global_group(node: ParsedNode, global_groups: set[int]) -> ParsedNode:
    """Replace a group that holds every device by group 0."""
    if node.group not in global_groups or not isinstance(node.task, CollectiveTask):
        return node
    return node._replace(task=replace(node.task, group_table=None), group=EVERYONE)


def _check_claims(claims: _Claims, device: int, file: str, groups: _GroupTables) -> None:
    """Raise if a group or transfer contradicts the device."""
    for (group, own, peer), node in claims.items():
        if group != EVERYONE and group not in groups.members:
            raise TraceError(f"there is no group {group}", location=node_location(file, node))
        if group != EVERYONE and device not in groups.members[group]:
            message = f"group {group} doesn't hold device {device}"
            raise TraceError(message, location=node_location(file, node))
        if own not in (None, device):
            message = f"device {device} can't take the part of device {own}"
            raise TraceError(message, location=node_location(file, node))
        if peer >= groups.device_count:
            message = f"the peer {peer} is not one of the {groups.device_count} devices"
            raise TraceError(message, location=node_location(file, node))


def _trace(nodes: list[ParsedNode], devices: tuple[int, ...]) -> _Trace:
    transfers = (SendTask, ReceiveTask)
    return _Trace(
        tasks=tuple([node.task for node in nodes]),
        groups=tuple([node.group for node in nodes if node.group != EVERYONE]),
        peers=tuple([node.peer for node in nodes if isinstance(node.task, transfers)]),
        devices=devices,
    )


def _dependencies_first(nodes: list[ParsedNode], location: str) -> list[ParsedNode]:
    """Sort nodes with dependencies first, keeping a valid file order."""
    by_id = {node.task.id: node for node in nodes}
    _check_ids(nodes, by_id, location)
    seen: set[int] = set()
    for node in nodes:
        if not seen.issuperset(node.task.depends_on):
            break
        seen.add(node.task.id)
    else:
        return nodes
    sorter = TopologicalSorter({node.task.id: node.task.depends_on for node in nodes})
    try:
        return [by_id[node] for node in sorter.static_order()]
    except CycleError as error:
        raise TraceError("nodes depend on each other in a circle", location=location) from error


def _without_metadata(nodes: Iterable[ParsedNode]) -> Iterator[ParsedNode]:
    """Drop metadata nodes; their dependents inherit their dependencies.

    ``nodes`` have dependencies first.
    """
    inherited: dict[int, tuple[int, ...]] = {}
    for node in nodes:
        task = node.task
        depends_on = inherit(task.depends_on, inherited)
        if node.is_metadata:
            inherited[task.id] = depends_on
            continue
        if depends_on is task.depends_on:
            yield node
            continue
        if isinstance(task, CollectiveTask | SendTask | ReceiveTask):
            needed = inherit(needs(task), inherited)
            order_only = inherit(task.order_only, inherited)
            task = replace(task, order_only=tuple([n for n in order_only if n not in needed]))
        yield node._replace(task=replace(task, depends_on=depends_on))


def _check_ids(nodes: list[ParsedNode], by_id: Mapping[int, ParsedNode], location: str) -> None:
    if len(by_id) != len(nodes):
        repeated = next(node for node in nodes if by_id[node.task.id] is not node)
        raise TraceError("the id is used twice", location=node_location(location, repeated))
    for node in nodes:
        missing = [dep for dep in node.task.depends_on if dep not in by_id]
        if missing:
            message = f"the node depends on {missing[0]}, which is not in the file"
            raise TraceError(message, location=node_location(location, node))


def node_location(location: str, node: ParsedNode) -> str:
    """Return a node's location for messages."""
    return f"{location}: node {node.task.id} ({node.task.name})"


@frozen
class _Trace:
    """The tasks of some devices, without groups and peers.

    ``groups`` has the group id of each collective that isn't among all devices, in order; ``peers``
    has the other end of each send and receive.
    """

    tasks: tuple[Task, ...]
    groups: tuple[int, ...]
    peers: tuple[int, ...]
    devices: tuple[int, ...]


def _merged(
    name: str, traces: Iterable[_Trace], groups: Mapping[int, Group], device_count: int
) -> Job:
    """Merge traces into a job, one graph per task sequence."""
    by_tasks: dict[tuple[Task, ...], list[_Trace]] = {}
    for trace in traces:
        by_tasks.setdefault(trace.tasks, []).append(trace)
    parts = [part for alike in by_tasks.values() for part in _mergeable(alike, groups)]
    graph_of_device = [0] * device_count
    for index, part in enumerate(parts):
        for trace in part:
            for device in trace.devices:
                graph_of_device[device] = index
    graphs = [
        _graph(f"{name} {index}", part, groups, device_count) for index, part in enumerate(parts)
    ]
    return Job(graphs=tuple(graphs), graph_of_device=tuple(graph_of_device))


def _vectors(traces: Sequence[_Trace]) -> Iterator[tuple[int, ...]]:
    """Yield each collective's group ids in all traces."""
    return zip(*(trace.groups for trace in traces), strict=True)


def _mergeable(traces: list[_Trace], groups: Mapping[int, Group]) -> list[list[_Trace]]:
    """Split traces whose groups overlap.

    A group table has one group per device.
    """
    for vector in set(_vectors(traces)):
        members = [device for group in set(vector) for device in groups[group]]
        if len(set(members)) != len(members):
            return [[trace] for trace in traces]
    return [traces]


def _graph(
    name: str, traces: list[_Trace], groups: Mapping[int, Group], device_count: int
) -> TaskGraph:
    table_of: dict[tuple[int, ...], int] = {}
    for vector in _vectors(traces):
        table_of.setdefault(vector, len(table_of))
    tables = iter([table_of[vector] for vector in _vectors(traces)])
    pairs = _pairs(traces)
    group_tables: list[GroupTable] = [
        tuple([groups[group] for group in dict.fromkeys(vector)]) for vector in table_of
    ]
    return TaskGraph(
        name=name,
        device_count=device_count,
        tasks=tuple([_with_groups_and_pairs(task, tables, pairs) for task in traces[0].tasks]),
        group_tables=tuple(group_tables),
    )


def _pairs(traces: Sequence[_Trace]) -> Iterator[Pairs]:
    """Yield the (device, peer) pairs of each transfer.

    Equal results are shared.
    """
    shared: dict[tuple[int, ...], Pairs] = {}
    for vector in zip(*(trace.peers for trace in traces), strict=True):
        if vector not in shared:
            trace_peers = zip(traces, vector, strict=True)
            ends = [(device, peer) for trace, peer in trace_peers for device in trace.devices]
            shared[vector] = tuple(sorted(ends))
        yield shared[vector]


def _with_groups_and_pairs(task: Task, tables: Iterator[int], pairs: Iterator[Pairs]) -> Task:
    match task:
        case CollectiveTask(group_table=int()):
            return replace(task, group_table=next(tables))
        case SendTask():
            return replace(task, pairs=next(pairs))
        case ReceiveTask():
            ends = next(pairs)
            return replace(task, pairs=tuple([(source, target) for target, source in ends]))
        case _:
            return task


_HINT = "leave --stream out"


@frozen
class ScannedTrace:
    """The results of a first reading of a device's trace.

    ``reach`` is the largest distance from a node back to its last dependency, or to the beginning
    of the file for nodes without one: once a node has ended, only nodes up to ``reach`` behind it
    can start. ``groups`` are the groups of its collectives except that of all devices, ``kinds``
    are the kinds of these collectives.
    """

    file: Path
    reach: int
    groups: frozenset[int]
    kinds: frozenset[CollectiveKind]


def scan_trace(file: Path) -> ScannedTrace:
    """Read a trace once, in little memory.

    It takes 8 bytes per node. Raises `TraceError` for content that `read_traces` refuses in one
    file, for ids that don't ascend, and for tasks that cannot be streamed: all except computations
    of devices and collectives.
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
            position = bisect_left(ids, dependency)
            if position == len(ids) or ids[position] != dependency:
                _refuse(file, node, f"it depends on {dependency}, which does not stand before it")
            last = max(last, position)
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
    """Yield the nodes of a trace without metadata; dependents inherit."""
    return _without_metadata(parsed_nodes(file))


def _refuse(file: Path, node: ParsedNode, message: str) -> NoReturn:
    raise TraceError(message, location=node_location(str(file), node), hint=_HINT)
