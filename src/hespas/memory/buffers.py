"""Buffers of values, and the operations that work in place.

In-place operations follow the rules of XLA's dataflow analysis. An operation that changes a part of
its operand works in place, and so do a fusion that ends in one, loops, all-reduces that run
asynchronously, and calls that the compiler marks so. An operation that computes each element from
the same element of an operand may work in place as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from hespas.base.frozen import frozen
from hespas.program.attrs import CustomCallAttrs, DimensionAttrs, FusionAttrs, WhileAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Op, Value, values_read
from hespas.program.types import DEVICE_MEMORY, TensorType, TupleType, tensors
from hespas.program.uses import Uses

THROUGHOUT = -1
"""The moment before the first operation."""


class Role(StrEnum):
    """The purpose of a buffer.

    Arguments and outputs are allocated throughout: the caller owns them. A temporary is live from
    the operation that writes it to the last one that reads it.
    """

    ARGUMENT = "argument"
    OUTPUT = "output"
    TEMPORARY = "temporary"


@frozen
class HeldBuffer:
    """A buffer that is live at the peak: size, type and writer.

    ``role`` is a `Role`, or a framework's own term: then ``type`` is the buffer's name, if it has
    one, and ``location`` the module that holds it.
    """

    size_bytes: int
    type: str
    role: str
    location: str


@dataclass(slots=True, kw_only=True, eq=False)
class Buffer:
    """Memory for one tensor, while its liveness is determined.

    Moments are positions in the block that writes it. ``written_at`` is the operation that writes
    it, ``read_at`` the last one that reads it, and ``held_until`` the last moment at which it must
    be allocated: an asynchronous operation holds its buffers until its end. ``merged_into`` is the
    buffer in whose memory this one lies, if an operation works in place.
    """

    size_bytes: int
    type: TensorType
    role: Role
    location: str
    written_at: int
    read_at: int
    held_until: int
    merged_into: Buffer | None = None

    @property
    def actual(self) -> Buffer:
        """The buffer whose memory it uses, at the end of merges."""
        buffer = self
        while buffer.merged_into is not None:
            buffer = buffer.merged_into
        return buffer

    @property
    def held(self) -> HeldBuffer:
        """The buffer's entry in a report."""
        return HeldBuffer(
            size_bytes=self.size_bytes, type=str(self.type), role=self.role, location=self.location
        )


Buffers = tuple[Buffer, ...]
Leaves = dict[Value, Buffers]
"""The buffers of each value, one for each tensor in its type."""


def new_buffers(value: Value, role: Role, location: str, moment: int, space: int) -> Buffers:
    """Return a buffer per tensor; those of other spaces have no size."""
    return tuple([
        Buffer(
            size_bytes=tensor.allocated_bytes if tensor.memory_space == space else 0,
            type=tensor,
            role=role,
            location=location,
            written_at=moment,
            read_at=moment,
            held_until=moment,
        )
        for tensor in tensors(value.type)
    ])  # fmt: skip


def argument_buffers(values: Iterable[Value], *, space: int = DEVICE_MEMORY) -> Buffers:
    """Return the buffers of a block's arguments."""
    return tuple([
        buffer
        for number, value in enumerate(values)
        for buffer in new_buffers(value, Role.ARGUMENT, f"argument {number}", THROUGHOUT, space)
    ])  # fmt: skip


def _operands(op: Op, leaves: Leaves) -> list[Buffers]:
    return [leaves[value] for value in op.operands]


def _first(op: Op, leaves: Leaves) -> list[Buffers]:
    """Return the buffers of the first of several matrices that lie behind each other."""
    return [leaves[op.operands[0]]]


def _grouped(op: Op, leaves: Leaves) -> list[Buffers]:
    return [tuple([leaf for value in op.operands for leaf in leaves[value]])]


def _member(op: Op, leaves: Leaves) -> list[Buffers]:
    (source,) = op.operands
    if not (isinstance(op.attrs, DimensionAttrs) and isinstance(source.type, TupleType)):
        raise TypeError(f"{op.location} takes a member of something that is no tuple")
    index, members = op.attrs.dimension, source.type.members
    first_leaf = sum(len(tensors(member)) for member in members[:index])
    return [leaves[source][first_leaf : first_leaf + len(tensors(members[index]))]]


VIEWS: Mapping[str, Callable[[Op, Leaves], list[Buffers]]] = {
    **dict.fromkeys(("optimization_barrier", "reshape"), _operands),
    "bitcast": _first,
    "get_tuple_element": _member,
    "tuple": _grouped,
}
"""Operations that move no data, with the buffers that their results share."""
FOLDED_VIEWS = {**VIEWS, **dict.fromkeys(("broadcast", "broadcast_in_dim", "copy"), _operands)}
"""`VIEWS` and the operations that are free before compilation.

All compilers compute broadcasts where they are read, and decide themselves what to copy.
"""
CONSTANTS = frozenset({"constant"})
FOLDED_CONSTANTS = CONSTANTS | {"iota"}
"""Operations whose results take no memory during the step."""

