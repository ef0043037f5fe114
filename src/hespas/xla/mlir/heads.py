"""Cut the end of a program's main function off."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from hespas.base.frozen import frozen
from hespas.xla.mlir.module import (
    MlirModule,
    bytecode_of,
    entries_of,
    listed,
    main_of,
    operations_in,
    run_passes,
)

_ARGUMENTS, _RESULTS, _TYPE, _SHARDING = "arg_attrs", "res_attrs", "function_type", "sdy.sharding"
_OF_RESULTS = frozenset({"jax.buffer_donor", "tf.aliasing_output"})
"""What arguments say of results that are no longer there."""


@frozen
class HeadResult:
    """A value that a head returns.

    It is what the ``reader``-th operation behind the head reads, as its ``operand``-th. It has the
    attributes of the main function's result ``declared``, or else the ``sharding``, as MLIR text.
    """

    reader: int
    operand: int
    declared: int | None = None
    sharding: str = ""


def cut_head(module: MlirModule, count: int, results: Sequence[HeadResult]) -> bytes | None:
    """Cut the last operations off a main function, in place; return the bytecode.

    ``count`` includes the terminator. The module's functions that nothing calls any more go, too.
    None where operations of CHLO are among the last.
    """
    ir = import_module("jaxlib.mlir.ir")
    main = main_of(module)
    operations = _operations_of(main)[-count:]
    if any(op.name.startswith("chlo.") for op in operations):
        return None
    attributes = main.attributes
    with module.handle.context:
        values = [operations[result.reader].operands[result.operand] for result in results]
        end = operations[-1]
        point = ir.InsertionPoint(end)
        ir.Operation.create("func.return", operands=values, loc=end.location, ip=point)
        for op in reversed(operations):
            op.erase()
        inputs = [argument.type for argument in main.regions[0].blocks[0].arguments]
        types = [value.type for value in values]
        attributes[_TYPE] = ir.TypeAttr.get(ir.FunctionType.get(inputs, types))
        declared = entries_of(attributes[_RESULTS]) if _RESULTS in attributes else []
        attributes[_RESULTS] = listed(
            {_SHARDING: ir.Attribute.parse(result.sharding)}
            if result.declared is None
            else declared[result.declared]
            for result in results
        )
        attributes[_ARGUMENTS] = listed(
            {name: attr for name, attr in entry.items() if name not in _OF_RESULTS}
            for entry in entries_of(attributes[_ARGUMENTS])
        )
    run_passes(module, "builtin.module(symbol-dce)")
    return bytecode_of(module.handle)


def _operations_of(function: Any) -> list[Any]:
    """Return a function's own operations."""
    nested, operations = iter(operations_in(function, outer_first=True)[1:]), list[Any]()
    for _ in range(len(function.regions[0].blocks[0].operations)):
        op = next(nested)
        operations.append(op)
        for _ in operations_in(op)[1:]:
            next(nested)
    return operations
