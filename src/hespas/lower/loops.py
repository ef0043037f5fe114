"""Change loops and products: copies before them, order, operands.

* XLA for GPUs gives an array that no turn of a loop changes the layout in which the body takes its
  parts, and copies it before the loop, all of it at once: compiled for H100, a step of llama3-8b
  holds the weights of all layers that are gathered along their fastest dimension, 0.6 GB of them on
  each of eight, a second time. Weights in f32 are copied as they are, and each part is converted in
  its turn. Loops that read the same share the copy, and it stands before the outermost loop.
* libtpu hands loops in fewer bits what they convert to them in every turn: a copy before a loop
  over layers has the type that its parts are converted to. Source: XLA's BFloat16Propagation, as
  libtpu 0.0.42 runs it: MaxText's Llama 3.1 8B on eight v6e holds 1.75 GB of copies where f32 takes
  3.5. XLA for GPUs keeps f32.
* libtpu puts what frees memory before loops that don't need it: in llama3-100m compiled for four
  v6e, the gradient of the head's weights comes before the loop of the backward pass, so that the
  gradient of the logits, 1.05 GB, is not held during that loop. XLA's scheduler for GPUs holds it.
* libtpu writes products and what makes their operands as one kernel: in the same program, the
  one-hot rows by which a product looks up the embedding, 1.05 GB, are never in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.lower.build import fusion_around
from hespas.lower.collectives import like, narrower
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Op, Value, tensor_of, values_read
from hespas.program.rewrite import Renaming, copied_op, fresh, plain_op, renamed_op
from hespas.program.types import ElementType, TensorType, allocated_bytes
from hespas.program.uses import Uses


def with_layouts_before(block: Block) -> Block:
    """Copy arguments before loops that read them in another layout."""
    copied: dict[tuple[Value, TensorType], Value] = {}
    operations: list[Op] = []
    for op in block.operations:
        if op.kind != "while":
            operations.append(op)
            continue
        loop = replace(op, regions=(op.regions[0], with_layouts_before(op.regions[1])))
        moved = [move for move in _moved(loop) if loop.operands[move.argument] in block.arguments]
        copies: list[Value] = []
        for move in moved:
            key = loop.operands[move.argument], move.stack
            if key not in copied:
                copied[key] = Value(type=move.stack)
                operations.append(replace(move.copy, operands=key[:1], results=(copied[key],)))
            copies.append(copied[key])
        operations.append(_with_more(loop, moved, copies) if moved else loop)
    return Block(arguments=block.arguments, operations=tuple(operations))


_BETWEEN = frozenset({"convert", "reshape", "copy"})


@frozen
class _Moved:
    """A copy moved before a loop.

    ``argument`` is the index of what it copies, ``stack`` its type before the loop. ``part`` are
    the operations that cut, converted or reshaped what was copied, if it was a part.
    """

    argument: int
    stack: TensorType
    copy: Op
    part: tuple[Op, ...] = ()


def handed_on(loop: Op) -> Iterator[tuple[int, Value]]:
    """Yield arguments that every turn of a loop hands on."""
    body = loop.regions[1]
    for place, argument in enumerate(body.arguments):
        if body.operations[-1].operands[place] is argument:
            yield place, argument


def _moved(loop: Op) -> Iterator[_Moved]:
    """Yield a loop's copies of invariant values or parts of them."""
    uses = Uses.of_block(loop.regions[1])
    for place, argument in handed_on(loop):
        for op in uses.readers(argument):
            if op.kind == "copy":
                yield _Moved(argument=place, stack=tensor_of(op.results[0]), copy=op)
            elif op.kind == "dynamic_slice" and op.operands[0] is argument:
                yield from _of_part(place, op, uses)


def _of_part(place: int, cut: Op, uses: Uses) -> Iterator[_Moved]:
    """Yield the copy of an argument's row if nothing else reads it."""
    chain = [cut]
    while chain[-1].kind != "copy":
        reader = uses.only_reader(chain[-1].results[0])
        if reader is None or reader.kind not in _BETWEEN:
            return
        chain.append(reader)
    *part, copy = chain
    copied = tensor_of(copy.results[0])
    if [op.kind for op in part].count("reshape") != 1 or len(part) > 3:
        return
    if tensor_of(cut.results[0]).shape != (1, *copied.shape):
        return
    layout = (*[axis + 1 for axis in copied.order], 0)
    stack = replace(tensor_of(cut.operands[0]), layout=layout)
    yield _Moved(argument=place, stack=stack, copy=copy, part=tuple(part))