Pairs = Iterator[tuple[int, int]]
"""Positions of operands, and of the results that are written over them."""

_RENAMING = frozenset({"bitcast", "reshape"})
REDUCED = frozenset({"all_reduce", "cross-replica-sum"})


def _renames(op: Op) -> bool:
    return op.kind in _RENAMING


def _updates(op: Op) -> bool:
    return op.traits.category is Category.UPDATE


def _all_results(op: Op) -> Pairs:
    return ((number, number) for number in range(len(op.results)))


def always_in_place(op: Op) -> Pairs:
    """Yield the operands and results that an operation shares in any program."""
    if isinstance(op.attrs, FusionAttrs | CustomCallAttrs):
        yield from ((alias.operand, alias.result) for alias in op.attrs.in_place)
    if isinstance(op.attrs, WhileAttrs) or op.kind == "scatter":
        yield from _all_results(op)
    elif _updates(op):
        yield 0, 0
    elif op.kind == "fusion":
        yield from _updated_arguments(op.regions[0])


def started_in_place(op: Op) -> Pairs:
    """Yield the operands and results that a started operation shares."""
    return _all_results(op) if op.kind in REDUCED else always_in_place(op)


def perhaps_in_place(op: Op) -> Pairs:
    """Yield the operands and results that a compiler may share.

    Such a result has the operand's shape, and each of its elements is computed from the operand's
    element at the same index. Sorts move elements about in the memory of their operands.
    Source: openxla/xla, ``HloDataflowAnalysis::CanShareOperandBufferWithUser`` (Apache License
    2.0).
    """
    pairs: Iterable[tuple[int, int]] = ()
    if op.kind == "sort":
        pairs = _all_results(op)
    elif op.traits.is_elementwise:
        pairs = ((number, 0) for number in range(len(op.operands)))
    elif op.kind == "fusion":
        pairs = chain(_element_by_element(op), _sorted_arguments(op.regions[0]))
    for operand, result in pairs:
        if _shape(op.operands[operand]) == _shape(op.results[result]):
            yield operand, result


def _shape(value: Value) -> tuple[int, ...] | None:
    return value.type.shape if isinstance(value.type, TensorType) else None


def _element_by_element(op: Op) -> Pairs:
    """Yield a fusion's arguments whose elements only the same result elements read."""
    body = op.regions[0]
    results = {value: number for number, value in enumerate(body.operations[-1].operands)}
    shapes = {_shape(value) for value in op.results}
    rearranged = _rearranged(body, results)
    arguments = [
        (number, argument)
        for number, argument in enumerate(body.arguments)
        if argument not in rearranged and _shape(op.operands[number]) in shapes
    ]
    if len(results) == 1:
        ((end, result),) = results.items()
        used = _values_behind(body, end)
        yield from ((operand, result) for operand, argument in arguments if argument in used)
        return
    uses = Uses.of_block(body)
    for operand, argument in arguments:
        yield from ((operand, result) for result in _results_of(argument, uses, results))


def _values_behind(body: Block, end: Value) -> set[Value]:
    """Return a value and those that it depends on."""
    used = {end}
    for op in reversed(body.operations[:-1]):
        if not used.isdisjoint(op.results):
            used.update(values_read(op))
    return used


def _rearranged(body: Block, results: Mapping[Value, int]) -> set[Value]:
    """Return the values that something uses other than element by element."""
    rearranged = set[Value]()
    for op in reversed(body.operations[:-1]):
        is_kept = (op.traits.is_elementwise or _renames(op)) and rearranged.isdisjoint(op.results)
        read = values_read(op)
        rearranged.update(value for value in read if not is_kept or value in results)
    return rearranged


def _results_of(argument: Value, uses: Uses, results: Mapping[Value, int]) -> list[int]:
    """Return the results that depend on an argument."""
    reached = list[int]()
    pending, seen = [argument], set[Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in results:
            reached.append(results[value])
            if len(reached) == len(results):
                break
        for op in uses.readers(value):
            pending.extend(op.results)
    return reached


def _sorted_arguments(body: Block) -> Pairs:
    """Yield the arguments of a fusion that a result has in order."""
    ordered = {
        value: operand
        for op in body.operations
        if op.kind == "sort"
        for value, operand in zip(op.results, op.operands, strict=True)
    }
    arguments = {value: number for number, value in enumerate(body.arguments)}
    for result, value in enumerate(body.operations[-1].operands if ordered else ()):
        if value in ordered and ordered[value] in arguments:
            yield arguments[ordered[value]], result


def _updated_arguments(body: Block) -> Pairs:
    """Yield the fusion's arguments that a result updates."""
    uses = Uses.of_block(body)
    arguments = {value: number for number, value in enumerate(body.arguments)}
    for result, value in enumerate(body.operations[-1].operands):
        update = uses.producer(uses.source(value, _renames))
        if update is not None and _updates(update):
            source = uses.source(value, lambda op: _renames(op) or _updates(op))
            if source in arguments:
                yield arguments[source], result
