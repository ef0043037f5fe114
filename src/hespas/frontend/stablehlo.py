"""StableHLO text, bytecode and portable artifacts to `Program`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from hespas.errors import ProgramError, UnsupportedError
from hespas.frontend.aliases import read_aliases
from hespas.frontend.attributes import attribute_readers
from hespas.frontend.loops import trip_count
from hespas.frontend.manual import has_manual_computations, open_manual_computations
from hespas.frontend.meshes import Mesh, read_mesh
from hespas.frontend.options import NO_OPTIONS, LoadOptions, Told
from hespas.frontend.records import Reader
from hespas.frontend.sharding import refuse_unpartitioned, without_idle_constraints
from hespas.program.attrs import CaseAttrs, WhileAttrs
from hespas.program.program import Function, Program, called_functions, nested_ops
from hespas.xla.mlir import (
    MlirModule,
    Symbol,
    module_attributes,
    module_symbols,
    parse_mlir,
    run_passes,
)
from hespas.xla.mlir_functions import FunctionReader, OpRecord
from hespas.xla.mlir_text import read_integer, read_type

__all__ = ["NO_OPTIONS", "LoadOptions", "load_stablehlo"]

_CHLO = b"chlo"
_KNOWN_DIALECTS = frozenset({"stablehlo", "mhlo", "func", "sdy"})


def load_stablehlo(source: bytes, *, name: str, options: LoadOptions = NO_OPTIONS) -> Program:
    """Read a program; ``name`` stands in messages.

    CHLO operations are legalised first, and ``sdy.manual_computation`` (JAX's shard_map) is
    opened. Raises `ProgramError` where the source cannot be read, `UnsupportedError` for what
    has no model, `UnpartitionedError` for a sharded program without its per-device form, and
    `ConfigError` for options that speak of a line without a loop or branch.
    """
    if not source.strip():
        raise ProgramError("the file is empty", location=name)
    module = parse_mlir(source, name=name)
    if _CHLO in source:
        run_passes(module, "builtin.module(func.func(chlo-legalize-to-stablehlo))")
    symbols = module_symbols(module)
    meshes = {
        symbol.name: read_mesh(symbol.attributes["mesh"])
        for symbol in symbols.values()
        if symbol.op_name == "sdy.mesh"
    }
    attributes = module_attributes(module)
    told = Told(options=options)
    functions = _read_functions(module, symbols, meshes, told)
    told.check(name)
    program = Program(
        functions=functions,
        replicas=_count(attributes, "mhlo.num_replicas"),
        partitions=_count(attributes, "mhlo.num_partitions"),
        source=name,
        module_name=attributes.get("sym_name", "module").strip('"'),
        assumptions=tuple(told.assumptions),
        aliases=read_aliases(functions["main"], symbols["main"].attributes, attributes),
    )
    return _per_device(program, meshes, symbols["main"].attributes, attributes)


def _per_device(
    program: Program,
    meshes: Mapping[str, Mesh],
    main_attributes: Mapping[str, str],
    module_attributes: Mapping[str, str],
) -> Program:
    """Return the program of one device; `UnpartitionedError` where there is none yet."""
    constrained = without_idle_constraints(program) if meshes else program
    if meshes and has_manual_computations(constrained):
        opened = open_manual_computations(constrained, meshes, main_attributes)
        refuse_unpartitioned(opened, {}, {})
        return opened
    refuse_unpartitioned(constrained, main_attributes, module_attributes)
    return constrained


def _count(attributes: Mapping[str, str], name: str) -> int | None:
    text = attributes.get(name)
    return None if text is None else read_integer(text)


def _read_functions(
    module: MlirModule, symbols: Mapping[str, Symbol], meshes: Mapping[str, Mesh], told: Told
) -> dict[str, Function]:
    control_flow: dict[str, Reader] = {
        "while": partial(_while, told=told),
        "case": partial(_case, told=told),
        "if": partial(_case, told=told),
    }
    readers = attribute_readers(meshes) | control_flow

    def find_reader(dialect: str, kind: str) -> Reader | None:
        if dialect not in _KNOWN_DIALECTS:
            raise UnsupportedError(
                f"operations of dialect {dialect} are not supported",
                hint="convert the program to StableHLO",
            )
        return readers.get(kind)

    walker = FunctionReader(source=module.source, find_reader=find_reader, read_type=read_type)
    functions: dict[str, Function] = {}
    wanted = ["main"]
    while wanted:
        name = wanted.pop()
        if name in functions:
            continue
        symbol = _function_symbol(symbols, name, module.source)
        functions[name] = walker.function(symbol)
        wanted.extend(called_functions(nested_ops(functions[name].body)))
    return functions


def _function_symbol(symbols: Mapping[str, Symbol], name: str, source: str) -> Symbol:
    symbol = symbols.get(name)
    if symbol is not None and symbol.op_name == "func.func":
        return symbol
    if name != "main":
        raise ProgramError(f"function @{name} is called but not defined", location=source)
    known = [found.name for found in symbols.values() if found.op_name == "func.func"]
    raise ProgramError(
        "there is no function named main",
        location=source,
        hint=f"rename the entry function (found {', '.join(known[:5]) or 'no functions'})",
    )


_LINE = re.compile(r":(\d+):\d+\)?$")


def _line(location: str) -> str:
    match = _LINE.search(location)
    return match[1] if match else ""


def _while(record: OpRecord, told: Told) -> WhileAttrs:
    condition, body = record.regions
    count = trip_count(record.operands, condition, body, record.producer)
    return told.loop(_line(record.location), record.location, count)


def _case(record: OpRecord, told: Told) -> CaseAttrs:
    return told.branch(_line(record.location), record.location, len(record.regions))
