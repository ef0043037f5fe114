"""Count the traffic of fusions and transfers to the host.

A fusion is one kernel whose intermediate values never reach memory. Its reads are found backwards:
how many elements of each value do the results need? A value that is only sliced is needed by its
slices; one that is updated in place is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hespas.base.frozen import frozen
from hespas.program.attrs import KernelAttrs
from hespas.program.operations.reduction import only_replaces, updates_of
from hespas.program.operations.traits import Category, memory_bytes
from hespas.program.program import Block, Op, Value, is_communication_op, nested_ops, size_of
from hespas.program.types import HOST_MEMORY, TensorType, size_bytes, tensors
from hespas.program.uses import Uses
from hespas.program.work import Work

_EVERY_ELEMENT = (Category.ELEMENTWISE, Category.BROADCAST, Category.MOVEMENT)


def fusion(op: Op, bodies: tuple[Work, ...]) -> Work:
    """Count the body's arithmetic, needed reads, and writes."""
    needed, written = block_traffic(op.regions[0])
    read = dict.fromkeys(op.operands, 0)
    for inner, outer in zip(op.regions[0].arguments, op.operands, strict=True):
        read[outer] = min(memory_bytes(outer.type), read[outer] + needed.bytes_of(inner))
    outputs = zip(op.results, written, strict=True)
    return Work(
        flops=bodies[0].flops,
        transcendentals=bodies[0].transcendentals,
        bytes_read=sum(read.values()),
        bytes_written=sum([min(memory_bytes(value.type), count) for value, count in outputs]),
    )


def written_elements(op: Op) -> int:
    """Return the elements written to the largest result.

    An in-place update counts the update only: a fused ``dynamic_update_slice`` or scatter of an
    argument, with at most bitcasts between the argument, the update and the result. A buffer that
    is converted on the way is written whole, as XLA's kernels do.
    """
    if op.traits.category is Category.UPDATE:
        return max(map(size_of, updates_of(op)))
    if op.traits.category is not Category.FUSION:
        return _largest_result_elements(op)
    block = op.regions[0]
    uses = Uses.of_block(block)
    updates = [_update_in_place(root, uses, block) for root in block.operations[-1].operands]
    roots = zip(block.operations[-1].operands, updates, strict=True)
    return max(
        [size_of(root if update is None else updates_of(update)[0]) for root, update in roots],
        default=0,
    )


def _largest_result_elements(op: Op) -> int:
    """Return the elements of the largest result, written parts only."""
    if not isinstance(op.attrs, KernelAttrs):
        return max(map(size_of, op.results), default=0)
    sizes = [tensor.element.bits for value in op.results for tensor in tensors(value.type)]
    return op.attrs.bytes_written * 8 // max(sizes, default=32)


def operations_of(op: Op) -> Iterator[Op]:
    """Yield the operations of a fusion, or the operation itself."""
    if op.traits.category is not Category.FUSION:
        yield op
        return
    for region in op.regions:
        yield from nested_ops(region)


def only_moves(op: Op) -> bool:
    """Return whether an operation moves data and computes only positions."""
    return all(
        inner.traits.moves_only
        or (inner.traits.is_elementwise and all(size_of(value) == 1 for value in inner.results))
        for inner in operations_of(op)
    )


@dataclass(slots=True, kw_only=True)
class _Needed:
    """The needed elements of each value; one for what is no tensor."""

    elements: dict[Value, int] = field(default_factory=dict[Value, int])

    def add(self, value: Value, count: int) -> None:
        # Two uses may need the same elements; together they need at most all.
        self.elements[value] = min(size_of(value), self.elements.get(value, 0) + count)

    def add_all(self, values: Iterable[Value]) -> None:
        for value in values:
            self.elements[value] = size_of(value)

    def bytes_of(self, value: Value) -> int:
        count = self.elements.get(value, 0)
        match value.type:
            case TensorType(element=element):
                return (count * element.bits + 7) // 8
            case _:
                return size_bytes(value.type) if count else 0


def block_traffic(block: Block) -> tuple[_Needed, list[int]]:
    """Return the elements read of each argument and the bytes of each result."""
    uses = Uses.of_block(block)
    needed = _Needed()
    written: list[int] = []
    in_place: set[Op] = set()
    for root in block.operations[-1].operands:
        update = _update_in_place(root, uses, block)
        if update is None:
            needed.add_all((root,))
            written.append(size_bytes(root.type))
            continue
        in_place.add(update)
        needed.add_all(update.operands[1:])
        (values,) = updates_of(update)
        if update.regions and not only_replaces(update, 1):
            needed.add(update.operands[0], size_of(values))
        written.append(min(size_bytes(root.type), size_bytes(values.type)))
    for op in reversed(block.operations[:-1]):
        count = max((needed.elements.get(value, 0) for value in op.results), default=0)
        if count and op not in in_place:
            _add_operands(op, count, needed)
    return needed, written


