"""Read the modules of Mosaic and Triton in custom calls.

Mosaic modules are for TPUs, in Mosaic's stable form.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any

from hespas.errors import ProgramError, UnsupportedError
from hespas.program.kernels import (
    KernelBlock,
    KernelOp,
    KernelType,
    MosaicKernel,
    TritonKernel,
    TritonOp,
    TritonType,
    Window,
)
from hespas.xla.mlir.functions import source_line
from hespas.xla.mlir.module import (
    BYTECODE_MAGIC,
    attribute_texts,
    module_pass_manager,
    new_context,
    one_line,
)
from hespas.xla.mlir.text import (
    read_integer,
    read_integers,
    read_pairs,
    read_symbols,
    split_list,
)
from hespas.xla.trial import check_kernel

_DYNAMIC = -(1 << 63)
"""A length of the grid or of a dimension that is only type_of as the program runs."""
_TEXT = b"module"
_TO_CURRENT_FORM = "builtin.module(mosaic-serde{serialize=false})"
_SHAPED = re.compile(r"(vector|memref)<((?:[\d?]+x)*)(!?[\w.]+(?:<[^<>]*>)?)(.*)>", re.DOTALL)
_SPACE = re.compile(r"#tpu\.memory_space<(\w+)>")
_ENTRY = "iteration_bounds"


MOSAIC, TRITON = "mosaic", "triton"
"""The languages of kernels."""


@lru_cache(maxsize=2)
def kernel_context(language: str) -> Any:
    """Return the context of a language's dialect."""
    context = new_context()  # JAX's own modules have another.
    if language == MOSAIC:
        # Mosaic's stable form spells operations in a dialect that is registered nowhere.
        context.allow_unregistered_dialects = True
        import_module("jaxlib.mosaic.python.tpu").register_dialect(context)
    else:
        import_module("jaxlib.mlir._mlir_libs._triton_ext").register_dialect(context)
    return context


def parse_kernel(body: bytes, language: str) -> Any:
    """Parse a kernel's module; raise `ProgramError` if invalid."""
    ir = import_module("jaxlib.mlir.ir")
    context = kernel_context(language)
    with context, ir.Location.unknown():
        try:
            module = ir.Module.parse(body, context)
            if language == MOSAIC and not body.startswith(_TEXT):
                module_pass_manager().parse(_TO_CURRENT_FORM).run(module.operation)
        except (ir.MLIRError, ValueError) as error:
            raise ProgramError(f"its kernel cannot be read: {one_line(error)}") from error
        return module


def _functions(module: Any, kind: str) -> dict[str, Any]:
    operations = [view.operation for view in module.body.operations]
    return {op.attributes["sym_name"].value: op for op in operations if op.name == kind}


@lru_cache(maxsize=256)
def read_mosaic(body: bytes) -> MosaicKernel:
    """Read a Mosaic kernel in bytecode or text.

    Raises `ProgramError` for any other bytes, `UnsupportedError` for a module of another version or
    with types that have no model.
    """
    if not body.startswith(BYTECODE_MAGIC) and not body.startswith(_TEXT):
        raise ProgramError("its kernel is not MLIR")
    check_kernel(body, MOSAIC)
    ir = import_module("jaxlib.mlir.ir")
    with kernel_context(MOSAIC), ir.Location.unknown():
        module = parse_kernel(body, MOSAIC)  # its operations live as long as it does
        functions = _functions(module, "func.func")
        entries = [name for name, function in functions.items() if _is_entry(function)]
        if not functions:
            raise ProgramError("its kernel has no function")
        # A kernel without a grid may have no attributes; Pallas writes it first.
        name = entries[0] if entries else next(iter(functions))
        return _Reader().kernel(name, functions)


