"""Read a parsed StableHLO module as a `Program`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import msgspec

from hespas.errors import ProgramError, UnsupportedError
from hespas.frontend.attributes import Reader, attribute_readers
from hespas.frontend.host_memory import is_on_host, with_host_memory
from hespas.frontend.loops import trip_count
from hespas.frontend.mesh import Mesh, read_mesh
from hespas.frontend.overrides import Loaded, LoadOptions, OverrideRecorder, Unpartitioned
from hespas.frontend.stablehlo.sharding import per_device
from hespas.program.attrs import CaseAttrs, CollectiveAttrs, WhileAttrs
from hespas.program.program import Alias, Function, Op, Program, called_functions, nested_ops
from hespas.program.rewrite import each_op
from hespas.xla.mlir.functions import FunctionReader, OpRecord
from hespas.xla.mlir.module import (
    RAGGED_DOT,
    MlirModule,
    Symbol,
    legalise_chlo,
    module_attributes,
    module_symbols,
)
from hespas.xla.mlir.text import read_integer, read_type, split_list

_LISTED_ALIASES = "mhlo.input_output_alias"
_DIALECTS = frozenset({"stablehlo", "mhlo", "func", "sdy"})


def read_stablehlo(
    module: MlirModule, source: bytes, *, options: LoadOptions
) -> Loaded | Unpartitioned:
    """Return one device's program, or why there is none.

    CHLO operations are legalised first, which changes the module; a ``chlo.ragged_dot`` stays.
    ``source`` is what was parsed. JAX's shard_map (``sdy.manual_computation``) is opened. Raises
    `ProgramError` for a module that is no program, `UnsupportedError` for an operation without a
    model, and `ConfigError` for options that name a line without a loop or branch.
    """
    legalise_chlo(module, source)
    symbols = module_symbols(module)
    meshes = {
        symbol.name: read_mesh(symbol.attributes["mesh"])
        for symbol in symbols.values()
        if symbol.op_name == "sdy.mesh"
    }
    attributes = module_attributes(module)
    overrides = OverrideRecorder(options=options)
    functions = _read_functions(module, symbols, meshes, overrides)
    main_attributes = symbols["main"].attributes
    program = Program(
        functions=functions,
        replicas=_count(attributes, "mhlo.num_replicas"),
        partitions=_count(attributes, "mhlo.num_partitions"),
        source=module.source,
        module_name=attributes.get("sym_name", "module").strip('"'),
        assumptions=tuple(overrides.assumptions),
        aliases=_read_aliases(functions["main"], main_attributes, attributes),
    )
    local = per_device(program, meshes, main_attributes, attributes)
    if isinstance(local, Unpartitioned):
        # Programs of one device need not wait for it.
        from hespas.frontend.stablehlo.elementwise import divided_alike  # noqa: PLC0415

        local = replace(local, undivided=program)
        divided = divided_alike(program, meshes, main_attributes)
        if divided is None:
            return _with_tail(local, program, meshes, symbols["main"].attributes, attributes)
        used = overrides.used(module.source)
        return replace(local, divided=Loaded(program=divided, used=used, undivided=program))
    arguments, results = (
        _on_host(main_attributes.get(name, "[]"), module.source)
        for name in ("arg_attrs", "res_attrs")
    )
    return Loaded(
        program=with_host_memory(local, arguments=arguments, results=results),
        used=overrides.used(module.source),
    )


def _with_tail(
    local: Unpartitioned,
    program: Program,
    meshes: Mapping[str, Mesh],
    main_attributes: Mapping[str, str],
    attributes: Mapping[str, str],
) -> Unpartitioned:
    """Add the end of a program that takes no partitioner."""
    from hespas.frontend.stablehlo.tail import tail_of  # noqa: PLC0415 - few are sharded

    if _LISTED_ALIASES in attributes:
        return local
    return replace(local, tail=tail_of(program, meshes, main_attributes))


_MEMORY_KIND = re.compile(r'mhlo\.memory_kind = "([^"]*)"')


def _on_host(attributes: str, source: str) -> list[int]:
    kinds = [_MEMORY_KIND.search(entry) for entry in split_list(attributes[1:-1])]
    return [
        number
        for number, kind in enumerate(kinds)
        if kind is not None and is_on_host(kind[1], location=source)
    ]


def _count(attributes: Mapping[str, str], name: str) -> int | None:
    text = attributes.get(name)
    return None if text is None else read_integer(text)


def _read_functions(
    module: MlirModule,
    symbols: Mapping[str, Symbol],
    meshes: Mapping[str, Mesh],
    overrides: OverrideRecorder,
) -> dict[str, Function]:
    control_flow: dict[str, Reader] = {
        "while": partial(_while, overrides=overrides),
        "case": partial(_case, overrides=overrides),
        "if": partial(_case, overrides=overrides, is_predicate=True),
    }
    readers = attribute_readers(meshes) | control_flow

    def find_reader(dialect: str, kind: str) -> Reader | None:
        if dialect not in _DIALECTS and f"{dialect}.{kind}" != RAGGED_DOT:
            raise UnsupportedError(
                f"operations of dialect {dialect} are not supported",
                hint="convert the program to StableHLO",
            )
        return readers.get(kind)

    walker = FunctionReader(source=module.source, find_reader=find_reader, read_type=read_type)
    functions: dict[str, Function] = {}
    pending = ["main"]
    while pending:
        name = pending.pop()
        if name in functions:
            continue
        symbol = _function_symbol(symbols, name, module.source)
        function = walker.function(symbol)
        body = each_op(function.body, _with_exchange_kind)
        functions[name] = Function(name=name, body=body)
        pending.extend(called_functions(nested_ops(functions[name].body)))
    return functions


def _with_exchange_kind(op: Op) -> Op:
    is_call = op.kind == "custom_call" and isinstance(op.attrs, CollectiveAttrs)
    return msgspec.structs.replace(op, dialect="mhlo", kind="ragged_all_to_all") if is_call else op


def _function_symbol(symbols: Mapping[str, Symbol], name: str, source: str) -> Symbol:
    symbol = symbols.get(name)
    if symbol is not None and symbol.op_name == "func.func":
        return symbol
    if name != "main":
        raise ProgramError(f"function @{name} is called but not defined", location=source)
    defined = [symbol.name for symbol in symbols.values() if symbol.op_name == "func.func"]
    raise ProgramError(
        "there is no function named main",
        location=source,
        hint=f"rename the entry function (found {', '.join(defined[:5]) or 'no functions'})",
    )


_LINE = re.compile(r":(\d+):\d+\)?$")


def _line(location: str) -> str:
    match = _LINE.search(location)
    return match[1] if match else ""


def _while(record: OpRecord, overrides: OverrideRecorder) -> WhileAttrs:
    condition, body = record.regions
    count = trip_count(record.operands, condition, body, record.producer)
    return overrides.loop(_line(record.location), record.location, count)


def _case(
    record: OpRecord, overrides: OverrideRecorder, *, is_predicate: bool = False
) -> CaseAttrs:
    line, branches = _line(record.location), len(record.regions)
    return overrides.branch(line, record.location, branches, is_predicate=is_predicate)


_LISTED_ALIAS = re.compile(
    r"parameter_index = array<i64>, parameter_number = (\d+) : i64\}, "
    r"output_index = array<i64(?:: (\d+))?>\}"
)
_ARGUMENT_ALIAS = re.compile(r"tf\.aliasing_output = (\d+) : i32")
_DONOR = re.compile(r"jax\.buffer_donor = true")


def _read_aliases(
    main: Function, main_attributes: Mapping[str, str], attributes: Mapping[str, str]
) -> tuple[Alias, ...]:
    """Return which results may overwrite which arguments, sorted.

    XLA lists the aliases on the module (``mhlo.input_output_alias``). JAX declares them on the
    arguments, either with the result (``tf.aliasing_output``) or for any result
    (``jax.buffer_donor``). As in XLA, the first result of equal type without an argument takes such
    a donated argument.
    """
    listed = attributes.get(_LISTED_ALIASES, "")
    entries = split_list(main_attributes.get("arg_attrs", "[]")[1:-1])
    argument_of = {
        int(result or 0): int(number) for number, result in _LISTED_ALIAS.findall(listed)
    }
    for argument, entry in enumerate(entries):
        alias = _ARGUMENT_ALIAS.search(entry)
        if alias is not None:
            argument_of[int(alias[1])] = argument
    donors = [position for position, entry in enumerate(entries) if _DONOR.search(entry)]
    argument_of.update(_results_of_donors(main, donors, argument_of))
    return tuple(
        [Alias(result=result, argument=argument_of[result]) for result in sorted(argument_of)]
    )


def _results_of_donors(
    main: Function, donors: list[int], argument_of: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    free = [position for position in range(len(main.results)) if position not in argument_of]
    for donor in donors:
        donated = main.body.arguments[donor].type
        result = next(
            (position for position in free if main.results[position].type == donated), None
        )
        if result is not None:
            free.remove(result)
            yield result, donor
