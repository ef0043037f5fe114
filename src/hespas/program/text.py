"""Print functions in MLIR's generic form and recognise equal computations.

The text depends on structure only: values are numbered in order of appearance and locations are
left out, so equal regions print as equal bytes. A comment after an operation says how
often a loop runs, how often a branch is taken and how many cycles a compiler expects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from operator import attrgetter

from msgspec.structs import asdict

from hespas.program.attrs import Attrs, BitcastAttrs, CaseAttrs, WhileAttrs
from hespas.program.program import Block, Function, Op, Value
from hespas.program.types import Type

_TYPE = attrgetter("type")


def structure_key(operations: Sequence[Op], results: Sequence[Value]) -> Hashable:
    """Return a key that identifies equal computations.

    Two lists of operations with the same key compute the same.

    It is cheap and valid within one process: types are compared by identity, so in rare cases two
    equal lists get different keys; the `fingerprint` of their text then recognises them.
    """
    numbers = _Numbers()
    body = tuple([_op_key(op, numbers) for op in operations])
    return body, tuple(map(numbers.__getitem__, results))


class _Numbers(dict[Value, int]):
    """Numbers values in order of appearance.

    A value that is defined again gets a new number. That happens if equal fusions share one body.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def __missing__(self, value: Value) -> int:
        self.define(value)
        return self[value]

    def define(self, value: Value) -> None:
        """Give a value the next number."""
        self[value] = self._next
        self._next += 1


def _op_key(op: Op, numbers: _Numbers) -> Hashable:
    operands, results = op.operands, op.results
    key = (
        op.dialect,
        op.kind,
        op.attributes or op.attrs,
        op.estimated_cycles,
        tuple(map(numbers.__getitem__, operands)),
        _type_key(operands),
        _type_key(results),
    )
    if op.regions:
        control = op.attrs if isinstance(op.attrs, CaseAttrs | WhileAttrs) else None
        key = (key, control, tuple([_block_key(region, numbers) for region in op.regions]))
    for result in results:
        numbers.define(result)
    return key


def _type_key(values: Sequence[Value]) -> Hashable:
    return tuple(map(id, map(_TYPE, values)))


def _block_key(block: Block, numbers: _Numbers) -> Hashable:
    for argument in block.arguments:
        numbers.define(argument)
    body = tuple([_op_key(op, numbers) for op in block.operations])
    return _type_key(block.arguments), body


