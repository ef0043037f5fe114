"""Read the module that a custom call of Triton carries: bytecode of Triton's dialect (TTIR)."""

# jaxlib's bindings are only partly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any

from hespas.errors import ProgramError
from hespas.program.kernels import TritonKernel, TritonOp, TritonType
from hespas.xla.mlir.module import attribute_texts, new_context, one_line
from hespas.xla.mlir.text import read_integer
from hespas.xla.mlir.trial import check_kernel

_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.*)>")
_POINTER = re.compile(r"!tt\.ptr<([^,>]*)(?:, \d+)?>")
_REDUCTIONS = frozenset({"tt.reduce", "tt.scan"})
_LOADS = frozenset({"tt.load", "tt.descriptor_load"})
_COPIES = frozenset({"arith.extsi", "arith.index_cast", "arith.trunci"})
_COMBINED: dict[str, Callable[[int, int], int]] = {
    "arith.addi": operator.add,
    "arith.ceildivsi": lambda left, right: -(-left // right),
    "arith.divsi": operator.floordiv,
    "arith.maxsi": max,
    "arith.minsi": min,
    "arith.muli": operator.mul,
    "arith.subi": operator.sub,
}
"""What bounds of loops are computed with."""
_BRANCHES = frozenset({"scf.if"})
_LOOPS = frozenset({"scf.while"})


@lru_cache(maxsize=1)
def triton_context() -> Any:
    """Return a context that knows Triton's dialect."""
    context = new_context()
    import_module("jaxlib.mlir._mlir_libs._triton_ext").register_dialect(context)
    return context


def parse_triton(body: bytes) -> Any:
    """Return the module of a kernel in the context; `ProgramError` for what is none."""
    ir = import_module("jaxlib.mlir.ir")
    context = triton_context()
    with context, ir.Location.unknown():
        try:
            return ir.Module.parse(body, context)
        except (ir.MLIRError, ValueError) as error:
            raise ProgramError(f"its kernel cannot be read: {one_line(error)}") from error


@lru_cache(maxsize=256)
def read_triton(body: bytes) -> TritonKernel:
    """Return the kernel in a module's bytecode or text.

    Raises `ProgramError` for what is no such module.
    """
    check_kernel(body, "triton")
    ir = import_module("jaxlib.mlir.ir")
    with triton_context(), ir.Location.unknown():
        module = parse_triton(body)
        functions = [
            view.operation for view in module.body.operations if view.operation.name == "tt.func"
        ]
        if len(functions) != 1:
            raise ProgramError(f"its kernel has {len(functions)} functions, not one")
        (function,) = functions
        notes: dict[str, None] = {}
        operations = tuple(_opened(function.regions[0].blocks[0], 1, notes))
        name: str = function.attributes["sym_name"].value
        return TritonKernel(name=name, operations=operations, notes=tuple(notes))


def _opened(block: Any, count: int, notes: dict[str, None]) -> Iterator[TritonOp]:
    for view in block.operations:
        op = view.operation
        if op.name == "scf.for":
            rounds = _rounds(op)
            if rounds is None:
                notes["a loop whose length depends on data is taken to run once"] = None
            yield from _inside(op, count * (1 if rounds is None else rounds), notes)
        elif op.name in _LOOPS:
            notes["a loop whose length depends on data is taken to run once"] = None
            yield from _inside(op, count, notes)
        elif op.name in _BRANCHES:
            notes["a condition that depends on data is taken to hold, and not to"] = None
            yield from _inside(op, count, notes)
        elif op.name in _LOADS and not any(True for result in op.results for _ in result.uses):
            continue
        else:
            yield _op(op, count)


def _inside(op: Any, count: int, notes: dict[str, None]) -> Iterator[TritonOp]:
    for region in op.regions:
        for block in region.blocks:
            yield from _opened(block, count, notes)


def _op(op: Any, count: int) -> TritonOp:
    body: tuple[TritonOp, ...] = ()
    if op.name in _REDUCTIONS:
        body = tuple(
            _op(view.operation, 1) for region in op.regions for view in region.blocks[0].operations
        )
    precision = attribute_texts(op, {}).get("inputPrecision", "")
    return TritonOp(
        name=op.name,
        operands=tuple([read_triton_type(str(value.type)) for value in op.operands]),
        results=tuple([read_triton_type(str(value.type)) for value in op.results]),
        count=count,
        body=body,
        precision=precision,
    )


def _rounds(op: Any) -> int | None:
    bounds = [_constant(value) for value in list(op.operands)[:3]]
    first, end, step = bounds
    if first is None or end is None or not step:
        return None
    return max(0, -(-(end - first) // step))


def _constant(value: Any) -> int | None:
    owner: Any = getattr(value, "owner", None)
    made: Any = getattr(owner, "operation", owner)
    name: str = getattr(made, "name", "")
    if name == "arith.constant":
        return read_integer(str(made.attributes["value"]))
    if name in _COPIES:
        return _constant(made.operands[0])
    combined = _COMBINED.get(name)
    if combined is None:
        return None
    left, right = (_constant(operand) for operand in made.operands)
    return None if left is None or right is None else combined(left, right)


@lru_cache(maxsize=4096)
def read_triton_type(text: str) -> TritonType:
    """Read the type of a value.

    >>> read_triton_type("tensor<128x32x!tt.ptr<bf16>>")
    TritonType(element='bf16', shape=(128, 32))
    """
    match = _TENSOR.fullmatch(text)
    shape: tuple[int, ...] = ()
    if match is not None:
        shape = tuple(map(int, match[1].split("x")[:-1]))
        text = match[2].partition(", #")[0]
    pointer = _POINTER.fullmatch(text)
    return TritonType(element=pointer[1] if pointer else text, shape=shape)
