"""Parse, transform, print and inspect MLIR modules with jaxlib.

jaxlib's bindings are imported on first use: they take longer than everything else in hespas
together. CHLO is legalised except products of groups of rows, which jaxlib's pass would open into
one masked product of all rows for each group, as XLA's GPU compiler does by default: a cost that
the operation itself does not have.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Container, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from math import prod
from typing import Any

from hespas.base.figures import MOST_DIGITS
from hespas.base.frozen import frozen
from hespas.errors import ProgramError, UnsupportedError
from hespas.xla.mlir.text import read_integer, split_list

PORTABLE_PRODUCER = b"StableHLO_v"
BYTECODE_MAGIC = b"ML\xefR"


def is_jax_export(source: bytes) -> bool:
    """Return whether the bytes may come from `jax.export.Exported.serialize`."""
    return not source.startswith(BYTECODE_MAGIC) and BYTECODE_MAGIC in source


@frozen
class MlirModule:
    """A parsed module; the handle belongs to jaxlib."""

    handle: Any
    source: str


@frozen
class _Bindings:
    ir: Any
    stablehlo: Any
    context: Any


_HELD_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_held() -> Generator[None]:
    """Hold signals back, which would crash a loading library."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@lru_cache(maxsize=1)
@signals_held()
def _bindings() -> _Bindings:
    # One thread: numpy, which jaxlib's bindings import, otherwise starts a pool it never uses.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    libraries = "jaxlib.mlir._mlir_libs."
    stablehlo = import_module(libraries + "_stablehlo")
    context = new_context()
    stablehlo.register_dialect(context)
    import_module(libraries + "_chlo").register_dialect(context)
    import_module(libraries + "_sdy").register_dialect(context)
    import_module(libraries + "_mlirHlo").register_mhlo_dialect(context)
    return _Bindings(ir=import_module("jaxlib.mlir.ir"), stablehlo=stablehlo, context=context)


def new_context() -> Any:
    """Return a context with the dialects that jaxlib always has."""
    ir = import_module("jaxlib.mlir.ir")
    context = ir.Context()
    # Two threads that find errors at once would each wait for Python's lock, which this thread has.
    context.enable_multithreading(False)
    registry = ir.DialectRegistry()
    import_module("jaxlib.mlir._mlir_libs._jax_mlir_ext").register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    return context


def bytecode_of(handle: Any) -> bytes:
    """Return the bytecode of a module.

    It exists even for modules whose printing crashes.
    """
    buffer = BytesIO()
    handle.operation.write_bytecode(buffer)
    return buffer.getvalue()


@lru_cache(maxsize=1)
@signals_held()
def module_pass_manager() -> Any:
    """Return jaxlib's pass managers, with all passes registered."""
    import_module("jaxlib.mlir._mlir_libs._mlirHlo").register_mhlo_passes()
    import_module("jaxlib.mlir._mlir_libs._stablehlo").register_stablehlo_passes()
    return import_module("jaxlib.mlir.passmanager").PassManager


def parse_mlir(source: bytes, *, name: str) -> MlirModule:
    """Parse StableHLO text, MLIR bytecode or a portable artifact.

    ``name`` stands in messages and locations. Raises `ProgramError` with the first diagnostic's
    line and column.
    """
    _refuse_lone_done(source, name)
    _refuse_large_results(source, name)
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


def _refuse_lone_done(source: bytes, name: str) -> None:
    """Refuse input that makes jaxlib 0.10.2's verifier read invalid memory.

    Raises `ProgramError`.
    """
    if b"mhlo.async_done" in source and b"mhlo.async_start" not in source:
        raise ProgramError("it holds an mhlo.async_done, but no mhlo.async_start", location=name)


_MOST_RESULTS = 10**6
_LARGE_RESULT = re.compile(rb"%[\w$.-]+(#(\d{7,}))")


def _refuse_large_results(source: bytes, name: str) -> None:
    """Refuse large result numbers, for which MLIR's parser allocates memory.

    The parser allocates memory for each result up to the number. Raises `ProgramError`.
    """
    if source.startswith(BYTECODE_MAGIC):
        return
    for match in _LARGE_RESULT.finditer(source):
        if len(match[2]) > MOST_DIGITS or int(match[2]) >= _MOST_RESULTS:
            line = source.count(b"\n", 0, match.start()) + 1
            message = f"the result {match[1][:20].decode()} is of no operation"
            raise ProgramError(message, location=f"{name}:{line}")


def _decoded(source: bytes, name: str) -> str:
    try:
        return source.decode()
    except UnicodeDecodeError as error:
        raise ProgramError(
            f"neither text nor MLIR bytecode (byte {error.start} is not UTF-8)",
            location=name,
            hint="give StableHLO text, bytecode or a portable artifact",
        ) from error


