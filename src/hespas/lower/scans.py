"""Open cumulative sums, which XLA's GPU compiler computes in pieces of 16 elements.

JAX writes a cumulative sum, product, maximum or the like as a window at each place that covers all
places before it. Of a long one each piece is scanned by itself, what each piece ends with is
scanned, again in pieces, and combined with all of the next piece. Where pieces do not divide the
length, it is filled up before and cut after.

Source: openxla/xla, ``ReduceWindowRewriter`` (xla/hlo/transforms/expanders/
reduce_window_rewriter.cc, Apache License 2.0), and what jaxlib 0.10.2 compiles for H100.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from hespas.lower.blocks import tensor_of
from hespas.program.attrs import DimensionsAttrs, SliceAttrs, WindowAttrs
from hespas.program.program import Op, Value
from hespas.program.rewrite import Renaming, copied_op, plain_op
from hespas.program.types import TensorType

PIECE = 16
"""The elements of a piece."""


def with_scans_opened(operations: Iterable[Op]) -> Iterator[Op]:
    """Yield operations; long cumulative windows are opened into pieces."""
    for op in operations:
        axis = _axis(op)
        if axis is None:
            yield op
            continue
        scan = _Scan(op=op, axis=axis, is_reversed=_attrs(op).padding[axis][0] == 0)
        made = yield from scan.opened(op.operands[: len(op.results)], op.results)
        assert made == op.results  # noqa: S101 - the results that the operation had


def _axis(op: Op) -> int | None:
    """Return the dimension that a window accumulates along, if it is longer than a piece."""
    if op.kind != "reduce_window" or not isinstance(op.attrs, WindowAttrs):
        return None
    attrs, shape = op.attrs, tensor_of(op.operands[0]).shape
    axes = [at for at, size in enumerate(attrs.size) if size > 1]
    plain = (*attrs.strides, *attrs.base_dilation, *attrs.window_dilation)
    if len(axes) != 1 or any(each != 1 for each in plain):
        return None
    (axis,) = axes
    length = shape[axis]
    padding = list(attrs.padding)
    own = padding.pop(axis)
    is_scan = attrs.size[axis] == length and own in ((length - 1, 0), (0, length - 1))
    return axis if is_scan and length > PIECE and not any(map(any, padding)) else None


def _attrs(op: Op) -> WindowAttrs:
    assert isinstance(op.attrs, WindowAttrs)  # noqa: S101 - `_axis` has looked
    return op.attrs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """A cumulative window along an axis, from its start or, reversed, from its end."""

    op: Op
    axis: int
    is_reversed: bool

    def opened(
        self, operands: Sequence[Value], results: Sequence[Value]
    ) -> Generator[Op, None, tuple[Value, ...]]:
        """Yield what scans operands along the axis into results; return these."""
        length = tensor_of(operands[0]).shape[self.axis]
        if length <= PIECE:
            yield self._window(operands, results, self.axis)
            return tuple(results)
        pieces = -(-length // PIECE)
        filled = operands
        if pieces * PIECE > length:
            filled = yield from self._each("pad", operands, self._sizes(pieces * PIECE))
        cut = yield from self._each("reshape", filled, self._sizes(pieces, PIECE))
        inner = self._like(cut)
        yield self._window(cut, inner, self.axis + 1)
        ends = yield from self._ends(inner, pieces)
        ends = yield from self._each("reshape", ends, self._sizes(pieces))
        before = yield from self.opened(ends, self._like(ends))
        before = yield from self._each("pad", before, self._sizes(pieces + 1))
        before = yield from self._each("slice", before, self._sizes(pieces))
        whole = yield from self._combined(inner, before)
        is_even = pieces * PIECE == length
        whole = yield from self._each(
            "reshape", whole, self._sizes(pieces * PIECE), results if is_even else ()
        )
        if not is_even:
            yield from self._each("slice", whole, self._sizes(length), results)
        return tuple(results)

    def _sizes(self, *along: int) -> tuple[int, ...]:
        """Return the shape of an operand with other sizes along the axis."""
        shape = tensor_of(self.op.operands[0]).shape
        return (*shape[: self.axis], *along, *shape[self.axis + 1 :])

    def _like(self, values: Iterable[Value]) -> tuple[Value, ...]:
        return tuple([Value(type=value.type) for value in values])

    def _each(
        self,
        kind: str,
        operands: Iterable[Value],
        shape: tuple[int, ...],
        results: Sequence[Value] = (),
    ) -> Generator[Op, None, tuple[Value, ...]]:
        """Yield an operation for each operand; return its results, of another shape."""
        given = tuple(operands)
        made = tuple(results) or tuple(
            [Value(type=replace(tensor_of(value), shape=shape)) for value in given]
        )
        for at, (value, result) in enumerate(zip(given, made, strict=True)):
            inits = (self._init(at),) if kind == "pad" else ()
            yield plain_op(self.op, kind, (value, *inits), result)
        return made

    def _init(self, at: int) -> Value:
        return self.op.operands[len(self.op.results) + at]

    def _window(self, operands: Sequence[Value], results: Sequence[Value], axis: int) -> Op:
        """Return the window that scans a dimension as a whole."""
        shape = tensor_of(operands[0]).shape
        ones, length = (1,) * len(shape), shape[axis]
        size, padding = list(ones), [(0, 0)] * len(shape)
        size[axis] = length
        padding[axis] = (0, length - 1) if self.is_reversed else (length - 1, 0)
        attrs = WindowAttrs(
            size=tuple(size),
            strides=ones,
            base_dilation=ones,
            window_dilation=ones,
            padding=tuple(padding),
        )
        inits = self.op.operands[len(self.op.results) :]
        made = plain_op(self.op, "reduce_window", (*operands, *inits), results[0])
        return replace(made, results=tuple(results), attrs=attrs, regions=self.op.regions)

    def _ends(self, inner: Sequence[Value], pieces: int) -> Generator[Op, None, tuple[Value, ...]]:
        """Yield what takes the element of each piece that all of it is combined in."""
        shape = self._sizes(pieces, PIECE)
        at = 0 if self.is_reversed else PIECE - 1
        start, limit = [0] * len(shape), list(shape)
        start[self.axis + 1], limit[self.axis + 1] = at, at + 1
        bounds = SliceAttrs(start=tuple(start), limit=tuple(limit), strides=(1,) * len(shape))
        made = tuple(
            [Value(type=replace(tensor_of(value), shape=self._sizes(pieces, 1))) for value in inner]
        )
        for value, result in zip(inner, made, strict=True):
            yield replace(plain_op(self.op, "slice", (value,), result), attrs=bounds)
        return made

    def _combined(
        self, inner: Sequence[Value], before: Sequence[Value]
    ) -> Generator[Op, None, tuple[Value, ...]]:
        """Yield the function of the window, applied to each piece and what is before it."""
        rank = len(tensor_of(inner[0]).shape)
        kept = tuple([at for at in range(rank) if at != self.axis + 1])
        spread = self._like(inner)
        for value, result in zip(before, spread, strict=True):
            made = plain_op(self.op, "broadcast_in_dim", (value,), result)
            yield replace(made, attrs=DimensionsAttrs(dimensions=kept))
        (body,) = self.op.regions
        renaming: Renaming = dict(zip(body.arguments, (*spread, *inner), strict=True))
        shape = tensor_of(inner[0]).shape
        for op in body.operations[:-1]:
            copy = copied_op(op, renaming)
            wide = tuple([_widened(value, shape) for value in copy.results])
            renaming.update(zip(op.results, wide, strict=True))
            yield replace(copy, results=wide)
        return tuple([renaming[value] for value in body.operations[-1].operands])


def _widened(value: Value, shape: tuple[int, ...]) -> Value:
    """Return a value of the same elements, one for each place of a shape."""
    kind = value.type
    return Value(type=replace(kind, shape=shape) if isinstance(kind, TensorType) else kind)