def _with_more(loop: Op, moved: Sequence[_Moved], copies: Sequence[Value]) -> Op:
    """Return a loop that is given what was copied within it."""
    condition, body = loop.regions
    arguments = fresh(copies, {})
    *operations, last = _without_copies(body.operations, moved, arguments)
    return replace(
        loop,
        operands=(*loop.operands, *copies),
        results=(*loop.results, *fresh(copies, {})),
        regions=(
            replace(condition, arguments=(*condition.arguments, *fresh(copies, {}))),
            Block(
                arguments=(*body.arguments, *arguments),
                operations=(*operations, replace(last, operands=(*last.operands, *arguments))),
            ),
        ),
    )


def _without_copies(
    operations: Iterable[Op], moved: Sequence[_Moved], arguments: Sequence[Value]
) -> Iterator[Op]:
    """Yield operations that read moved copies instead of copying."""
    renaming: Renaming = {}
    parts = {op: move for move in moved for op in move.part}
    copy_number = {move.copy: place for place, move in enumerate(moved)}
    source = {move.part[0]: arguments[place] for place, move in enumerate(moved) if move.part}
    for op in operations:
        if op in copy_number:
            if not moved[copy_number[op]].part:
                renaming[op.results[0]] = arguments[copy_number[op]]
            continue
        new = renamed_op(op, renaming)
        if op in source:
            new = replace(new, operands=(source[op], *op.operands[1:]))
        move = parts.get(op)
        if move is not None:
            result = move.copy.results[0]
            if op is not move.part[-1]:
                kind, copied = tensor_of(op.results[0]), tensor_of(result)
                layout = move.stack.layout if kind.rank > copied.rank else copied.layout
                result = renaming[op.results[0]] = Value(type=replace(kind, layout=layout))
            new = replace(new, results=(result,))
        yield new


_MAKING = frozenset({"copy", "transpose"})
_MOVING = frozenset({"copy", "dynamic_slice", "reshape", "slice", "transpose"})
_TYPE_TEXT = "xla_shape"


def with_narrow_carried(block: Block) -> Block:
    """Narrow copies that loops only read narrow.

    Only loops read such a copy, each hands it on as it is, and takes parts of it that it converts.
    """
    uses = Uses.of_block(block)
    narrow: dict[Value, Value] = {}
    changed: list[Op] = []
    for op in block.operations:
        changed.append(_with_narrow(op, narrow))
        element = _narrow_element(op.results[0], uses) if op.kind in _MAKING else None
        if element is not None:
            value = op.results[0]
            narrow[value] = like(value, element)
            changed.append(plain_op(op, "convert", (value,), narrow[value]))
    return replace(block, operations=tuple(changed))


def _narrow_element(value: Value, uses: Uses) -> ElementType | None:
    """Return the type that all readers, converting loops, want of a copy."""
    if uses.is_output(value):
        return None
    elements = {
        element
        for loop in uses.readers(value)
        for element in (_converted_elements(loop, value, uses) if loop.kind == "while" else {None})
    }
    return elements.pop() if len(elements) == 1 else None


def _converted_elements(loop: Op, value: Value, outside: Uses) -> set[ElementType | None]:
    """Return the types that a loop converts a value to, None otherwise."""
    if value not in loop.operands:
        return {None}
    condition, body = loop.regions
    inside, tested = Uses.of_block(body), Uses.of_block(condition)
    invariant = dict(handed_on(loop))
    elements: set[ElementType | None] = set()
    for place, operand in enumerate(loop.operands):
        if operand is not value:
            continue
        is_read = outside.count(loop.results[place]) or tested.count(condition.arguments[place])
        if place not in invariant or is_read:
            return {None}
        for chain in _chains(invariant[place], inside):
            end = chain[-1]
            is_converted = end.kind == "convert" and len(chain) > 1
            elements.add(narrower(end.results[0].type, value.type) if is_converted else None)
    return elements or {None}


