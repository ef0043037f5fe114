"""Copy what loops read in another layout before the loops, all of it at once.

XLA gives an array that no turn of a loop changes the layout in which the body takes its parts, and
copies it before the loop: compiled for H100, a step of llama3-8b holds the weights of all layers
that are gathered along their fastest dimension, 0.6 GB of them on each of eight, a second time.
Weights in f32 are copied as they are, and each part is converted in its turn.
Loops that read the same share the copy, and it stands before the outermost loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.lower.order import needed_by, readers_of
from hespas.program.program import Block, Op, Value
from hespas.program.rewrite import Renaming, copied_op, fresh
from hespas.program.types import TensorType


def with_layouts_before(block: Block) -> Block:
    """Return a block whose arguments are copied before the loops that read them otherwise."""
    copied: dict[tuple[Value, TensorType], Value] = {}
    operations: list[Op] = []
    for op in block.operations:
        if op.kind != "while":
            operations.append(op)
            continue
        inner = replace(op, regions=(op.regions[0], with_layouts_before(op.regions[1])))
        moved = [each for each in _moved(inner) if inner.operands[each.at] in block.arguments]
        for each in moved:
            key = inner.operands[each.at], each.whole
            if key not in copied:
                copied[key] = Value(type=each.whole)
                operations.append(replace(each.copy, operands=key[:1], results=(copied[key],)))
        given = [copied[inner.operands[each.at], each.whole] for each in moved]
        operations.append(_with_more(inner, moved, given) if moved else inner)
    return Block(arguments=block.arguments, operations=tuple(operations))


_BETWEEN = frozenset({"convert", "reshape", "copy"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """A copy that moves before a loop: of the argument ``at``, which then has the type ``whole``.

    ``part`` are the operations that made what was copied of the argument, if it was a part: what
    cuts it, and what converts it or drops its first dimension.
    """

    at: int
    whole: TensorType
    copy: Op
    part: tuple[Op, ...] = ()


def _moved(loop: Op) -> Iterator[_Moved]:
    """Yield the copies in a loop of what no turn changes, or of parts of it."""
    body = loop.regions[1]
    *operations, last = body.operations
    readers = readers_of((*operations, last))
    for at, argument in enumerate(body.arguments):
        if last.operands[at] is not argument or not isinstance(argument.type, TensorType):
            continue
        for op in readers.get(argument, ()):
            if op.kind == "copy":
                yield _Moved(at=at, whole=_type(op), copy=op)
            elif op.kind == "dynamic_slice" and op.operands[0] is argument:
                yield from _of_part(at, argument.type, op, readers)


def _of_part(
    at: int, whole: TensorType, cut: Op, readers: dict[Value, list[Op]]
) -> Iterator[_Moved]:
    """Yield the copy of one row of an argument, without its first dimension, if nothing else is."""
    chain = [cut]
    while chain[-1].kind != "copy":
        following = readers.get(chain[-1].results[0], ())
        if len(following) != 1 or following[0].kind not in _BETWEEN:
            return
        chain.append(following[0])
    *part, copy = chain
    if [op.kind for op in part].count("reshape") != 1 or len(part) > 3:
        return
    if _type(cut).shape != (1, *_type(copy).shape):
        return
    layout = _type(copy).layout or tuple(range(len(_type(copy).shape)))[::-1]
    ordered = (*(each + 1 for each in layout), 0)
    yield _Moved(at=at, whole=replace(whole, layout=ordered), copy=copy, part=tuple(part))


def _type(op: Op) -> TensorType:
    kind = op.results[0].type
    assert isinstance(kind, TensorType)  # noqa: S101 - slices, reshapes and copies have tensors
    return kind


def _with_more(loop: Op, moved: Sequence[_Moved], given: Sequence[Value]) -> Op:
    """Return a loop that is given what was copied within it."""
    condition, body = loop.regions
    arguments = fresh(given, {})
    *operations, last = _Body(moved=moved, arguments=arguments).operations(body.operations)
    return replace(
        loop,
        operands=(*loop.operands, *given),
        results=(*loop.results, *fresh(given, {})),
        regions=(
            replace(condition, arguments=(*condition.arguments, *fresh(given, {}))),
            Block(
                arguments=(*body.arguments, *arguments),
                operations=(*operations, replace(last, operands=(*last.operands, *arguments))),
            ),
        ),
    )


@dataclass(slots=True, kw_only=True)
class _Body:
    moved: Sequence[_Moved]
    arguments: Sequence[Value]
    renaming: Renaming = field(default_factory=dict[Value, Value])

    def operations(self, operations: Iterable[Op]) -> Iterator[Op]:
        """Yield operations without the copies, and with parts cut from what was copied."""
        cuts = {each.part[0]: number for number, each in enumerate(self.moved) if each.part}
        between = {op: each for each in self.moved for op in each.part[1:-1]}
        last = {each.part[-1]: each for each in self.moved if each.part}
        whole = {each.copy: at for at, each in enumerate(self.moved)}
        for op in operations:
            if op in cuts:
                number = cuts[op]
                result = self._laid_out(op, self.moved[number])
                source = (self.arguments[number], *op.operands[1:])
                yield replace(self._renamed(op), operands=source, results=(result,))
            elif op in between:
                result = self._laid_out(op, between[op])
                yield replace(self._renamed(op), results=(result,))
            elif op in last:
                yield replace(self._renamed(op), results=last[op].copy.results)
            elif op in whole:
                if not self.moved[whole[op]].part:
                    self.renaming[op.results[0]] = self.arguments[whole[op]]
            else:
                yield self._renamed(op)

    def _laid_out(self, op: Op, moved: _Moved) -> Value:
        """Return what an operation makes of a part, in the order of the copy."""
        kind, copied = _type(op), _type(moved.copy)
        is_cut = len(kind.shape) > len(copied.shape)
        layout = moved.whole.layout if is_cut else copied.layout
        result = Value(type=replace(kind, layout=layout))
        self.renaming[op.results[0]] = result
        return result

    def _renamed(self, op: Op) -> Op:
        if self.renaming.keys().isdisjoint(needed_by(op)):
            return op
        return replace(copied_op(op, dict(self.renaming)), results=op.results)