def fingerprint(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return sha256(text.encode()).hexdigest()


_PLAIN_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
TypeText = Callable[[Type], str]


@lru_cache(maxsize=8)
def _cached(type_text: TypeText) -> TypeText:
    return lru_cache(maxsize=65536)(type_text)


_ANNOTATIONS = frozenset({"mhlo.sharding", "sdy.sharding", "mhlo.frontend_attributes"})


@lru_cache(maxsize=65536)
def attributes_text(attributes: tuple[tuple[str, str], ...]) -> str:
    """Print an attribute dictionary without sharding annotations.

    The text is empty if no attribute is left.

    >>> attributes_text((("dimension", "0 : i64"), ("is_stable", "unit")))
    ' {dimension = 0 : i64, is_stable}'
    """
    parts = [
        name if text == "unit" else f"{name} = {text}"
        for name, text in attributes
        if name not in _ANNOTATIONS
    ]
    return f" {{{', '.join(parts)}}}" if parts else ""


class Printer:
    """Prints operations of one function, numbering values as they appear.

    ``type_text`` prints types: `str` with layouts, `hespas.program.types.plain_text` without.
    """

    def __init__(self, type_text: TypeText = str) -> None:
        self._type_text = _cached(type_text)
        self._names: dict[Value, str] = {}
        self._next = 0

    def arguments(self, values: Sequence[Value], prefix: str) -> str:
        """Name block arguments and print them with their types."""
        for position, value in enumerate(values):
            self._names[value] = f"%{prefix}{position}"
        return ", ".join(f"{self._names[value]}: {self._type_text(value.type)}" for value in values)

    def names(self, values: Iterable[Value]) -> str:
        """Print values by name, separated by commas."""
        return ", ".join([self._names[value] for value in values])

    def op(self, op: Op, indent: str = "    ") -> str:
        """Print one operation and its regions, without a line end."""
        operands = self.names(op.operands)
        results = self._results(op)
        inner = indent + "  "
        regions = ", ".join([self._region(region, inner) for region in op.regions])
        bodies = f" ({regions})" if regions else ""
        types = self._signature(op)
        attributes = attributes_text(op.attributes or _typed_attributes(op.attrs))
        name = f'"{op.name}"'
        note = _note(op.attrs) if regions else ""
        if op.estimated_cycles is not None:
            note += f"  // {op.estimated_cycles} cycles, as its compiler expects"
        return f"{indent}{results}{name}({operands}){bodies}{attributes} : {types}{note}"

    def _results(self, op: Op) -> str:
        if not op.results:
            return ""
        number = self._next
        self._next += 1
        if len(op.results) == 1:
            self._names[op.results[0]] = f"%{number}"
            return f"%{number} = "
        for position, result in enumerate(op.results):
            self._names[result] = f"%{number}#{position}"
        return f"%{number}:{len(op.results)} = "

    def _signature(self, op: Op) -> str:
        operands = ", ".join([self._type_text(value.type) for value in op.operands])
        results = [self._type_text(value.type) for value in op.results]
        if len(results) == 1:
            return f"({operands}) -> {results[0]}"
        return f"({operands}) -> ({', '.join(results)})"

    def types(self, values: Iterable[Value]) -> str:
        """Print the types of values, separated by commas."""
        return ", ".join([self._type_text(value.type) for value in values])

    def _region(self, block: Block, indent: str) -> str:
        prefix = f"b{self._next}_"
        self._next += 1
        header = f"^bb0({self.arguments(block.arguments, prefix)}):\n" if block.arguments else ""
        lines = "".join([f"{self.op(op, indent)}\n" for op in block.operations])
        return f"{{\n{indent[2:]}{header}{lines}{indent[2:]}}}"


def _typed_attributes(attrs: Attrs) -> tuple[tuple[str, str], ...]:
    """Return an operation's typed attributes as MLIR strings.

    Loops and branches print theirs in comments, a bitcast in its types.
    """
    if isinstance(attrs, BitcastAttrs | CaseAttrs | WhileAttrs):
        return ()
    return tuple([(name, f'"{_escaped(str(field))}"') for name, field in asdict(attrs).items()])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\5C").replace('"', "\\22")


def _note(attrs: Attrs) -> str:
    match attrs:
        case WhileAttrs(trip_count=int(count)):
            return f"  // runs {count} times"
        case CaseAttrs(weights=tuple(weights)):
            return f"  // weights {', '.join(map(str, weights))}"
        case _:
            return ""


def function_text(
    name: str,
    arguments: Sequence[Value],
    operations: Iterable[Op],
    results: Sequence[Value],
    *,
    visibility: str = "public",
    type_text: TypeText = str,
) -> str:
    """Print a function that runs ``operations`` and returns ``results``."""
    printer = Printer(type_text)
    header = printer.arguments(arguments, "arg")
    lines = "".join([f"{printer.op(op)}\n" for op in operations])
    types = printer.types(results)
    last = f"    return {printer.names(results)} : {types}\n" if results else "    return\n"
    signature = f"@{quoted_symbol(name)}({header}) -> ({types})"
    return f"  func.func {visibility} {signature} {{\n{lines}{last}  }}\n"


def private_function_text(function: Function, *, type_text: TypeText = str) -> str:
    """Print a private function."""
    body = function.body
    return function_text(
        function.name,
        body.arguments,
        body.operations[:-1],
        body.operations[-1].operands,
        visibility="private",
        type_text=type_text,
    )


def quoted_symbol(name: str) -> str:
    """Print a symbol's name, quoted if MLIR requires it.

    >>> quoted_symbol("region_0.1"), quoted_symbol("a b")
    ('region_0.1', '"a b"')
    """
    return name if _PLAIN_SYMBOL.fullmatch(name) else f'"{name}"'


def module_text(body: str, *, attributes: str = "") -> str:
    """Wrap printed functions in a module."""
    header = f"module attributes {{{attributes}}}" if attributes else "module"
    return f"{header} {{\n{body}}}\n"


@lru_cache(maxsize=4096)
def array_text(numbers: tuple[int, ...]) -> str:
    """Print ``array<i64: 0, 1>``.

    >>> array_text((0, 1)), array_text(())
    ('array<i64: 0, 1>', 'array<i64>')
    """
    return f"array<i64: {', '.join(map(str, numbers))}>" if numbers else "array<i64>"


def rows_text(rows: Sequence[tuple[int, ...]], width: int = 2) -> str:
    """Print rows of numbers as a dense tensor.

    >>> rows_text(((0, 1), (2, 3)))
    'dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>'
    """
    numbers = [list(row) for row in rows] or ""
    return f"dense<{numbers}> : tensor<{len(rows)}x{width}xi64>"
