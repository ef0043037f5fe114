"""Parse MLIR with jaxlib and walk it into our operations.

jaxlib's bindings are imported on first use: they take longer than everything else in hespas
together. What an attribute *means* is not decided here; a reader given by the caller turns its
text into `Attrs`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any

import msgspec

from hespas.errors import ProgramError, UnsupportedError
from hespas.program.attrs import NO_ATTRS, Attrs
from hespas.program.program import Block, Function, Op, Value
from hespas.program.types import Type
from hespas.xla.mlir_text import split_list

PORTABLE_PRODUCER = b"StableHLO_v"
BYTECODE_MAGIC = b"ML\xefR"

AttrReader = Callable[["OpRecord"], Attrs]
TypeReader = Callable[[str], Type]


class OpRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What an attribute reader sees of an operation.

    ``producer`` finds the operation that made a value, where one did.
    """

    attributes: Mapping[str, str]
    operands: tuple[Value, ...]
    regions: tuple[Block, ...]
    location: str
    producer: Mapping[Value, Op]


@dataclass(frozen=True, slots=True, kw_only=True)
class MlirModule:
    """A parsed module; the handle belongs to jaxlib."""

    handle: Any
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bindings:
    ir: Any
    stablehlo: Any
    context: Any


@lru_cache(maxsize=1)
def _bindings() -> _Bindings:
    # One thread: numpy, which jaxlib's bindings import, otherwise starts a pool it never uses.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    libraries = "jaxlib.mlir._mlir_libs."
    ir = import_module("jaxlib.mlir.ir")
    extension = import_module(libraries + "_jax_mlir_ext")
    stablehlo = import_module(libraries + "_stablehlo")
    context = ir.Context()
    registry = ir.DialectRegistry()
    extension.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    import_module(libraries + "_chlo").register_dialect(context)
    import_module(libraries + "_sdy").register_dialect(context)
    import_module(libraries + "_mlirHlo").register_mhlo_dialect(context)
    return _Bindings(ir=ir, stablehlo=stablehlo, context=context)


@lru_cache(maxsize=1)
def _pass_manager() -> Any:
    import_module("jaxlib.mlir._mlir_libs._mlirHlo").register_mhlo_passes()
    import_module("jaxlib.mlir._mlir_libs._stablehlo").register_stablehlo_passes()
    return import_module("jaxlib.mlir.passmanager").PassManager


def parse_mlir(source: bytes, *, name: str) -> MlirModule:
    """Parse StableHLO text, MLIR bytecode or a portable artifact.

    ``name`` stands in messages and locations. Raises `ProgramError` with the first
    diagnostic's line and column.
    """
    bindings = _bindings()
    with bindings.context:
        try:
            if source.startswith(BYTECODE_MAGIC) and PORTABLE_PRODUCER in source[:64]:
                handle = bindings.stablehlo.deserialize_portable_artifact(bindings.context, source)
            elif source.startswith(BYTECODE_MAGIC):
                handle = bindings.ir.Module.parse(source, bindings.context)
            else:
                handle = bindings.ir.Module.parse(_decoded(source, name), bindings.context)
        except (bindings.ir.MLIRError, ValueError) as error:
            raise _parse_error(error, name) from error
    return MlirModule(handle=handle, source=name)


def _decoded(source: bytes, name: str) -> str:
    try:
        return source.decode()
    except UnicodeDecodeError as error:
        raise ProgramError(
            f"neither text nor MLIR bytecode (byte {error.start} is not UTF-8)",
            place=name,
            mend="give StableHLO text, bytecode or a portable artifact",
        ) from error


def _parse_error(error: Exception, name: str) -> ProgramError:
    diagnostics: list[Any] = getattr(error, "error_diagnostics", [])
    if not diagnostics:
        return ProgramError(f"cannot be parsed: {' '.join(str(error).split())}", place=name)
    first = diagnostics[0]
    message = " ".join(str(first.message).split())
    return ProgramError(
        f"cannot be parsed: {message}", place=_location(str(first.location), name) or name
    )


_FILE_LOCATION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_NAMED_LOCATION = re.compile(r'loc\("((?:[^"\\]|\\.)*)"')


@lru_cache(maxsize=8192)
def _location(text: str, source: str) -> str:
    """Return ``file:line:column`` of an MLIR location, with the name it carries, or nothing."""
    found = _FILE_LOCATION.search(text)
    name = _NAMED_LOCATION.match(text)
    place = f"{source if found[1] == '-' else found[1]}:{found[2]}:{found[3]}" if found else ""
    if name is None or (found is not None and name[1] == found[1]):
        return place
    return f"{name[1]} ({place})" if place else name[1]


def run_passes(module: MlirModule, pipeline: str) -> None:
    """Run an MLIR pass pipeline on a module, in place; `ProgramError` where it fails."""
    bindings = _bindings()
    with bindings.context:
        try:
            passes = _pass_manager().parse(pipeline)
            passes.run(module.handle.operation)
        except (bindings.ir.MLIRError, ValueError) as error:
            raise _parse_error(error, module.source) from error


