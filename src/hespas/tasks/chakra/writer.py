"""Write the tasks of devices as Chakra traces."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from hespas.base.units import PS_PER_NS
from hespas.errors import TraceError
from hespas.tasks.chakra.format import (
    COMM_GROUP_FILE,
    NUMBER_OF_KIND,
    SCHEMA_VERSION,
    Group,
    NodeType,
    delimited,
    schema,
    varint,
    write_groups,
)
from hespas.tasks.graph import (
    ALWAYS,
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    Job,
    MemoryTask,
    ReceiveTask,
    Roles,
    SendTask,
    Task,
    TaskGraph,
    as_job,
    find_roles,
    own_tasks,
)

_PS_PER_MICROSECOND = 1_000_000


def write_traces(
    work: Job | TaskGraph, directory: Path, *, prefix: str = "dev"
) -> tuple[Path, ...]:
    """Write ``<prefix>.<device>.et`` for every device, and ``comm_group.json``.

    Returns the files in device order, the group file last. Equal jobs give equal bytes. Devices
    with equal nodes share a file by hard links, if the file system supports them.
    ``duration_micros`` is a whole number whose rounding error is carried forward: the sum over a
    device is right within 1 us; ``duration_ns`` holds the exact duration. Trace files of the same
    prefix left by an earlier, larger job are removed. Raises `TraceError` if a graph contradicts
    itself or its devices.
    """
    job = as_job(work)
    roles = [find_roles(graph) for graph in job.graphs]
    group_ids = _group_ids(job)
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / f"{prefix}.{device}.et" for device in range(job.device_count)]
    _remove_stale(directory, prefix, job.device_count)
    for index, graph in enumerate(job.graphs):
        writer = _NodeWriter(graph, roles[index], group_ids)
        devices_of_key: dict[tuple[int | None, ...], list[int]] = {}
        for device, graph_index in enumerate(job.graph_of_device):
            if graph_index == index:
                devices_of_key.setdefault(roles[index].key(device), []).append(device)
        for key, devices in devices_of_key.items():
            _write_linked(writer.content(key, devices[0]), [files[device] for device in devices])
    groups = {number: group for group, number in group_ids.items()}
    group_file = directory / COMM_GROUP_FILE
    write_groups(groups or {1: tuple(range(job.device_count))}, group_file)
    return (*files, group_file)


def _group_ids(job: Job) -> dict[Group, int]:
    """Return each group's number, from 1 by first appearance."""
    ids: dict[Group, int] = {}
    everyone = tuple(range(job.device_count))
    for graph in job.graphs:
        if graph.device_count != job.device_count:
            message = f"the graph is for {graph.device_count} devices, the job for"
            raise TraceError(f"{message} {job.device_count}", location=graph.name)
        tables = [task.group_table for task in graph.tasks if isinstance(task, CollectiveTask)]
        for table in dict.fromkeys(tables):
            for group in (everyone,) if table is None else graph.group_tables[table]:
                ids.setdefault(group, len(ids) + 1)
    return ids


def _remove_stale(directory: Path, prefix: str, device_count: int) -> None:
    name = re.compile(rf"{re.escape(prefix)}\.([0-9]+)\.et")
    for entry in os.scandir(directory):
        match = name.fullmatch(entry.name)
        if match and int(match[1]) >= device_count:
            Path(entry.path).unlink()


def _write_linked(content: bytes, files: list[Path]) -> None:
    first, *other_files = files
    # Write a new file each time: the old one may have links under other names.
    first.unlink(missing_ok=True)
    first.write_bytes(content)
    for file in other_files:
        file.unlink(missing_ok=True)
        try:
            file.hardlink_to(first)
        except OSError:  # no hard links here, or too many for one file
            shutil.copyfile(first, file)
            first = file