def _is_entry(function: Any) -> bool:
    return any(attribute in function.attributes for attribute in (_ENTRY, "tpu.core_type"))


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Numbers the values of one module."""

    numbers: dict[Any, int] = field(default_factory=dict[Any, int])
    types: list[KernelType] = field(default_factory=list[KernelType])
    type_of: dict[Any, KernelType] = field(default_factory=dict[Any, KernelType])
    texts: dict[Any, str] = field(default_factory=dict[Any, str])

    def kernel(self, name: str, functions: dict[str, Any]) -> MosaicKernel:
        entry = functions[name]
        attributes = attribute_texts(entry, self.texts)
        grid = read_integers(attributes.get(_ENTRY, "array<i64>"))
        semantics = attributes.get("dimension_semantics", "")
        parallel = [part == "parallel" for part in re.findall(r"semantics<(\w+)>", semantics)]
        body = self.block(entry.regions[0].blocks[0])
        window_texts = split_list(attributes.get("window_params", "[]")[1:-1])
        return MosaicKernel(
            name=name,
            grid=tuple([None if length == _DYNAMIC else length for length in grid]),
            parallel=tuple(parallel) or (False,) * len(grid),
            prefetched=read_integer(attributes.get("scalar_prefetch", "0")),
            windows=tuple([self.window(text, functions) for text in window_texts]),
            body=body,
            types=tuple(self.types),
        )

    def window(self, text: str, functions: dict[str, Any]) -> Window:
        fields = read_pairs(text.strip()[1:-1])
        if "transform_indices" not in fields:
            return Window()
        (called,) = read_symbols(fields["transform_indices"])
        return Window(
            bounds=read_integers(fields.get("window_bounds", "array<i64>")),
            indices=self.block(functions[called].regions[0].blocks[0]),
            by_element="element_window" in fields.get("window_kind", ""),
        )

    def block(self, block: Any) -> KernelBlock:
        return KernelBlock(
            arguments=tuple(map(self.define, block.arguments)),
            operations=tuple([self.op(view.operation) for view in block.operations]),
        )

    def op(self, op: Any) -> KernelOp:
        operands = tuple([self.numbers[value] for value in op.operands])
        regions = tuple([self.block(block) for region in op.regions for block in region.blocks])
        return KernelOp(
            name=op.name,
            operands=operands,
            results=tuple(map(self.define, op.results)),
            attributes=attribute_texts(op, self.texts),
            regions=regions,
            place=source_line(op.location, ""),
        )

    def define(self, value: Any) -> int:
        number = self.numbers[value] = len(self.types)
        kind = value.type
        cached_type = self.type_of.get(kind)
        if cached_type is None:
            cached_type = self.type_of[kind] = read_kernel_type(str(kind))
        self.types.append(cached_type)
        return number


def read_kernel_type(text: str) -> KernelType:
    """Read the type of a value inside of a kernel.

    Raises `UnsupportedError` for a vector or memory whose shape isn't static.

    >>> read_kernel_type("memref<1x8x512xi32, #tpu.memory_space<vmem>>")
    KernelType(element='i32', shape=(1, 8, 512), is_vector=False, space='vmem')
    >>> read_kernel_type("vector<512x128xf32>").is_vector, read_kernel_type("i32").shape
    (True, ())
    """
    match = _SHAPED.fullmatch(text)
    if match is None:
        return KernelType(element=text)
    if "?" in match[2]:
        raise UnsupportedError(f"its kernel has a dynamic shape, {text}")
    shape = tuple(map(int, match[2].split("x")[:-1]))
    if match[1] == "vector":
        return KernelType(element=match[3], shape=shape, is_vector=True)
    space = _SPACE.search(match[4])
    return KernelType(element=match[3], shape=shape, space=space[1] if space else "vmem")


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
"""The operations that compute bounds of loops."""
_ONE_ROUND = "a loop whose length depends on data is taken to run once"
_NOTES = {
    "scf.for": _ONE_ROUND,
    "scf.if": "a condition that depends on data is taken to hold, and not to",
    "scf.while": _ONE_ROUND,
}


@lru_cache(maxsize=256)
def read_triton(body: bytes) -> TritonKernel:
    """Read the kernel in a module's bytecode or text.

    Raises `ProgramError` for any other bytes.
    """
    check_kernel(body, TRITON)
    ir = import_module("jaxlib.mlir.ir")
    with kernel_context(TRITON), ir.Location.unknown():
        module = parse_kernel(body, TRITON)
        functions = _functions(module, "tt.func")
        if len(functions) != 1:
            raise ProgramError(f"its kernel has {len(functions)} functions, not one")
        ((name, function),) = functions.items()
        notes: dict[str, None] = {}
        operations = tuple(_triton_ops(function.regions[0].blocks[0], 1, notes))
        return TritonKernel(name=name, operations=operations, notes=tuple(notes))


def _triton_ops(block: Any, count: int, notes: dict[str, None]) -> Iterator[TritonOp]:
    for view in block.operations:
        op = view.operation
        rounds = _rounds(op) if op.name == "scf.for" else None
        if op.name in _NOTES:
            if rounds is None:
                notes[_NOTES[op.name]] = None
                rounds = 1
            for region in op.regions:
                for inner in region.blocks:
                    yield from _triton_ops(inner, count * rounds, notes)
        elif op.name not in _LOADS or any(True for result in op.results for _ in result.uses):
            yield _triton_op(op, count)


def _triton_op(op: Any, count: int) -> TritonOp:
    body: tuple[TritonOp, ...] = ()
    if op.name in _REDUCTIONS:
        body = tuple(
            _triton_op(view.operation, 1)
            for region in op.regions
            for view in region.blocks[0].operations
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
    first, end, step = [_constant(value) for value in list(op.operands)[:3]]
    if first is None or end is None or not step:
        return None
    return max(0, -(-(end - first) // step))


def _constant(value: Any) -> int | None:
    owner: Any = getattr(value, "owner", None)
    producer: Any = getattr(owner, "operation", owner)
    name: str = getattr(producer, "name", "")
    if name == "arith.constant":
        return read_integer(str(producer.attributes["value"]))
    if name in _COPIES:
        return _constant(producer.operands[0])
    combined = _COMBINED.get(name)
    if combined is None:
        return None
    left, right = (_constant(operand) for operand in producer.operands)
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
