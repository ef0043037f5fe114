"""Read programs for several TPU slices.

libtpu compiles them for one slice. Such a program has collectives inside a slice; data goes between
slices as a ``send`` and a ``recv`` of a buffer by way of the hosts (Megascale). Their attributes
say which collective they form: an all-reduce, for instance, among the devices at the same position
of each slice. They are read as one collective, from the send to the ``recv-done``, and the
collectives of a slice become those of all slices: `with_all_slices` rewrites their groups. Slices
are numbered from 1, devices of a slice from 0; device d of slice s is device (s - 1) n + d of all,
with n devices in a slice.

Source: attributes that libtpu 0.0.42 writes.
"""

from __future__ import annotations

import re
from itertools import product
from math import prod
from typing import Any

from hespas.errors import ProgramError, UnsupportedError
from hespas.frontend.hlo.asynchronous import start_block
from hespas.frontend.hlo.attributes import (
    COLLECTIVE_PREFIXES,
    channel_of,
    instructions_of,
    replica_groups,
)
from hespas.frontend.hlo.instructions import alias, plain
from hespas.frontend.hlo.reader import Handler, ModuleReader, Scope
from hespas.frontend.hlo.types import fresh_tree, leaves
from hespas.program.attrs import NO_ATTRS, CollectiveAttrs
from hespas.program.groups import FoldedGroups, GroupMode, ListedGroups
from hespas.program.program import Block, Op, Value, returning
from hespas.program.types import AsyncType, TensorType
from hespas.xla.compile.messages import SLICES_ATTRIBUTE

_HANDLER = "_xla_host_transfer_handler_name"
_RENDEZVOUS = "_xla_host_transfer_rendezvous"
_TARGET = "_xla_megascale_target"
_KIND = "_xla_megascale_transfer_type"
_REDUCTION = "_xla_megascale_reduce_operation"
_MEGASCALE = "xla_megascale_runtime"
_TARGET_FORM = re.compile(r"\{([\d,]+)\}x\{([\d,:]+)\}")
_REDUCERS = {"SUM": "add", "MAX": "maximum", "MIN": "minimum", "PROD": "multiply"}
_GROUPS = (
    "replica_groups",
    "collective_device_list",
    "iota_collective_device_list",
    "mesh_axes_replica_group_list",
)


def slices_of(message: Any) -> int:
    """Return the number of slices a module was compiled for."""
    return int(message.frontend_attributes.map.get(SLICES_ATTRIBUTE, "1"))


def counts_of_slices(
    replicas: int | None, partitions: int | None, *, slices: int
) -> tuple[int, int]:
    """Return the replicas and partitions of all slices.

    >>> counts_of_slices(1, 256, slices=2), counts_of_slices(8, None, slices=2)
    ((1, 512), (16, 1))
    """
    replica_count, partition_count = replicas or 1, partitions or 1
    if replica_count > 1 and partition_count > 1:
        raise UnsupportedError(
            f"{replica_count} replicas of {partition_count} partitions in a slice"
        )
    return (replica_count * slices, 1) if replica_count > 1 else (1, partition_count * slices)


def with_all_slices(message: Any, *, slices: int, devices: int) -> Any:
    """Extend a module's collectives to every slice of ``devices`` devices."""
    extended = type(message)()
    extended.CopyFrom(message)
    for instruction in instructions_of(extended):
        if instruction.opcode.startswith(COLLECTIVE_PREFIXES):
            _repeat(instruction, slices, devices)
    return extended


def _repeat(instruction: Any, slices: int, devices: int) -> None:
    pairs = [(pair.source, pair.target) for pair in instruction.source_target_pairs]
    del instruction.source_target_pairs[:]
    for number, (source, target) in product(range(slices), pairs):
        first_device = number * devices
        instruction.source_target_pairs.add(
            source=first_device + source, target=first_device + target
        )
    if pairs or instruction.opcode.endswith("-done"):
        return
    groups = replica_groups(instruction)
    for name in _GROUPS:
        instruction.ClearField(name)
    match groups:
        case FoldedGroups(dimensions=dimensions, permutation=permutation, group_size=size):
            _fold(
                instruction,
                dimensions=(slices, *dimensions),
                permutation=(0, *(axis + 1 for axis in permutation)),
                size=size,
            )
        case ListedGroups(groups=()):
            _fold(instruction, dimensions=(slices, devices), permutation=(0, 1), size=devices)
        case ListedGroups(groups=listed):
            for number, group in product(range(slices), listed):
                ids = [number * devices + device for device in group]
                instruction.collective_device_list.replica_groups.add(replica_ids=ids)


def _fold(
    instruction: Any, *, dimensions: tuple[int, ...], permutation: tuple[int, ...], size: int
) -> None:
    folded = instruction.iota_collective_device_list
    folded.num_replica_groups = prod(dimensions) // size
    folded.num_devices_per_group = size
    folded.iota_reshape_dims.extend(dimensions)
    folded.iota_transpose_perm.extend(permutation)