def _chains(argument: Value, uses: Uses) -> Iterator[list[Op]]:
    """Yield each chain of moves from an argument."""
    for first in uses.readers(argument):
        chain = [first]
        while chain[-1].kind in _MOVING:
            reader = uses.only_reader(chain[-1].results[0])
            if reader is None:
                break
            chain.append(reader)
        yield chain


def _with_narrow(loop: Op, narrow: Mapping[Value, Value]) -> Op:
    """Return a loop that carries narrow values, without their conversions."""
    if loop.kind != "while" or narrow.keys().isdisjoint(loop.operands):
        return loop
    condition, body = loop.regions
    uses = Uses.of_block(body)
    operands_before = tuple([narrow.get(value, value) for value in loop.operands])
    narrowed = {
        op: tensor_of(operands_before[place]).element
        for place, value in enumerate(loop.operands)
        if value in narrow
        for chain in _chains(body.arguments[place], uses)
        for op in chain
    }

    def taking(values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple([
            like(old, tensor_of(new).element) if value is not new else Value(type=old.type)
            for old, value, new in zip(values, loop.operands, operands_before, strict=True)
        ])  # fmt: skip

    arguments, tested_arguments = taking(body.arguments), taking(condition.arguments)
    renaming: Renaming = dict(zip(body.arguments, arguments, strict=True))
    operations: list[Op] = []
    for op in body.operations:
        element = narrowed.get(op)
        if element is None:
            operations.append(copied_op(op, renaming))
        elif op.kind == "convert":
            renaming[op.results[0]] = renaming[op.operands[0]]
        else:
            operands = tuple([renaming.get(value, value) for value in op.operands])
            result = renaming[op.results[0]] = like(op.results[0], element)
            attributes = tuple([pair for pair in op.attributes if pair[0] != _TYPE_TEXT])
            operations.append(
                replace(op, operands=operands, results=(result,), attributes=attributes)
            )
    tested: Renaming = dict(zip(condition.arguments, tested_arguments, strict=True))
    test = tuple([copied_op(op, tested) for op in condition.operations])
    results = tuple([
        result if value is new else like(result, tensor_of(new).element)
        for result, value, new in zip(loop.results, loop.operands, operands_before, strict=True)
    ])  # fmt: skip
    return replace(
        loop,
        operands=operands_before,
        results=results,
        regions=(
            Block(arguments=tested_arguments, operations=test),
            Block(arguments=arguments, operations=tuple(operations)),
        ),
    )


def with_freed_first(operations: Sequence[Op], returned: Sequence[Value]) -> list[Op]:
    """Return operations with ready ones that free memory moved before a loop.

    Values that ``returned`` names are not freed, nor are those from outside of these operations.
    """
    if not any(op.kind == "while" for op in operations[:-1]):
        return [*operations]
    return [*_Mover(operations, returned).moved()]


class _Mover:
    """Operations in running order: those that ran, and what they left."""

    def __init__(self, operations: Sequence[Op], returned: Sequence[Value]) -> None:
        self.operations = operations
        uses = Uses(operations)

        def source(value: Value) -> Value:
            return uses.source(value, _is_view)

        self.values = {value for op in operations for value in op.results}
        self.reads = [
            set[Value]() if _is_view(op) else self.values & set(map(source, values_read(op)))
            for op in operations
        ]
        self.unread = Counter(value for read in self.reads for value in read)
        self.unread.update(map(source, returned))
        self.present = set[Value]()
        self.done = [False] * len(operations)

    def moved(self) -> Iterator[Op]:
        """Yield the operations in their new order."""
        for place, op in enumerate(self.operations):
            if self.done[place]:
                continue
            if op.kind == "while":
                yield from self._freeing(place + 1)
            yield self._run(place)

    def _freeing(self, first: int) -> Iterator[Op]:
        """Yield ready operations from ``first`` on that free memory."""
        for place in range(first, len(self.operations)):
            if self.done[place] or not self._is_ready(place):
                continue
            if _is_view(self.operations[place]) or self._freed_bytes(place) > 0:
                yield self._run(place)

    def _run(self, place: int) -> Op:
        self.done[place] = True
        self.unread.subtract(self.reads[place])
        self.present.update(self.operations[place].results)
        return self.operations[place]

    def _is_ready(self, place: int) -> bool:
        op = self.operations[place]
        return op.kind != "while" and all(
            value in self.present or value not in self.values for value in values_read(op)
        )

    def _freed_bytes(self, place: int) -> int:
        last = (value for value in self.reads[place] if self.unread[value] == 1)
        return _allocated_bytes(last) - _allocated_bytes(self.operations[place].results)


def _is_view(op: Op) -> bool:
    return op.kind in ("bitcast", "reshape")


def _allocated_bytes(values: Iterable[Value]) -> int:
    return sum([allocated_bytes(value.type) for value in values])


_INSIDE = (Category.ELEMENTWISE, Category.CREATION, Category.BROADCAST)


def with_operands_inside(operations: Sequence[Op], returned: Sequence[Value]) -> list[Op]:
    """Fuse kernels that only products read into these products.

    They are kernels that cut a part out, and those that work element by element and read fewer
    bytes than they write. What ``returned`` names has to be in memory.
    """
    uses = Uses(operations, returned)
    inside: dict[Value, Sequence[Op]] = {}
    gone = set[Op]()
    for op in operations:
        if not _is_small(op):
            continue
        ways = _ways_to_products(op.results[0], uses)
        if ways is None:
            continue
        inside.update({value: (op, *views) for value, views in ways.items()})
        gone.update((op,), *ways.values())
    return [_product(op, inside) for op in operations if op not in gone]


def _ways_to_products(value: Value, uses: Uses) -> dict[Value, Sequence[Op]] | None:
    """Return what products read of a value, with the views before; None if others read it."""
    ways: dict[Value, Sequence[Op]] = {}
    pending: list[tuple[Value, Sequence[Op]]] = [(value, ())]
    while pending:
        read, views = pending.pop()
        if uses.is_output(read):
            return None
        for reader in uses.readers(read):
            if _is_view(reader):
                pending.append((reader.results[0], (*views, reader)))
            elif reader.kind == "dot_general":
                ways[read] = views
            else:
                return None
    return ways


def _is_small(op: Op) -> bool:
    if op.kind != "fusion" or len(op.results) != 1:
        return False
    (block,) = op.regions
    body = block.operations[:-1]
    if not all(map(_is_inside, body)):
        return False
    if all(it.kind == "slice" or _is_view(it) for it in body):
        return True
    uses = Uses(body)
    cut = [[it for it in uses.readers(value) if it.kind == "slice"] for value in block.arguments]
    read = [
        min(_allocated_bytes([value]), sum([_allocated_bytes(it.results) for it in cuts]))
        if len(cuts) == len(uses.readers(value))
        else _allocated_bytes([value])
        for value, cuts in zip(block.arguments, cut, strict=True)
    ]
    return sum(read) < _allocated_bytes(op.results)


def _is_inside(op: Op) -> bool:
    return op.traits.category in _INSIDE or op.kind == "slice" or _is_view(op)


def _product(op: Op, inside: Mapping[Value, Sequence[Op]]) -> Op:
    """Fuse a product with what makes its operands, where possible."""
    read = [value for value in dict.fromkeys(op.operands) if value in inside]
    if op.kind != "dot_general" or not read:
        return op
    body: list[Op] = []
    renaming: Renaming = {}
    for value in read:
        maker, *views = inside[value]
        (block,) = maker.regions
        inner: Renaming = dict(zip(block.arguments, maker.operands, strict=True))
        body.extend([copied_op(inner_op, inner) for inner_op in block.operations[:-1]])
        inner[maker.results[0]] = inner[block.operations[-1].operands[0]]
        body.extend([copied_op(view, inner) for view in views])
        renaming[value] = inner[value]
    body.append(renamed_op(op, renaming))
    return fusion_around(body, op.results, op, op.instruction, kind="kOutput")