def module_attributes(module: MlirModule) -> dict[str, str]:
    """Return the module's attributes by name, as MLIR text."""
    return _attribute_texts(module.handle.operation, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A module-level symbol: its name, operation name, attributes and jaxlib handle."""

    name: str
    op_name: str
    attributes: Mapping[str, str]
    handle: Any


def module_symbols(module: MlirModule) -> dict[str, Symbol]:
    """Return every top-level operation that has a name, by that name.

    A file without a ``module`` has MLIR's implicit one, which this sees the same way.
    """
    symbols: dict[str, Symbol] = {}
    for view in module.handle.body.operations:
        op = view.operation
        texts = _attribute_texts(op, {})
        name = texts.get("sym_name", "").strip('"')
        symbols[name] = Symbol(name=name, op_name=op.name, attributes=texts, handle=op)
    return symbols


def _attribute_texts(op: Any, cache: dict[Any, str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    attributes = op.attributes
    if not len(attributes):
        return texts
    for name in attributes:
        try:
            attribute = attributes[name]
        except TypeError:
            # jaxlib has no Python class for some attributes, such as complex constants.
            texts[name] = _printed_property(op, name)
            continue
        text = cache.get(attribute)
        if text is None:
            text = cache[attribute] = str(attribute)
        texts[name] = text
    return texts


def _printed_property(op: Any, name: str) -> str:
    """Cut an attribute's text out of the printed operation, where it stands in ``<{ }>``."""
    generic: str = op.get_asm(print_generic_op_form=True, skip_regions=True)
    start, end = generic.find("<{"), generic.find("}>")
    for part in split_list(generic[start + 2 : end] if 0 <= start < end else ""):
        found, _, value = part.partition(" = ")
        if found == name:
            return value
    raise UnsupportedError(f"attribute {name} cannot be read")


@dataclass(slots=True, kw_only=True)
class FunctionReader:
    """Walks functions of one module into `Function`s, remembering texts and types it has seen.

    ``find_reader`` takes a dialect and a kind and returns what reads the attributes of such
    operations; it raises `UnsupportedError` for operations that have no place in a program.
    """

    source: str
    find_reader: Callable[[str, str], AttrReader | None]
    read_type: TypeReader
    kinds: dict[str, tuple[str, str, AttrReader | None]] = field(
        default_factory=dict[str, tuple[str, str, AttrReader | None]]
    )
    values: dict[Any, Value] = field(default_factory=dict[Any, Value])
    types: dict[Any, Type] = field(default_factory=dict[Any, Type])
    texts: dict[Any, str] = field(default_factory=dict[Any, str])
    producer: dict[Value, Op] = field(default_factory=dict[Value, Op])

    def function(self, symbol: Symbol) -> Function:
        """Read one ``func.func``; `ProgramError` where it is only declared."""
        regions = symbol.handle.regions
        if len(regions) == 0 or len(regions[0].blocks) == 0:
            raise ProgramError(f"function @{symbol.name} has no body", place=self.source)
        try:
            return Function(name=symbol.name, body=self._block(regions[0].blocks[0]))
        except ProgramError as error:
            place = self._place(symbol.handle.location) or self.source
            raise _placed(error, f"{place}: function @{symbol.name}") from error

    def _block(self, block: Any) -> Block:
        arguments = tuple(map(self._value, block.arguments))
        return Block(
            arguments=arguments,
            operations=tuple([self._op(view.operation) for view in block.operations]),
        )

    def _value(self, value: Any) -> Value:
        kind = value.type
        known = self.types.get(kind)
        if known is None:
            known = self.types[kind] = self.read_type(str(kind))
        made = self.values[value] = Value(type=known)
        return made

    def _place(self, location: Any) -> str:
        line: int = getattr(location, "start_line", 0)
        if line and location.filename == "-":
            return f"{self.source}:{line}:{location.start_col}"
        return _location(str(location), self.source)

    def _op(self, op: Any) -> Op:
        try:
            made = self._read(op)
        except ProgramError as error:
            place = self._place(op.location) or self.source
            raise _placed(error, f"{place}: {op.name}") from error
        for result in made.results:
            self.producer[result] = made
        return made

    def _read(self, op: Any) -> Op:
        dialect, kind, reader = self.kinds.get(op.name) or self._learn(op.name)
        texts = _attribute_texts(op, self.texts)
        regions = self._blocks(op.regions)
        operands = tuple(map(self.values.__getitem__, op.operands))
        results = tuple(map(self._value, op.results))
        location = self._place(op.location)
        attrs: Attrs = NO_ATTRS
        if reader is not None:
            record = OpRecord(
                attributes=texts,
                operands=operands,
                regions=regions,
                location=location,
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
            location=location,
        )

    def _learn(self, name: str) -> tuple[str, str, AttrReader | None]:
        dialect, _, kind = name.partition(".")
        found = self.kinds[name] = dialect, kind, self.find_reader(dialect, kind)
        return found

    def _blocks(self, regions: Any) -> tuple[Block, ...]:
        if not len(regions):
            return ()
        return tuple([self._block(block) for region in regions for block in region.blocks])


def _placed(error: ProgramError, place: str) -> ProgramError:
    if error.place:
        return error
    return type(error)(error.message, place=place, mend=error.mend)
