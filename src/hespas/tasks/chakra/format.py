"""Write Chakra traces: protobuf messages, streams and ``comm_group.json``.

Source of the names and numbers: Chakra's ``et_def.proto``, schema 0.0.4, package
``ChakraProtoMsg``. A stream is one ``GlobalMetadata`` and then the ``Node`` messages, each
preceded by its length as a base-128 varint. The message classes are built from a table, so no
generated code is needed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from hespas.base.figures import MOST_DIGITS
from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_NS
from hespas.errors import TraceError
from hespas.program.collectives import CollectiveKind
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

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

SCHEMA_VERSION = "0.0.4"
COMM_GROUP_FILE = "comm_group.json"

Group = tuple[int, ...]


class NodeType(IntEnum):
    """The kind of work of a node."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


NUMBER_OF_KIND = {
    CollectiveKind.ALL_REDUCE: 0,
    CollectiveKind.REDUCE: 1,
    CollectiveKind.ALL_GATHER: 2,
    CollectiveKind.GATHER: 3,
    CollectiveKind.SCATTER: 4,
    CollectiveKind.BROADCAST: 5,
    CollectiveKind.ALL_TO_ALL: 6,
    CollectiveKind.REDUCE_SCATTER: 7,
    CollectiveKind.REDUCE_SCATTER_BLOCK: 8,
    CollectiveKind.BARRIER: 9,
}
"""The number of each collective in Chakra's ``CollectiveCommType``."""
KIND_OF_NUMBER = {number: kind for kind, number in NUMBER_OF_KIND.items()}


class Node(Protocol):
    """A ``Node`` message; protobuf knows its field types only at run time."""

    id: int
    name: str
    type: int
    ctrl_deps: Sequence[int]
    data_deps: MutableSequence[int]
    duration_micros: int
    attr: Any

    def SerializeToString(self) -> bytes:  # noqa: N802 (protobuf's name)
        """Return the message's bytes."""
        ...


class _NodeClass(Protocol):
    def __call__(self, **fields: object) -> Node: ...

    def FromString(self, data: bytes, /) -> Node: ...  # noqa: N802 (protobuf's name)


@frozen
class Schema:
    """The two message classes of a stream, and the exception that parsing may raise."""

    metadata: Any
    node: _NodeClass
    decode_error: type[Exception]


# The value kinds of an attribute: the number of the scalar; its list form has the next number.
_VALUES = {
    "double": 3, "float": 5, "int32": 7, "int64": 9, "uint32": 11, "uint64": 13, "sint32": 15,
    "sint64": 17, "fixed32": 19, "fixed64": 21, "sfixed32": 23, "sfixed64": 25, "bool": 27,
    "string": 29, "bytes": 31,
}  # fmt: skip
_REPEATED = "repeated "
_FIELDS = {
    "IOInfo": {"values": (1, "string"), "shapes": (2, "string"), "types": (3, "string")},
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "repeated AttributeProto")},
    "Node": {
        "id": (1, "uint64"),
        "name": (2, "string"),
        "type": (3, "NodeType"),
        "ctrl_deps": (4, "repeated uint64"),
        "data_deps": (5, "repeated uint64"),
        "start_time_micros": (6, "uint64"),
        "duration_micros": (7, "uint64"),
        "inputs": (8, "IOInfo"),
        "outputs": (9, "IOInfo"),
        "attr": (10, "repeated AttributeProto"),
    },
}
_PACKAGE = "ChakraProtoMsg"


