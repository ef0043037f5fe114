"""Legalise CHLO, all but products of groups of rows, whose meaning StableHLO has no operation for.

jaxlib's pass opens a ``chlo.ragged_dot`` into one masked product of all rows for each group, as
XLA's GPU compiler does by default: a cost that the operation itself does not have.
"""

# jaxlib's bindings are only partly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from importlib import import_module
from typing import Any

from hespas.xla.mlir.module import MlirModule, run_passes

RAGGED_DOT = "chlo.ragged_dot"
_KEPT = "stablehlo.custom_call"
_TARGET = "call_target_name"
_PASSES = "builtin.module(func.func(chlo-legalize-to-stablehlo))"


def legalise_chlo(module: MlirModule) -> None:
    """Replace the module's CHLO operations by StableHLO's, but ``chlo.ragged_dot``, in place.

    Raises `ProgramError` where the pass fails.
    """
    ir = import_module("jaxlib.mlir.ir")
    root = module.handle.operation
    with module.handle.context:
        # The pass leaves calls alone.
        for op in _found(root, RAGGED_DOT):
            named = {_TARGET: ir.StringAttr.get(RAGGED_DOT)}
            _replaced(ir, op, _KEPT, named | _attributes(op))
        run_passes(module, _PASSES)
        for op in _found(root, _KEPT):
            if op.attributes[_TARGET].value != RAGGED_DOT:
                continue
            others = {name: value for name, value in _attributes(op).items() if name != _TARGET}
            _replaced(ir, op, RAGGED_DOT, others)


def _found(root: Any, name: str) -> list[Any]:
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name == name:
            found.append(op)
        return import_module("jaxlib.mlir.ir").WalkResult.ADVANCE

    root.walk(visit)
    return found


def _attributes(op: Any) -> dict[str, Any]:
    return {name: op.attributes[name] for name in op.attributes}


def _replaced(ir: Any, op: Any, name: str, attributes: dict[str, Any]) -> None:
    made = ir.Operation.create(
        name,
        results=[result.type for result in op.results],
        operands=list(op.operands),
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for old, new in zip(op.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()