def _parse_error(error: Exception, name: str) -> ProgramError:
    diagnostics: list[Any] = getattr(error, "error_diagnostics", [])
    if not diagnostics:
        return ProgramError(f"cannot be parsed: {one_line(error)}", location=name)
    first = diagnostics[0]
    message = " ".join(str(first.message).split())
    return ProgramError(
        f"cannot be parsed: {message}", location=location_text(str(first.location), name) or name
    )


def one_line(error: Exception) -> str:
    """Return an error's text without line breaks."""
    return " ".join(str(error).split())


_FILE_LOCATION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_NAMED_LOCATION = re.compile(r'loc\("((?:[^"\\]|\\.)*)"')


@lru_cache(maxsize=8192)
def location_text(text: str, source: str) -> str:
    """Return ``file:line:column`` and name of an MLIR location, or nothing."""
    match = _FILE_LOCATION.search(text)
    name = _NAMED_LOCATION.match(text)
    location = f"{source if match[1] == '-' else match[1]}:{match[2]}:{match[3]}" if match else ""
    if name is None or (match is not None and name[1] == match[1]):
        return location
    return f"{name[1]} ({location})" if location else name[1]


def run_passes(module: MlirModule, pipeline: str) -> None:
    """Run an MLIR pass pipeline on a module, in place.

    Raises `ProgramError` if a pass fails.
    """
    bindings = _bindings()
    with bindings.context:
        try:
            passes = module_pass_manager().parse(pipeline)
            passes.run(module.handle.operation)
        except (bindings.ir.MLIRError, ValueError) as error:
            raise _parse_error(error, module.source) from error


def module_attributes(module: MlirModule) -> dict[str, str]:
    """Return the module's attributes by name, as MLIR text."""
    return attribute_texts(module.handle.operation, {})


def operations_in(
    root: Any, names: Container[str] | None = None, *, outer_first: bool = False
) -> list[Any]:
    """Return an operation and those inside, or those of ``names``.

    A walk makes no objects of the classes of dialects, which take longer to import than most
    programs to read.
    """
    ir = import_module("jaxlib.mlir.ir")
    operations: list[Any] = []

    def visit(op: Any) -> Any:
        if names is None or op.name in names:
            operations.append(op)
        return ir.WalkResult.ADVANCE

    root.walk(visit, ir.WalkOrder.PRE_ORDER if outer_first else ir.WalkOrder.POST_ORDER)
    return operations


def _top_operations(module: MlirModule) -> list[Any]:
    """Return a module's own operations, such as functions."""
    ir = import_module("jaxlib.mlir.ir")
    root, operations = module.handle.operation, list[Any]()

    def visit(op: Any) -> Any:
        if op == root:
            return ir.WalkResult.ADVANCE
        operations.append(op)
        return ir.WalkResult.SKIP

    root.walk(visit, ir.WalkOrder.PRE_ORDER)
    return operations


def operation_names(module: MlirModule, names: Container[str]) -> set[str]:
    """Return which of some operations a module has.

    Names are with the dialect.
    """
    return {op.name for op in operations_in(module.handle.operation, names)}


def main_of(module: MlirModule) -> Any:
    """Return the function named main; raise `ProgramError` without one."""
    for op in _top_operations(module):
        if op.name == "func.func" and op.attributes["sym_name"].value == "main":
            return op
    raise ProgramError("the program has no function named main", location=module.source)


def entries_of(attribute: Any) -> list[dict[str, Any]]:
    """Return the attribute dictionaries of a function's arguments or results."""
    return [{entry.name: entry.attr for entry in attributes} for attributes in attribute]


def listed(entries: Iterable[Mapping[str, Any]]) -> Any:
    """Return the attribute that `entries_of` reads, in the current context."""
    ir = import_module("jaxlib.mlir.ir")
    return ir.ArrayAttr.get([ir.DictAttr.get(dict(entry)) for entry in entries])


OF_FUNCTIONS = ("arg_attrs", "res_attrs")
"""The keys under which a function has the attributes of its arguments and results."""


def drop_attributes(root: Any, names: Container[str]) -> None:
    """Drop attributes of operations, arguments and results."""
    for op in operations_in(root):
        attributes = op.attributes
        for name in [name for name in attributes if name in names]:
            del attributes[name]
        for kind in OF_FUNCTIONS if op.name == "func.func" else ():
            if kind in attributes:
                attributes[kind] = listed(
                    {name: attr for name, attr in entry.items() if name not in names}
                    for entry in entries_of(attributes[kind])
                )