@cache
def schema() -> Schema:
    """Return the message classes; the first call imports protobuf."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415
    from google.protobuf.message import DecodeError  # noqa: PLC0415 (heavy: only when needed)

    file = descriptor_pb2.FileDescriptorProto(
        name="hespas/chakra.proto", package=_PACKAGE, syntax="proto3"
    )
    _describe_node_type(file)
    _describe_attribute(file)
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _describe_field(message, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # pyright: ignore[reportDeprecated] (AddSerializedFile needs a second copy)
    classes = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("GlobalMetadata", "Node")
    }
    return Schema(
        metadata=classes["GlobalMetadata"],
        node=cast("_NodeClass", classes["Node"]),
        decode_error=DecodeError,
    )


def _describe_node_type(file: FileDescriptorProto) -> None:
    enum = file.enum_type.add(name="NodeType")
    for kind in NodeType:
        enum.value.add(name=f"{kind.name}_NODE", number=kind.value)


def _describe_attribute(file: FileDescriptorProto) -> None:
    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    _describe_field(attribute, "name", 1, "string")
    _describe_field(attribute, "doc_string", 2, "string")
    for kind, number in _VALUES.items():
        values = file.message_type.add(name=f"{kind.capitalize()}List")
        _describe_field(values, "values", 1, f"{_REPEATED}{kind}")
        _describe_field(attribute, f"{kind}_val", number, kind, in_oneof=True)
        _describe_field(attribute, f"{kind}_list", number + 1, values.name, in_oneof=True)


def _describe_field(
    message: DescriptorProto, name: str, number: int, kind: str, *, in_oneof: bool = False
) -> None:
    repeated = kind.startswith(_REPEATED)
    kind = kind.removeprefix(_REPEATED)
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    if in_oneof:
        field.oneof_index = 0
    if kind in _VALUES or kind == "uint64":
        field.type = field.Type.Value(f"TYPE_{kind.upper()}")
        return
    field.type_name = f".{_PACKAGE}.{kind}"
    field.type = field.TYPE_ENUM if kind == "NodeType" else field.TYPE_MESSAGE


def varint(number: int) -> bytes:
    """Return a non-negative integer in base 128, lowest digit first.

    >>> list(varint(300))
    [172, 2]
    """
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def delimited(messages: Iterable[bytes]) -> bytes:
    """Join messages, each after its length."""
    return b"".join([part for message in messages for part in (varint(len(message)), message)])


def split_delimited(stream: BinaryIO, *, size_bytes: int, location: str) -> Iterator[bytes]:
    """Yield the messages of a stream of ``size_bytes`` as they arrive.

    Raises `TraceError` if the stream ends too soon.
    """
    position = 0
    while first := stream.read(1):
        size, length = _read_varint(stream, first[0], position, location)
        message = b"" if position + length + size > size_bytes else stream.read(size)
        if len(message) < size:
            hint = "the file is truncated or not a Chakra trace"
            raise TraceError(
                f"the message at byte {position} is cut short", location=location, hint=hint
            )
        yield message
        position += length + size


def _read_varint(stream: BinaryIO, digit: int, position: int, location: str) -> tuple[int, int]:
    """Return a number that begins with ``digit``, and its length in bytes."""
    size = digit & 0x7F
    for length in range(1, 10):
        if digit < 0x80:
            return size, length
        next_byte = stream.read(1)
        if not next_byte:
            raise TraceError("the file ends inside a length", location=location)
        digit = next_byte[0]
        size |= (digit & 0x7F) << 7 * length
    if digit < 0x80:
        return size, 10
    raise TraceError(f"no message length at byte {position + 10}", location=location)


def write_groups(groups: Mapping[int, Group], file: Path) -> None:
    """Write ``comm_group.json``: the devices of each group number."""
    table = {str(number): group for number, group in groups.items()}
    file.write_text(json.dumps(table) + "\n", "utf-8")


def read_groups(file: Path, device_count: int) -> dict[int, Group]:
    """Return the groups of a ``comm_group.json`` by number.

    Raises `TraceError` if the file isn't JSON of the form ``{"<number>": [devices]}``, if a
    number isn't positive, or if a group is empty or names a device twice or one that is absent.
    """
    location = str(file)
    try:
        table = cast("object", json.loads(file.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise TraceError(f"the groups cannot be read: {error}", location=location) from error
    if not isinstance(table, dict):
        raise TraceError("the groups are not a JSON object", location=location)
    entries = cast("dict[str, object]", table).items()
    return dict(_read_group(name, members, device_count, location) for name, members in entries)


def _read_group(name: str, members: object, device_count: int, location: str) -> tuple[int, Group]:
    location = f"{location}: group {name[:60]!r}"
    is_number = name.isascii() and name.isdigit() and len(name) <= MOST_DIGITS
    if not is_number or int(name) == 0:
        raise TraceError("the name is not a positive number", location=location)
    if not isinstance(members, list) or not members:
        raise TraceError("the members are not a list of devices", location=location)
    group = cast("list[object]", members)
    for device in group:
        if type(device) is not int or not 0 <= device < device_count:
            message = f"{device!r} is not one of the {device_count} devices"
            raise TraceError(message, location=location)
    if len(set(group)) != len(group):
        raise TraceError("a device is named twice", location=location)
    return int(name), cast("Group", tuple(group))


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
        followers = [
            device for device, graph_index in enumerate(job.graph_of_device) if graph_index == index
        ]
        writer = _NodeWriter(graph, roles[index], group_ids)
        devices_of_key: dict[tuple[int | None, ...], list[int]] = {}
        for device in followers:
            devices_of_key.setdefault(roles[index].key(device), []).append(device)
        for key, devices in devices_of_key.items():
            _write_alike(writer.content(key, devices[0]), [files[device] for device in devices])
    groups = {number: group for group, number in group_ids.items()}
    group_file = directory / COMM_GROUP_FILE
    write_groups(groups or {1: tuple(range(job.device_count))}, group_file)
    return (*files, group_file)


def _group_ids(job: Job) -> dict[Group, int]:
    """Return each group's number, from 1 in order of first appearance."""
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


def _write_alike(content: bytes, files: list[Path]) -> None:
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
        self._bytes_of_node: dict[
            tuple[int, int, int, tuple[int, ...], tuple[int, ...]], bytes
        ] = {}
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
                recorded_work = {"num_ops": task.operations, "tensor_size": task.tensor_bytes}
                work = {name: value for name, value in recorded_work.items() if value is not None}
                if task.has_duration:
                    head = self._compute(task, depends_on)
                else:
                    head = self._head_of(task, NodeType.COMP, depends_on)
                return head + self._attributes(work)
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
    """Round durations to microseconds; partial sums stay within half of one."""
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
