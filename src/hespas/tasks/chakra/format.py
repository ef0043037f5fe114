"""The form of Chakra traces: protobuf messages, streams and ``comm_group.json``.

Source of the names and numbers: Chakra's ``et_def.proto``, schema 0.0.4, package
``ChakraProtoMsg``. A stream is one ``GlobalMetadata`` and then the ``Node`` messages, each
preceded by its length as a base-128 varint. The message classes are built from a table, so no
generated code is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from hespas.base.figures import MOST_DIGITS
from hespas.base.frozen import frozen
from hespas.errors import TraceError
from hespas.program.collectives import CollectiveKind

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
    """The fields of a ``Node`` message, for type checkers."""

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
    """The message classes of a stream, and their parsing error."""

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
    node_types = file.enum_type.add(name="NodeType")
    for kind in NodeType:
        node_types.value.add(name=f"{kind.name}_NODE", number=kind.value)
    _describe_attribute(file)
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, form) in fields.items():
            _describe_field(message, field, number, form)
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
    """Yield the messages of a stream of ``size_bytes``.

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
    """Return a number that begins with ``digit``, and its length."""
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