def _between_slices(handler: Handler) -> Handler:
    """Return a handler that applies ``handler`` to transfers between slices."""

    def handle(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
        is_between = instruction.frontend_attributes.map.get(_HANDLER, "") == _MEGASCALE
        (handler if is_between else plain)(reader, instruction, scope)

    return handle


def _send(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Start the collective that a send and a receive form."""
    attributes = instruction.frontend_attributes.map
    kind, reduction = attributes[_KIND], attributes[_REDUCTION]
    if kind != "ALL_REDUCE" or reduction not in _REDUCERS:
        raise UnsupportedError(
            f"a transfer between slices is {kind} {reduction}".rstrip(),
            hint="only sums, products, largest and smallest of all slices have a model",
        )
    buffer, token = instruction.operand_ids
    value, kind_sent = _buffer(scope, buffer)
    copy = Value(type=kind_sent)
    attrs = CollectiveAttrs(
        groups=_groups_across_slices(attributes[_TARGET], reader.slices),
        mode=GroupMode.FLATTENED_IDS,
        channel=channel_of(instruction),
    )
    inner = Scope()
    op = reader.emit(
        instruction,
        inner,
        name=("stablehlo", "all_reduce"),
        attrs=attrs,
        attributes=(("use_global_device_ids", "unit"),),
        regions=(_reducer(_REDUCERS[reduction], kind_sent),),
        operands=(copy,),
        results=fresh_tree(kind_sent),
    )
    started = returning((copy,), inner.operations, op.results, "stablehlo")
    start_block(reader, instruction, scope, started, (value,))
    (scope.sent[attributes[_RENDEZVOUS]],) = leaves(scope.tree(instruction.id))
    scope.trees[instruction.id] = scope.tree(token)


def _buffer(scope: Scope, number: int) -> tuple[Value, TensorType]:
    value = scope.tree(number)
    if not isinstance(value, Value) or not isinstance(value.type, TensorType):
        raise UnsupportedError("a transfer between slices sends more than one array")
    return value, value.type


def _reducer(kind: str, operand: TensorType) -> Block:
    scalar = TensorType(shape=(), element=operand.element)
    *operands, result = (Value(type=scalar) for _ in range(3))
    arguments = tuple(operands)
    op = Op(dialect="stablehlo", kind=kind, operands=arguments, results=(result,), attrs=NO_ATTRS)
    return returning(arguments, [op], (result,), "stablehlo")


def _groups_across_slices(target: str, slices: int) -> FoldedGroups:
    """Return groups of the devices at each position.

    >>> _groups_across_slices("{1,2,3}x{0:1}", 3).listed()
    ((0, 2, 4), (1, 3, 5))
    """
    match = _TARGET_FORM.fullmatch(target)
    devices = None if match is None else _numbers(match[2])
    if match is None or devices is None or devices != list(range(len(devices))):
        raise UnsupportedError(f"a transfer between slices has the target {target[:80]}")
    if _numbers(match[1]) != list(range(1, slices + 1)):
        raise UnsupportedError(
            f"a transfer is not among all {slices} slices, but has the target {target[:80]}"
        )
    return FoldedGroups(dimensions=(slices, len(devices)), permutation=(1, 0), group_size=slices)


def _numbers(text: str) -> list[int] | None:
    """Return the numbers of ``0:3`` or ``0,1,2,3``."""
    numbers: list[int] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        if not first or (colon and not last):
            return None
        numbers += range(int(first), int(last if colon else first) + 1)
    return numbers


def _receive(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Record a receive's send; its data arrives at ``recv-done``."""
    scope.received[instruction.id] = instruction.frontend_attributes.map[_RENDEZVOUS]
    alias(reader, instruction, scope)


def _receive_done(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Wait for the collective."""
    (start,) = instruction.operand_ids
    bundle = scope.sent.get(scope.received.get(start, ""))
    if bundle is None or not isinstance(bundle.type, AsyncType):
        raise ProgramError("what it waits for was not sent before in the same computation")
    token = scope.tree(start)
    op = reader.emit(
        instruction,
        scope,
        name=("mhlo", "async_done"),
        operands=(bundle,),
        results=fresh_tree(reader.types.read(instruction.shape.tuple_shapes[0])),
    )
    if tuple([value.type for value in op.results]) != bundle.type.members:
        raise ProgramError("it receives another type than was sent")
    scope.trees[instruction.id] = (op.results[0], token)


HANDLERS: dict[str, Handler] = {
    "recv": _between_slices(_receive),
    "recv-done": _between_slices(_receive_done),
    "send": _between_slices(_send),
    # No operation waits for the sent buffer: its token is passed on.
    "send-done": _between_slices(alias),
}
"""Readers by opcode, which replace those of `hespas.frontend.hlo.instructions`."""
