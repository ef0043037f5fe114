"""Parse a Chakra node into a task, group and peer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, NoReturn, cast

from hespas.base.figures import MOST_DIGITS
from hespas.base.units import PS_PER_NS
from hespas.errors import TraceError
from hespas.program.collectives import CollectiveKind
from hespas.tasks.chakra.format import KIND_OF_NUMBER, Node, NodeType
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
)

EVERYONE = 0
"""The group id of all devices."""
PENDING_TABLE = -1
"""The group table of a collective before the tables are built."""

_NS_PER_MICROSECOND = 1000
_SHORTEST_REPLAY_NS = 1
# Attributes without effect on when a node runs: its work (unless the system's roofline is enabled),
# and a priority, which has no effect if one communication runs at a time.
_IDLE_ATTRIBUTES = frozenset({"num_ops", "tensor_size", "comm_priority"})
# The origin of a node in a PyTorch trace, written by Chakra's converter.
_PYTORCH_ATTRIBUTES = frozenset(
    {"rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema", "stream"}
)
_COMMON = frozenset({"is_cpu_op"}) | _IDLE_ATTRIBUTES | _PYTORCH_ATTRIBUTES
_COLLECTIVE = _COMMON | {"comm_type", "comm_size", "pg_name", "involved_dim", "order_only"}
_TRANSFER = _COMMON | {"comm_size", "comm_src", "comm_dst", "comm_tag", "order_only"}
# Attributes that tools for custom collectives add.
_NOTES = frozenset(
    {
        "comm_type", "msg_chunk_cnt", "msg_chunk_idx", "total_chunk_cnt", "local_time_step",
        "chunk_offset", "hasdep", "deps", "depid", "tb_id", "is_rrc",
        "step_type", "srcbuf", "srcoff", "dstbuf", "dstoff", "inplace",
    }
)  # fmt: skip
_ALLOWED: Mapping[int, frozenset[str]] = {
    NodeType.INVALID: _COMMON,
    NodeType.MEM_LOAD: _COMMON,
    NodeType.MEM_STORE: _COMMON,
    NodeType.COMP: frozenset({"duration_ns", "arithmetic_share"}) | _COMMON,
    NodeType.COMM_COLL: _COLLECTIVE,
    NodeType.COMM_SEND: _TRANSFER,
    NodeType.COMM_RECV: _TRANSFER,
}


class ParsedNode(NamedTuple):
    """A task that still lacks its group table or pairs.

    ``group`` is a collective's group id; ``own`` and ``peer`` are the two ends of a transfer
    (``own`` is None if the node doesn't name its own device). ``notes`` are the attributes that
    tools for custom collectives add, ``unknown`` the names of attributes unknown to hespas. An
    ``is_metadata`` node has no work and takes no time.
    """

    task: Task
    group: int = EVERYONE
    own: int | None = None
    peer: int = -1
    notes: Mapping[str, object] = MappingProxyType({})
    unknown: tuple[str, ...] = ()
    is_metadata: bool = False


@dataclass(slots=True)
class _Reader:
    """Reads a node's attributes; errors name file and node."""

    node: Node
    values: Mapping[str, object]
    location: str

    def fail(self, message: str) -> NoReturn:
        raise TraceError(
            message, location=f"{self.location}: node {self.node.id} ({self.node.name})"
        )

    def integer(self, name: str) -> int:
        value = self.values.get(name)
        if value is None:
            self.fail(f"{name} is missing")
        if type(value) is not int:
            self.fail(f"{name} is {value!r}, not an integer")
        return value

    def amount(self, name: str) -> int:
        value = self.integer(name)
        if value < 0:
            self.fail(f"{name} is negative: {value}")
        return value

    def optional_amount(self, name: str) -> int | None:
        return self.amount(name) if name in self.values else None

    def optional_ps(self, name: str) -> int | None:
        """Return a duration, which the attribute has in ns."""
        time_ns = self.values.get(name)
        if time_ns is None:
            return None
        if not isinstance(time_ns, int | float) or not 0 <= time_ns < float("inf"):
            self.fail(f"{name} is {time_ns!r}, not a duration")
        return round(time_ns * PS_PER_NS)


def parse_node(
    node: Node, location: str, *, with_notes: bool = False, is_recorded: bool = False
) -> ParsedNode:
    """Return a node's task; `TraceError` for missing or invalid attributes.

    ``location`` names the file. ``with_notes`` accepts the attributes of tools for custom
    collectives. With ``is_recorded`` all nodes take their recorded durations; sizes, groups and
    peers may then be absent.
    """
    values: dict[str, object] = {}
    for attribute in node.attr:
        field = attribute.WhichOneof("value")
        values[attribute.name] = None if field is None else getattr(attribute, field)
    reader = _Reader(node, values, location)
    if node.type == NodeType.METADATA:
        return _empty(reader)._replace(is_metadata=True)
    allowed = _ALLOWED.get(node.type)
    if allowed is None:
        name = NodeType(node.type).name if node.type in set(NodeType) else node.type
        reader.fail(f"a node of type {name} has no model here")
    if with_notes:
        allowed |= _NOTES
    unknown_names = () if allowed.issuperset(values) else tuple(sorted(values.keys() - allowed))
    if is_recorded and node.type != NodeType.COMP:
        return _recorded(reader)._replace(unknown=unknown_names)
    if values.get("is_cpu_op", False) and node.type != NodeType.COMP:
        reader.fail("communication of the CPU has no model here")
    parsed = _PARSERS[node.type](reader)
    if unknown_names:
        parsed = parsed._replace(unknown=unknown_names)
    if not with_notes:
        return parsed
    notes = {name: value for name, value in values.items() if name in _NOTES}
    return parsed._replace(notes=MappingProxyType(notes))


def _depends_on(node: Node) -> tuple[int, ...]:
    if not node.ctrl_deps:
        return tuple(node.data_deps)
    return tuple(dict.fromkeys((*node.data_deps, *node.ctrl_deps)))


def _order_only(reader: _Reader) -> tuple[int, ...]:
    """Return the dependencies that only order communication (hespas' attribute)."""
    noted = reader.values.get("order_only", "")
    numbers = noted.split() if isinstance(noted, str) else ["?"]
    if not all(number.isdecimal() for number in numbers):
        reader.fail(f"order_only is {noted!r}, not a list of nodes")
    return tuple([int(number) for number in numbers])


def _compute(reader: _Reader) -> ParsedNode:
    node = reader.node
    task = ComputeTask(
        id=node.id,
        name=node.name,
        depends_on=_depends_on(node),
        duration_ps=_duration_ps(reader),
        is_on_host=bool(reader.values.get("is_cpu_op", False)),
        operations=reader.optional_amount("num_ops"),
        tensor_bytes=reader.optional_amount("tensor_size"),
        arithmetic_share=_arithmetic_share(reader),
    )
    has_work = bool(task.operations or task.tensor_bytes)
    has_duration = "duration_ns" in reader.values or node.duration_micros > 0
    # ASTRA-sim never prices the CPU's work; a short CPU task has 0 microseconds.
    if has_work and not has_duration and not task.is_on_host:
        task = replace(task, has_duration=False)
    return ParsedNode(task)


def _arithmetic_share(reader: _Reader) -> float:
    """Return the share of a duration that arithmetic bounds (hespas' attribute)."""
    share = reader.values.get("arithmetic_share", 1.0)
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        reader.fail(f"arithmetic_share is {share!r}, not a share of 0 to 1")
    return share


def _memory(reader: _Reader) -> ParsedNode:
    node = reader.node
    task = MemoryTask(
        id=node.id,
        name=node.name,
        depends_on=_depends_on(node),
        size_bytes=reader.amount("tensor_size"),
        is_store=node.type == NodeType.MEM_STORE,
        duration_ps=reader.optional_ps("host_link_ns"),
    )
    return ParsedNode(task)


def _empty(reader: _Reader) -> ParsedNode:
    node = reader.node
    return ParsedNode(EmptyTask(id=node.id, name=node.name, depends_on=_depends_on(node)))


def _duration_ps(reader: _Reader) -> int:
    exact_ps = reader.optional_ps("duration_ns")
    if exact_ps is not None:
        return exact_ps
    rounded_ns = reader.node.duration_micros * _NS_PER_MICROSECOND
    return (rounded_ns or _SHORTEST_REPLAY_NS) * PS_PER_NS


def _collective(reader: _Reader) -> ParsedNode:
    node = reader.node
    number = reader.integer("comm_type")
    kind = KIND_OF_NUMBER.get(number)
    if kind is None:
        reader.fail(f"comm_type {number} is not a collective")
    group = _group(reader)
    task = CollectiveTask(
        id=node.id,
        name=node.name,
        depends_on=_depends_on(node),
        kind=kind,
        size_bytes=reader.amount("comm_size"),
        group_table=None if group == EVERYONE else PENDING_TABLE,
        involved_dimensions=_involved(reader) if group == EVERYONE else None,
        recorded_ps=_duration_ps(reader) if kind is CollectiveKind.BROADCAST else None,
        order_only=_order_only(reader),
    )
    return ParsedNode(task, group=group)


def _group(reader: _Reader) -> int:
    name = reader.values.get("pg_name", "")
    if name == "":
        return EVERYONE
    is_number = isinstance(name, str) and name.isascii() and name.isdigit()
    if not isinstance(name, str) or not is_number or len(name) > MOST_DIGITS:
        reader.fail(f"pg_name is {str(name)[:60]!r}, not a group number")
    return int(name)


def _recorded(reader: _Reader) -> ParsedNode:
    """Parse a node as a task with its recorded duration."""
    node, values = reader.node, reader.values
    if values.get("is_cpu_op", False):
        return _compute(reader)
    number = values.get("comm_type") if node.type == NodeType.COMM_COLL else None
    kind = KIND_OF_NUMBER.get(number) if isinstance(number, int) else None
    size_bytes = values.get("comm_size", values.get("tensor_size", 0))
    task = CollectiveTask(
        id=node.id,
        name=node.name,
        depends_on=_depends_on(node),
        kind=kind or CollectiveKind.BROADCAST,
        size_bytes=size_bytes if isinstance(size_bytes, int) and size_bytes > 0 else 0,
        group_table=None,
        recorded_ps=_duration_ps(reader),
        takes_slot=node.type != NodeType.COMM_RECV,
    )
    return ParsedNode(task)


def _involved(reader: _Reader) -> tuple[bool, ...] | None:
    dimensions = reader.values.get("involved_dim")
    if dimensions is None:
        return None
    values = tuple(cast("Iterable[object]", getattr(dimensions, "values", ())))
    if not values or not all(isinstance(value, bool) for value in values):
        reader.fail("involved_dim is not a list of booleans")
    return cast("tuple[bool, ...]", values)


def _transfer(reader: _Reader) -> ParsedNode:
    node = reader.node
    sends = node.type == NodeType.COMM_SEND
    own_name, peer_name = ("comm_src", "comm_dst") if sends else ("comm_dst", "comm_src")
    own = reader.optional_amount(own_name)
    make = SendTask if sends else ReceiveTask
    task = make(
        id=node.id,
        name=node.name,
        depends_on=_depends_on(node),
        pairs=(),
        size_bytes=reader.amount("comm_size"),
        tag=reader.amount("comm_tag"),
        order_only=_order_only(reader),
    )
    return ParsedNode(task, own=own, peer=reader.amount(peer_name))


_PARSERS: Mapping[int, Callable[[_Reader], ParsedNode]] = {
    NodeType.INVALID: _empty,
    NodeType.MEM_LOAD: _memory,
    NodeType.MEM_STORE: _memory,
    NodeType.COMP: _compute,
    NodeType.COMM_COLL: _collective,
    NodeType.COMM_SEND: _transfer,
    NodeType.COMM_RECV: _transfer,
}
