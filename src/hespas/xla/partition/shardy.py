"""Partition with Shardy's own passes, for more devices than XLA's CPU client takes.

No XLA compiler runs, so no device is needed, and the time does not grow with their number.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hespas.errors import ProgramError
from hespas.xla.mlir.module import (
    MlirModule,
    bytecode_of,
    drop_attributes,
    operations_in,
    parse_mlir,
    run_passes,
)

_BEFORE = (
    "func.func(chlo-legalize-to-stablehlo)",
    "sdy-propagation-pipeline",
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
    "func.func(sdy-reshard-to-collectives)",
)
_LOCALISE = "sdy-convert-global-to-local"
# Canonicalising before shapes are local aborts the process.
_AFTER = ("canonicalize", "cse")
_CALL, _FUNCTION, _WHILE = "func.call", "func.func", "stablehlo.while"
_DYNAMIC_SLICE = "stablehlo.dynamic_slice"
_INDEXED = frozenset({"stablehlo.gather", "stablehlo.scatter"})


def partition_with_shardy(source: bytes, *, name: str) -> bytes:
    """Return the partitioned program as bytecode; raise `ProgramError` if a pass refuses it."""
    module = parse_mlir(source, name=name)
    with module.handle.context:
        _inline_all(module)
        _widen_indices(module)
        for pass_name in _BEFORE:
            run_passes(module, f"builtin.module({pass_name})")
        _localise(module)
        for pass_name in _AFTER:
            run_passes(module, f"builtin.module({pass_name})")
        # The shardings are applied now, and must not be applied twice.
        drop_attributes(module.handle.operation, {"sdy.sharding"})
        for mesh in operations_in(module.handle.operation, {"sdy.mesh"}):
            mesh.erase()
        return bytecode_of(module.handle)


def _inline_all(module: MlirModule) -> None:
    """Inline all calls in main, which passes don't follow, and drop the callees."""
    functions = {
        view.attributes["sym_name"].value: view
        for view in module.handle.body.operations
        if view.operation.name == _FUNCTION
    }
    if "main" not in functions:
        raise ProgramError("there is no function named main", location=module.source)
    main = functions.pop("main")
    while calls := operations_in(main.operation, {_CALL}):
        for call in calls:
            _inline(call, functions)
    for function in functions.values():
        function.operation.erase()


def _inline(call: Any, functions: dict[str, Any]) -> None:
    ir = import_module("jaxlib.mlir.ir")
    extension = import_module("jaxlib.mlir._mlir_libs._jax_mlir_ext")
    called = functions[ir.FlatSymbolRefAttr(call.attributes["callee"]).value]
    with ir.InsertionPoint(call), call.location:
        results = extension.inlined_func_call(called.operation, list(call.operands))
    for old, new in zip(call.results, results, strict=True):
        old.replace_all_uses_with(new)
    call.erase()


def _widen_indices(module: MlirModule) -> None:
    """Make indices 64 bits wide, as Shardy writes constants.

    Otherwise the memory behind such a constant is printed, or crashes the process.
    """
    ir = import_module("jaxlib.mlir.ir")
    wide = ir.IntegerType.get_signless(64)
    for operation in operations_in(module.handle.operation, _INDEXED):
        position = len(operation.operands) // 2 if "scatter" in operation.name else 1
        indices = operation.operands[position]
        kind = ir.RankedTensorType(indices.type)
        if kind.element_type == wide:
            continue
        with ir.InsertionPoint(operation), operation.location:
            widened = ir.Operation.create(
                "stablehlo.convert",
                results=[ir.RankedTensorType.get(kind.shape, wide)],
                operands=[indices],
            )
        operation.operands[position] = widened.results[0]


def _localise(module: MlirModule) -> None:
    """Make all shapes those of one device, a loop's arguments included.

    Shardy's pass leaves those out.
    """
    ir = import_module("jaxlib.mlir.ir")
    passes = import_module("jaxlib.mlir.passmanager").PassManager.parse(
        f"builtin.module({_LOCALISE})"
    )
    passes.enable_verifier(False)
    try:
        passes.run(module.handle.operation)
        for loop in operations_in(module.handle.operation, {_WHILE}):
            for region in loop.regions:
                for argument, operand in zip(
                    region.blocks[0].arguments, loop.operands, strict=True
                ):
                    argument.set_type(operand.type)
        for slice_op in operations_in(module.handle.operation, {_DYNAMIC_SLICE}):
            shape = ir.RankedTensorType(slice_op.results[0].type).shape
            slice_op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(shape)
        module.handle.operation.verify()
    except (ir.MLIRError, ValueError) as error:
        first = " ".join(str(error).split())[:600]
        raise ProgramError(f"Shardy cannot divide it: {first}", location=module.source) from error
