"""Walk a parsed module's functions into hespas' operations.

The caller's readers decide what an attribute *means*: they turn its text into `Attrs`.

JAX writes locations as ``loc("jit(step)/layers/dot_general"(callsite("f"("a.py":3:4) at ...)))``:
the name stack first, then the Python functions that called each other. Calls have a name of their
kind before (``"jit:"``). Passes that inline calls write ``callsite(callee at caller)``, and passes
that join operations ``fused[...]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from hespas.errors import ProgramError
from hespas.program.attrs import NO_ATTRS, Attrs
from hespas.program.program import Block, Function, Op, Value
from hespas.program.scopes import joined_scope, place_text
from hespas.program.types import TensorType, Type
from hespas.xla.mlir.module import Symbol, attribute_texts, operations_in
from hespas.xla.mlir.text import Layout, read_layouts


def name_stack(location: Any) -> str:
    """Return the name stack in a location; empty without one.

    The stack of an operation from an inlined call stands behind the call's own. An operation that
    was joined from several has the first name among them.
    """
    match type(location).__name__:
        case "NameLoc":
            name: str = location.name_str
            return name_stack(location.child_loc) if name.endswith(":") or not name else name
        case "CallSiteLoc":
            return joined_scope(_stack_of_call(location.caller), _stack_of_call(location.callee))
        case "FusedLoc":
            stacks = [name_stack(part) for part in location.locations]
            return next((stack for stack in stacks if stack), "")
        case _:
            return ""


def _stack_of_call(location: Any) -> str:
    """Return a call side's name stack; empty for functions."""
    if type(location).__name__ != "NameLoc":
        return name_stack(location)
    name: str = location.name_str
    is_function = hasattr(location.child_loc, "start_line") and not set(name) & set("/(:")
    return "" if is_function else name_stack(location)


def source_line(location: Any, source: str) -> str:
    """Return the innermost ``file:line:column``; empty without one.

    ``source`` is the name of the file that was parsed.
    """
    for file, line, column in _files(location):
        return f"{source if file == '-' else file}:{line}:{column}"
    return ""


def _files(location: Any) -> Iterator[tuple[str, int, int]]:
    match type(location).__name__:
        case "FileLineColLoc":
            yield location.filename, location.start_line, location.start_col
        case "NameLoc":
            yield from _files(location.child_loc)
        case "CallSiteLoc":
            yield from _files(location.callee)
            yield from _files(location.caller)
        case "FusedLoc":
            for part in location.locations:
                yield from _files(part)
        case _:
            return


AttrReader = Callable[["OpRecord"], Attrs]
TypeReader = Callable[[str], Type]

_LAYOUTS = frozenset({"result_layout", "xla_shape"})


class OpRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An operation as an attribute reader sees it.

    ``producer`` maps a value to the operation that made it, if one did.
    """

    attributes: Mapping[str, str]
    operands: tuple[Value, ...] = ()
    regions: tuple[Block, ...] = ()
    location: str = ""
    producer: Mapping[Value, Op] = {}


@dataclass(slots=True, kw_only=True)
class FunctionReader:
    """Walks a module's functions into `Function`s.

    ``find_reader`` takes a dialect and a kind and returns the reader of such operations'
    attributes; it raises `UnsupportedError` for operations that have no place in a program.
    ``coming`` are the operations of the function that are not read yet, outer ones first.
    """

    source: str
    find_reader: Callable[[str, str], AttrReader | None]
    read_type: TypeReader
    kinds: dict[str, tuple[str, str, AttrReader | None]] = field(
        default_factory=dict[str, tuple[str, str, AttrReader | None]]
    )
    values: dict[Any, Value] = field(default_factory=dict[Any, Value])
    types: dict[Any, Type] = field(default_factory=dict[Any, Type])
    laid_out: dict[Type, Type] = field(default_factory=dict[Type, Type])
    texts: dict[Any, str] = field(default_factory=dict[Any, str])
    places: dict[Any, tuple[str, str]] = field(default_factory=dict[Any, tuple[str, str]])
    producer: dict[Value, Op] = field(default_factory=dict[Value, Op])
    coming: Iterator[Any] = field(default_factory=lambda: iter(()))

    def function(self, symbol: Symbol) -> Function:
        """Read one ``func.func``; raise `ProgramError` if it is only declared."""
        regions = symbol.handle.regions
        if len(regions) == 0 or len(regions[0].blocks) == 0:
            raise ProgramError(f"function @{symbol.name} has no body", location=self.source)
        self.coming = iter(operations_in(symbol.handle, outer_first=True)[1:])
        try:
            return Function(name=symbol.name, body=self._block(regions[0].blocks[0]))
        except ProgramError as error:
            location = self._location_text(symbol.handle.location)
            error.location = error.location or f"{location}: function @{symbol.name}"
            raise

    def _block(self, block: Any) -> Block:
        arguments = tuple(map(self._value, block.arguments))
        return Block(
            arguments=arguments,
            operations=tuple([self._op(next(self.coming)) for _ in range(len(block.operations))]),
        )

    def _value(self, value: Any) -> Value:
        kind = value.type
        cached_type = self.types.get(kind)
        if cached_type is None:
            cached_type = self.types[kind] = self.read_type(str(kind))
        read_value = self.values[value] = Value(type=cached_type)
        return read_value

    def _with_layout(self, handle: Any, value: Value, layout: Layout) -> Value:
        kind = value.type
        if layout is None or not isinstance(kind, TensorType) or len(layout) != kind.rank:
            return value
        with_layout = replace(kind, layout=layout)
        value = self.values[handle] = Value(type=self.laid_out.setdefault(with_layout, with_layout))
        return value

    def _place(self, location: Any) -> tuple[str, str]:
        line: int = getattr(location, "start_line", 0)
        if line:
            file = location.filename
            return "", f"{self.source if file == '-' else file}:{line}:{location.start_col}"
        key = location.attr
        place = self.places.get(key)
        if place is None:
            place = self.places[key] = name_stack(location), source_line(location, self.source)
        return place

    def _location_text(self, location: Any) -> str:
        return place_text(*self._place(location)) or self.source

    def _op(self, op: Any) -> Op:
        try:
            read_op = self._read(op)
        except ProgramError as error:
            location = self._location_text(op.location)
            error.location = error.location or f"{location}: {op.name}"
            raise
        for result in read_op.results:
            self.producer[result] = read_op
        return read_op

    def _read(self, op: Any) -> Op:
        dialect, kind, reader = self.kinds.get(op.name) or self._learn(op.name)
        texts = attribute_texts(op, self.texts)
        regions = self._blocks(op.regions)
        operands = tuple(map(self.values.__getitem__, op.operands))
        results = tuple(map(self._value, op.results))
        layouts = () if _LAYOUTS.isdisjoint(texts) else read_layouts(texts)
        if len(layouts) == len(results):
            pairs = zip(op.results, results, layouts, strict=True)
            results = tuple([self._with_layout(*triple) for triple in pairs])
        scope, location = self._place(op.location)
        attrs: Attrs = NO_ATTRS
        if reader is not None:
            record = OpRecord(
                attributes=texts,
                operands=operands,
                regions=regions,
                location=place_text(scope, location),
                producer=self.producer,
            )
            attrs = reader(record)
        return Op(
            dialect=dialect,
            kind=kind,
            operands=operands,
            results=results,
            attrs=attrs,
            attributes=tuple(sorted(texts.items())) if texts else (),
            regions=regions,
            source_location=location,
            scope=scope,
        )

    def _learn(self, name: str) -> tuple[str, str, AttrReader | None]:
        dialect, _, kind = name.partition(".")
        learned = self.kinds[name] = dialect, kind, self.find_reader(dialect, kind)
        return learned

    def _blocks(self, regions: Any) -> tuple[Block, ...]:
        if not len(regions):
            return ()
        return tuple([self._block(block) for region in regions for block in region.blocks])