class _NodeWriter:
    """Serialises tasks as nodes; equal nodes of several devices once."""

    def __init__(self, graph: TaskGraph, roles: Roles, group_ids: Mapping[Group, int]) -> None:
        self._graph = graph
        self._roles = roles
        self._group_ids = group_ids
        self._everyone = tuple(range(graph.device_count))
        self._make_node = schema().node
        self._not_cpu = self._attributes({"is_cpu_op": False})
        self._compute_node = self._make_node(type=NodeType.COMP)
        self._compute_node.attr.add(name="is_cpu_op", bool_val=False)
        self._duration_ns = self._compute_node.attr.add(name="duration_ns")
        self._micros = _whole_micros(graph.tasks)
        self._bytes_of_node: dict[object, bytes] = {}
        metadata = schema().metadata(version=SCHEMA_VERSION)
        self._head = delimited([metadata.SerializeToString()])

    def content(self, key: tuple[int | None, ...], device: int) -> bytes:
        """Return the file content of all devices with this key."""
        bytes_of_node = self._bytes_of_node
        parts = [self._head]
        needed = own_tasks(self._graph, self._roles, key, keeps_order=False)
        ordered = own_tasks(self._graph, self._roles, key)
        for (task, partner, depends_on), (*_, needs) in zip(ordered, needed, strict=True):
            # A send names both ends, a collective only the group.
            end = device if isinstance(task, SendTask | ReceiveTask) else ALWAYS
            node_key = (task.id, partner, end, depends_on, needs)
            if node_key not in bytes_of_node:
                body = self._node(task, partner, device, depends_on)
                body += self._order_only(depends_on, needs)
                bytes_of_node[node_key] = varint(len(body)) + body
            parts.append(bytes_of_node[node_key])
        return b"".join(parts)

    def _node(self, task: Task, partner: int, device: int, depends_on: tuple[int, ...]) -> bytes:
        match task:
            case ComputeTask():
                figures = {"num_ops": task.operations, "tensor_size": task.tensor_bytes}
                work: dict[str, float | str] = {
                    name: value for name, value in figures.items() if value is not None
                }
                if task.arithmetic_share != 1.0:
                    work["arithmetic_share"] = task.arithmetic_share
                if task.has_duration:
                    return self._compute(task, depends_on) + self._attributes(work)
                return self._head_of(task, NodeType.COMP, depends_on) + self._attributes(work)
            case MemoryTask():
                values: dict[str, float | str] = {"tensor_size": task.size_bytes}
                if task.duration_ps is not None:
                    values["host_link_ns"] = task.duration_ps / PS_PER_NS
                node_type = NodeType.MEM_STORE if task.is_store else NodeType.MEM_LOAD
                return self._head_of(task, node_type, depends_on) + self._attributes(values)
            case EmptyTask():
                return self._head_of(task, NodeType.INVALID, depends_on)
            case CollectiveTask():
                self._check_size(task)
                head = self._head_of(task, NodeType.COMM_COLL, depends_on)
                return head + self._collective(task, partner)
            case SendTask() | ReceiveTask():
                self._check_size(task)
                is_send = isinstance(task, SendTask)
                source, target = (device, partner) if is_send else (partner, device)
                ends = {"comm_src": source, "comm_dst": target, "comm_tag": task.tag}
                node_type = NodeType.COMM_SEND if is_send else NodeType.COMM_RECV
                head = self._head_of(task, node_type, depends_on)
                return head + self._attributes({"comm_size": task.size_bytes, **ends})

    def _order_only(self, depends_on: tuple[int, ...], needs: tuple[int, ...]) -> bytes:
        """Return the attribute of dependencies that only order communication."""
        if len(needs) == len(depends_on):
            return b""
        order_only = sorted({*depends_on}.difference(needs))
        return self._attributes({"order_only": " ".join(map(str, order_only))})

    def _compute(self, task: ComputeTask, depends_on: tuple[int, ...]) -> bytes:
        # One message is reused: a new one each time would double the cost.
        node = self._compute_node
        node.id = task.id
        node.name = task.name
        node.duration_micros = self._micros[task.id]
        node.data_deps[:] = depends_on
        self._duration_ns.double_val = task.duration_ps / PS_PER_NS
        node.attr[0].bool_val = task.is_on_host
        return node.SerializeToString()

    def _head_of(self, task: Task, node_type: NodeType, depends_on: tuple[int, ...]) -> bytes:
        node = self._make_node(id=task.id, name=task.name, type=node_type, data_deps=depends_on)
        # Attributes are the last field, and protobuf messages merge by joining their bytes.
        return node.SerializeToString() + self._not_cpu

    def _collective(self, task: CollectiveTask, partner: int) -> bytes:
        number = NUMBER_OF_KIND[task.kind]
        common = self._attributes({"comm_type": number, "comm_size": task.size_bytes})
        if task.recorded_ps is not None:
            micros = task.recorded_ps // _PS_PER_MICROSECOND
            common += self._make_node(duration_micros=micros).SerializeToString()
        if task.involved_dimensions is not None:
            involved = {"name": "involved_dim", "bool_list": {"values": task.involved_dimensions}}
            return common + self._make_node(attr=[involved]).SerializeToString()
        table = task.group_table
        group = self._everyone if table is None else self._graph.group_tables[table][partner]
        return common + self._attributes({"pg_name": str(self._group_ids[group])})

    def _check_size(self, task: CollectiveTask | SendTask | ReceiveTask) -> None:
        if task.size_bytes < 0:
            location = f"{self._graph.name}: task {task.id} ({task.name})"
            raise TraceError(f"the size is {task.size_bytes} bytes", location=location)

    def _attributes(self, values: Mapping[str, float | str | bool]) -> bytes:
        attributes = [{"name": name, _field(value): value} for name, value in values.items()]
        return self._make_node(attr=attributes).SerializeToString()


def _field(value: float | str | bool) -> str:
    match value:
        case bool():
            return "bool_val"
        case int():
            return "int64_val"
        case float():
            return "double_val"
        case str():
            return "string_val"


def _whole_micros(tasks: Iterable[Task]) -> dict[int, int]:
    """Round durations to microseconds, carrying the error forward.

    Partial sums stay within half a microsecond.
    """
    micros: dict[int, int] = {}
    total_ps = written = 0
    for task in tasks:
        if not isinstance(task, ComputeTask):
            continue
        if task.duration_ps < 0:
            raise TraceError(f"task {task.id} ({task.name}) has a negative duration")
        total_ps += task.duration_ps
        rounded = (2 * total_ps + _PS_PER_MICROSECOND) // (2 * _PS_PER_MICROSECOND)
        micros[task.id] = rounded - written
        written = rounded
    return micros