def _update_in_place(root: Value, uses: Uses, block: Block) -> Op | None:
    """Return a result's in-place update of an argument, or None."""
    update = uses.producer(uses.source(root, _relabels))
    if update is None or update.traits.category is not Category.UPDATE or len(update.results) > 1:
        return None
    updated = uses.source(update.operands[0], _relabels)
    return update if any(updated is argument for argument in block.arguments) else None


def _relabels(op: Op) -> bool:
    return op.traits.relabels


def _add_operands(op: Op, count: int, needed: _Needed) -> None:
    """Add the operand elements needed for ``count`` result elements."""
    traits = op.traits
    if traits.reads_part:
        needed.add(op.operands[0], count)
        needed.add_all(op.operands[1:])
    elif traits.category is Category.UPDATE and not op.regions:
        needed.add(op.operands[0], count)
        needed.add(op.operands[1], count)
        needed.add_all(op.operands[2:])
    elif traits.category in _EVERY_ELEMENT or traits.relabels:
        # One element of the result needs at most one of each operand.
        for value in dict.fromkeys(op.operands):
            needed.add(value, count)
    elif traits.category is Category.FUSION:
        inner, _ = block_traffic(op.regions[0])
        for argument, value in zip(op.regions[0].arguments, op.operands, strict=True):
            needed.add(value, inner.elements.get(argument, 0))
    else:
        needed.add_all(op.operands)


@frozen
class HostTraffic:
    """The bytes moved to and from host memory."""

    to_host_bytes: int = 0
    from_host_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The bytes of both directions."""
        return self.to_host_bytes + self.from_host_bytes

    def __bool__(self) -> bool:
        return self.total_bytes > 0


NO_HOST_TRAFFIC = HostTraffic()
_CONTAINERS = (Category.ASYNCHRONOUS, Category.CALL, Category.CONTROL)


def _moves_nothing(op: Op) -> bool:
    """Return whether an operation only passes values on, contains others or communicates."""
    traits = op.traits
    is_holding = traits.category in _CONTAINERS or is_communication_op(op)
    return is_holding or traits.runs_nothing or traits.relabels


def host_traffic(op: Op) -> HostTraffic:
    """Return the bytes moved over the host link.

    A slice of a host buffer counts the slice; an update of one counts the update. Data that stays
    on its side does not count.
    """
    results = any(map(_is_on_host, op.results))
    if not results and not any(map(_is_on_host, op.operands)):
        return NO_HOST_TRAFFIC
    if _moves_nothing(op):
        return NO_HOST_TRAFFIC
    to_host = _bytes_to_host(op) if results and _has_array_on_device(op.operands) else 0
    stays = results and all(map(_is_on_host, op.results))
    return HostTraffic(to_host_bytes=to_host, from_host_bytes=0 if stays else _bytes_from_host(op))


def is_on_host(op: Op) -> bool:
    """Return whether an operation creates its results on the host."""
    if _moves_nothing(op) or not op.results:
        return False
    return all(map(_is_on_host, op.results)) and not host_traffic(op)


def _is_on_host(value: Value) -> bool:
    kind = value.type
    if isinstance(kind, TensorType):
        return kind.memory_space == HOST_MEMORY
    return any(tensor.memory_space == HOST_MEMORY for tensor in tensors(kind))


def _has_array_on_device(values: Iterable[Value]) -> bool:
    """Return whether any array is on the device.

    Scalars such as indices travel with the command.
    """
    return any(
        tensor.memory_space != HOST_MEMORY and tensor.rank > 0
        for value in values
        for tensor in tensors(value.type)
    )


def _bytes_to_host(op: Op) -> int:
    if op.traits.category is Category.FUSION:
        _, written = block_traffic(op.regions[0])
        pairs = zip(op.results, written, strict=True)
        return sum(count for value, count in pairs if _is_on_host(value))
    if op.traits.category is Category.UPDATE and not op.regions:
        (update,) = updates_of(op)
        return 0 if _is_on_host(update) else size_bytes(update.type)
    return _on_host_bytes(op.results)


def _bytes_from_host(op: Op) -> int:
    if op.traits.category is Category.FUSION:
        needed, _ = block_traffic(op.regions[0])
        pairs = zip(op.regions[0].arguments, op.operands, strict=True)
        return sum(needed.bytes_of(inner) for inner, outer in pairs if _is_on_host(outer))
    if op.traits.reads_part:
        return sum(size_bytes(value.type) for value in op.results)
    return _on_host_bytes(dict.fromkeys(op.operands))


def _on_host_bytes(values: Iterable[Value]) -> int:
    return sum(
        tensor.size_bytes
        for value in values
        for tensor in tensors(value.type)
        if tensor.memory_space == HOST_MEMORY
    )
