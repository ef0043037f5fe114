"""StableHLO text, bytecode and portable artifacts to `Program`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from hespas.errors import ConfigError, ProgramError, UnsupportedError
from hespas.frontend.aliases import read_aliases
from hespas.frontend.attributes import attribute_readers
from hespas.frontend.loops import trip_count
from hespas.frontend.manual import has_manual_computations, open_manual_computations
from hespas.frontend.meshes import Mesh, read_mesh
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

_CHLO = b"chlo"
_KNOWN_DIALECTS = frozenset({"stablehlo", "mhlo", "func", "sdy"})
_WEIGHT_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What the user tells about a program that it doesn't tell itself.

    ``trip_counts`` maps a loop's line (``"12"``) or ``""`` (every loop whose count cannot be
    read) to how often it runs. ``branch_weights`` maps a branch operation's line, or ``""``,
    to how often each branch is taken, adding to 1.
    """

    trip_counts: Mapping[str, int] = field(default_factory=dict[str, int])
    branch_weights: Mapping[str, tuple[float, ...]] = field(
        default_factory=dict[str, tuple[float, ...]]
    )

    def __post_init__(self) -> None:
        for count in self.trip_counts.values():
            if count < 0:
                raise ConfigError(f"a trip count is {count}", mend="give 0 or more")
        for weights in self.branch_weights.values():
            if min(weights, default=-1) < 0 or abs(sum(weights) - 1) > _WEIGHT_TOLERANCE:
                raise ConfigError(
                    f"branch weights are {list(weights)}", mend="give shares that add to 1"
                )


NO_OPTIONS = LoadOptions()


def load_stablehlo(source: bytes, *, name: str, options: LoadOptions = NO_OPTIONS) -> Program:
    """Read a program; ``name`` stands in messages.

    CHLO operations are legalised first, and ``sdy.manual_computation`` (JAX's shard_map) is
    opened. Raises `ProgramError` where the source cannot be read, `UnsupportedError` for what
    has no model, `UnpartitionedError` for a sharded program without its per-device form, and
    `ConfigError` for options that speak of a line without a loop or branch.
    """
    if not source.strip():
        raise ProgramError("the file is empty", place=name)
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
    reading = _Reading(meshes=meshes, options=options)
    functions = _read_functions(module, symbols, reading)
    reading.check_lines(name)
    program = Program(
        functions=functions,
        replicas=_count(attributes, "mhlo.num_replicas"),
        partitions=_count(attributes, "mhlo.num_partitions"),
        source=name,
        module_name=attributes.get("sym_name", "module").strip('"'),
        assumptions=tuple(reading.assumptions),
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


@dataclass(slots=True, kw_only=True)
class _Reading:
    """State of one load: what was assumed on the way, and the lines the user may speak of."""

    meshes: Mapping[str, Mesh]
    options: LoadOptions
    assumptions: list[str] = field(default_factory=list[str])
    loop_lines: set[str] = field(default_factory=set[str])
    branch_lines: set[str] = field(default_factory=set[str])

    def check_lines(self, source: str) -> None:
        told = (
            ("loop", self.options.trip_counts, self.loop_lines),
            ("branch", self.options.branch_weights, self.branch_lines),
        )
        for what, options, lines in told:
            for line in options.keys() - lines - {""}:
                known = ", ".join(sorted(lines - {""}, key=int)) or "none"
                raise ConfigError(
                    f"there is no {what} on line {line}",
                    place=source,
                    mend=f"lines of a {what}: {known}",
                )


def _read_functions(
    module: MlirModule, symbols: Mapping[str, Symbol], reading: _Reading
) -> dict[str, Function]:
    control_flow: dict[str, Reader] = {
        "while": partial(_while, reading=reading),
        "case": partial(_case, reading=reading),
        "if": partial(_case, reading=reading),
    }
    readers = attribute_readers(reading.meshes) | control_flow

    def find_reader(dialect: str, kind: str) -> Reader | None:
        if dialect not in _KNOWN_DIALECTS:
            raise UnsupportedError(
                f"operations of dialect {dialect} are not supported",
                mend="convert the program to StableHLO",
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
        raise ProgramError(f"function @{name} is called but not defined", place=source)
    known = [found.name for found in symbols.values() if found.op_name == "func.func"]
    raise ProgramError(
        "there is no function named main",
        place=source,
        mend=f"rename the entry function (found {', '.join(known[:5]) or 'no functions'})",
    )


_LINE = re.compile(r":(\d+):\d+\)?$")


def _line(location: str) -> str:
    match = _LINE.search(location)
    return match[1] if match else ""


def _while(record: OpRecord, reading: _Reading) -> WhileAttrs:
    condition, body = record.regions
    told = reading.options.trip_counts
    line = _line(record.location)
    reading.loop_lines.add(line)
    count = trip_count(record.operands, condition, body, record.producer)
    if line in told and line:
        count = told[line]
    elif count is None:
        count = told.get("")
    else:
        return WhileAttrs(trip_count=count)
    if count is not None:
        reading.assumptions.append(
            f"{record.location}: the loop runs {count} times, as the user says"
        )
    return WhileAttrs(trip_count=count)


def _case(record: OpRecord, reading: _Reading) -> CaseAttrs:
    told = reading.options.branch_weights
    line = _line(record.location)
    reading.branch_lines.add(line)
    weights = told.get(line) or told.get("")
    if weights is None:
        return CaseAttrs(weights=None)
    if len(weights) != len(record.regions):
        raise ProgramError(
            f"{len(weights)} branch weights are given for {len(record.regions)} branches"
        )
    reading.assumptions.append(
        f"{record.location}: branches are taken with weights {list(weights)}, as the user says"
    )
    return CaseAttrs(weights=weights)