def erase_copies(root: Any) -> int:
    """Erase a program's copies; return their number."""
    copies = operations_in(root, {"mhlo.copy"})
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()
    return len(copies)


def declared_devices(module: MlirModule) -> int:
    """Return a module's number of devices; 1 by default."""
    attributes = module_attributes(module)
    counts = (attributes.get(f"mhlo.num_{name}", "1") for name in ("replicas", "partitions"))
    return prod(read_integer(count) or 1 for count in counts)


@frozen
class Symbol:
    """A module-level symbol; the handle belongs to jaxlib."""

    name: str
    op_name: str
    attributes: Mapping[str, str]
    handle: Any


@lru_cache(maxsize=1)
def module_symbols(module: MlirModule) -> Mapping[str, Symbol]:
    """Return a module's top-level operations by name.

    The last module's are remembered, because all readers of a program ask. A file without a
    ``module`` has MLIR's implicit one, which is read the same way.
    """
    symbols: dict[str, Symbol] = {}
    for op in _top_operations(module):
        texts = attribute_texts(op, {})
        name = texts.get("sym_name", "").strip('"')
        symbols[name] = Symbol(name=name, op_name=op.name, attributes=texts, handle=op)
    return symbols


def attribute_texts(op: Any, cache: dict[Any, str]) -> dict[str, str]:
    """Return an operation's attribute texts by name.

    ``cache`` has the texts by attribute.
    """
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
    """Cut an attribute's text out of the printed operation."""
    generic: str = op.get_asm(print_generic_op_form=True, skip_regions=True)
    start, end = generic.find("<{"), generic.find("}>")
    for part in split_list(generic[start + 2 : end] if 0 <= start < end else ""):
        attribute, _, value = part.partition(" = ")
        if attribute == name:
            return value
    raise UnsupportedError(f"attribute {name} cannot be read")


def declare_counts(handle: Any, *, replicas: int | None, partitions: int | None) -> None:
    """Declare a module's numbers of replicas and partitions.

    A number that is None is left as the module has it.
    """
    ir = import_module("jaxlib.mlir.ir")
    counts = {"mhlo.num_partitions": partitions, "mhlo.num_replicas": replicas}
    with handle.context:
        number = ir.IntegerType.get_signless(32)
        for name, count in counts.items():
            if count is not None:
                handle.operation.attributes[name] = ir.IntegerAttr.get(number, count)


def printed(handle: Any, *, with_locations: bool) -> bytes:
    """Print a parsed module; locations hold name stacks and lines."""
    text: str = handle.operation.get_asm(enable_debug_info=with_locations)
    return text.encode()


def holds_locations(source: bytes) -> bool:
    """Return whether a program's bytes hold locations."""
    return source.startswith(BYTECODE_MAGIC) or b"loc(" in source


RAGGED_DOT = "chlo.ragged_dot"
_RAGGED = b"ragged_dot"
"""Stands in bytecode too, where the dialect stands elsewhere."""
_CUSTOM_CALL = "stablehlo.custom_call"
_TARGET = "call_target_name"
_PASSES = "builtin.module(func.func(chlo-legalize-to-stablehlo))"


def legalise_chlo(module: MlirModule, source: bytes) -> None:
    """Replace CHLO operations by StableHLO's, except ``chlo.ragged_dot``, in place.

    ``source`` is what the module was parsed from. Raises `ProgramError` if the pass fails.
    """
    if b"chlo" not in source:
        return
    if _RAGGED not in source:
        run_passes(module, _PASSES)
        return
    ir = import_module("jaxlib.mlir.ir")
    root = module.handle.operation
    with module.handle.context:
        # The pass leaves calls alone.
        for op in operations_in(root, {RAGGED_DOT}):
            target = {_TARGET: ir.StringAttr.get(RAGGED_DOT)}
            _replace_op(ir, op, _CUSTOM_CALL, target | _attributes(op))
        run_passes(module, _PASSES)
        for op in operations_in(root, {_CUSTOM_CALL}):
            if op.attributes[_TARGET].value != RAGGED_DOT:
                continue
            attributes = {name: value for name, value in _attributes(op).items() if name != _TARGET}
            _replace_op(ir, op, RAGGED_DOT, attributes)


def _attributes(op: Any) -> dict[str, Any]:
    return {name: op.attributes[name] for name in op.attributes}


def _replace_op(ir: Any, op: Any, name: str, attributes: dict[str, Any]) -> None:
    replacement = ir.Operation.create(
        name,
        results=[result.type for result in op.results],
        operands=list(op.operands),
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for old, new in zip(op.results, replacement.results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()
