"""Types, values, and a block of operations that grows while it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod
from typing import Any

from hypothesis import strategies as st

FLOATS = ("f32", "bf16", "f16")
INTEGERS = ("i32", "ui8")
_SIZES = (1, 2, 3, 4, 5, 8, 16, 24, 64, 128, 256)
_MOST_RANK = 4
MOST_ELEMENTS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A type: an element and a shape."""

    element: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"tensor<{'x'.join([*map(str, self.shape), self.element])}>"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.element in FLOATS

    @property
    def is_number(self) -> bool:
        return self.element != "i1"

    def of(self, element: str) -> Tensor:
        """Return the same shape of another element."""
        return replace(self, element=element)

    def shaped(self, *shape: int) -> Tensor:
        """Return the same element in another shape."""
        return replace(self, shape=shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A name in the text, and its type; a compiler may know one that does not vary."""

    name: str
    type: Tensor
    varies: bool = True


@dataclass(slots=True, kw_only=True)
class Settings:
    """What a whole program has: its devices, its functions, and counters of names and channels."""

    devices: int
    functions: list[str] = field(default_factory=list[str])
    names: count[int] = field(default_factory=count)
    channels: count[int] = field(default_factory=lambda: count(1))


class Block:
    """Lines in order, and the values that a next line may read.

    ``index`` is an integer that no compiler knows, for branches.
    """

    def __init__(
        self,
        draw: st.DrawFn,
        values: Sequence[Value],
        settings: Settings,
        *,
        index: Value,
        depth: int = 0,
    ) -> None:
        self.draw = draw
        self.settings = settings
        self.index = index
        self.depth = depth
        self.values = list(values)
        self.given = len(values)
        self.lines: list[str] = []
        self.read: set[str] = set()

    def inner(self, values: Sequence[Value], *, index: Value) -> Block:
        """Return an empty block one level below, which reads these values."""
        depth = self.depth + 1
        return Block(self.draw, values, self.settings, index=index, depth=depth)

    def integer(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def one_of(self, choices: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(choices))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def name(self) -> str:
        return f"%v{next(self.settings.names)}"

    def emit(self, text: str, kind: Tensor, *operands: Value) -> Value:
        """Add ``%name = text`` with a result; operands are marked as read."""
        varies = any(operand.varies for operand in operands)
        made = Value(name=self.name(), type=kind, varies=varies)
        self.read.update(operand.name for operand in operands)
        self.lines.append(f"{made.name} = {text}")
        self.values.append(made)
        return made

    def generic(
        self, kind: str, operands: Sequence[Value], result: Tensor, attributes: str = ""
    ) -> Value:
        """Add an operation in MLIR's generic form."""
        names = ", ".join(operand.name for operand in operands)
        types = ", ".join(str(operand.type) for operand in operands)
        properties = f" <{{{attributes}}}>" if attributes else ""
        text = f'"stablehlo.{kind}"({names}){properties} : ({types}) -> {result}'
        return self.emit(text, result, *operands)

    def varying(self, allowed: Callable[[Tensor], bool] = lambda _: True) -> Value | None:
        """Draw a value that no compiler knows; None where there is none."""
        fitting = [value for value in self.values if value.varies and allowed(value.type)]
        return self.one_of(fitting) if fitting else None

    def value(self, allowed: Callable[[Tensor], bool] = lambda _: True) -> Value:
        """Draw a value of an allowed type; a constant where there is none."""
        fitting = [value for value in self.values if allowed(value.type)]
        if fitting:
            return self.one_of(fitting)
        while not allowed(kind := self.draw(tensors())):
            pass
        return self.constant(kind)

    def like(self, kind: Tensor) -> Value:
        """Draw a value of one type; a constant where there is none."""
        fitting = [value for value in self.values if value.type == kind]
        return self.one_of(fitting) if fitting else self.constant(kind)

    def constant(self, kind: Tensor, number: int | None = None) -> Value:
        """Add a splat."""
        chosen = self.integer(0, 3) if number is None else number
        literal = {"i1": "true" if chosen % 2 else "false"}.get(kind.element, f"{chosen}")
        if kind.is_float:
            literal = f"{chosen}.5"
        return self.emit(f"stablehlo.constant dense<{literal}> : {kind}", kind)

    def unread(self) -> list[Value]:
        """Return what this block makes and no line reads."""
        made = self.values[self.given :]
        return [value for value in made if value.name not in self.read]

    def used_up(self) -> Value:
        """Add every value that no operation reads to the result, so that nothing is unused."""
        scalar = Tensor(element="f32")
        added = self.constant(scalar, 1)
        for value in self.unread():
            if value is not added:
                added = self.binary("add", added, self._one_of_all(value))
        return added

    def binary(self, kind: str, left: Value, right: Value) -> Value:
        return self.generic(kind, (left, right), left.type)

    def _one_of_all(self, value: Value) -> Value:
        number = value
        if value.type.element != "f32":
            number = self.generic("convert", (value,), value.type.of("f32"))
        if not value.type.rank:
            return number
        scalar = Tensor(element="f32")
        start = self.constant(scalar, 0)
        return self.reduced("add", number, start, range(value.type.rank))

    def reduced(self, kind: str, operand: Value, start: Value, over: Sequence[int]) -> Value:
        """Add a reduction over some dimensions."""
        shape = [size for dim, size in enumerate(operand.type.shape) if dim not in over]
        result, scalar = operand.type.shaped(*shape), operand.type.shaped()
        text = (
            f'"stablehlo.reduce"({operand.name}, {start.name}) <{{dimensions = {dims(over)}}}> '
            f"{body(kind, scalar)} : ({operand.type}, {scalar}) -> {result}"
        )
        return self.emit(text, result, operand, start)


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    """Draw up to four sizes of few elements."""
    drawn = st.lists(st.sampled_from(_SIZES), max_size=_MOST_RANK).map(tuple)
    return drawn.filter(lambda shape: prod(shape) <= MOST_ELEMENTS)


def tensors() -> st.SearchStrategy[Tensor]:
    """Draw a type, most often of floats."""
    elements = st.sampled_from((*FLOATS, *FLOATS, *INTEGERS, "i1"))
    return st.builds(Tensor, element=elements, shape=shapes())


def dims(numbers: Sequence[int]) -> str:
    """Return ``array<i64: 1, 2>``."""
    return f"array<i64: {', '.join(map(str, numbers))}>" if numbers else "array<i64>"


def body(kind: str, scalar: Tensor) -> str:
    """Return the region of a reduction with one operation."""
    return (
        f"({{\n^bb0(%l: {scalar}, %r: {scalar}):\n%o = stablehlo.{kind} %l, %r : {scalar}\n"
        f"stablehlo.return %o : {scalar}\n}})"
    )
