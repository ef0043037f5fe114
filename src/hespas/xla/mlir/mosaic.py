"""Read the module that a ``tpu_custom_call`` carries: MLIR bytecode in Mosaic's stable form."""

# jaxlib's bindings are only partly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any

from hespas.errors import ProgramError, UnsupportedError
from hespas.program.kernels import KernelBlock, KernelOp, KernelType, MosaicKernel, Window
from hespas.xla.mlir.functions import source_line
from hespas.xla.mlir.module import (
    BYTECODE_MAGIC,
    attribute_texts,
    module_pass_manager,
    new_context,
    one_line,
)
from hespas.xla.mlir.text import read_integer, read_integers, read_symbols, split_list
from hespas.xla.mlir.trial import check_kernel

_DYNAMIC = -(1 << 63)
"""Stands for a length of the grid, or of a dimension, that is known only as the program runs."""
_TEXT = b"module"
_TO_CURRENT_FORM = "builtin.module(mosaic-serde{serialize=false})"
_SHAPED = re.compile(r"(vector|memref)<((?:[\d?]+x)*)(!?[\w.]+(?:<[^<>]*>)?)(.*)>", re.DOTALL)
_SPACE = re.compile(r"#tpu\.memory_space<(\w+)>")
_ENTRY = "iteration_bounds"


@lru_cache(maxsize=1)
def mosaic_context() -> Any:
    """Return a context that knows Mosaic's dialect; JAX's own modules never share it."""
    context = new_context()
    # Mosaic's stable form spells operations in a dialect that is registered nowhere.
    context.allow_unregistered_dialects = True
    import_module("jaxlib.mosaic.python.tpu").register_dialect(context)
    return context


def parse_mosaic(body: bytes) -> Any:
    """Return the module of a kernel in the context; `ProgramError` for what is none."""
    ir = import_module("jaxlib.mlir.ir")
    context = mosaic_context()
    with context, ir.Location.unknown():
        try:
            module = ir.Module.parse(body, context)
            if not body.startswith(_TEXT):
                module_pass_manager().parse(_TO_CURRENT_FORM).run(module.operation)
        except (ir.MLIRError, ValueError) as error:
            raise ProgramError(f"its kernel cannot be read: {one_line(error)}") from error
        return module


@lru_cache(maxsize=256)
def read_mosaic(body: bytes) -> MosaicKernel:
    """Return the kernel in a module's bytecode, or in its text, as libtpu writes its own.

    Raises `ProgramError` for what is no such module, `UnsupportedError` for one of another version
    or with types that have no model.
    """
    if not body.startswith(BYTECODE_MAGIC) and not body.startswith(_TEXT):
        raise ProgramError("its kernel is not MLIR")
    check_kernel(body, "mosaic")
    ir = import_module("jaxlib.mlir.ir")
    with mosaic_context(), ir.Location.unknown():
        module = parse_mosaic(body)
        functions = {
            view.operation.attributes["sym_name"].value: view.operation
            for view in module.body.operations
            if view.operation.name == "func.func"
        }
        entries = [name for name, each in functions.items() if _is_entry(each)]
        if not functions:
            raise ProgramError("its kernel has no function")
        # A kernel without a grid may have no attributes; Pallas writes it first.
        name = entries[0] if entries else next(iter(functions))
        return _Reader().kernel(name, functions)


def _is_entry(function: Any) -> bool:
    return any(named in function.attributes for named in (_ENTRY, "tpu.core_type"))


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Numbers the values of one module."""

    numbers: dict[Any, int] = field(default_factory=dict[Any, int])
    types: list[KernelType] = field(default_factory=list[KernelType])
    known: dict[Any, KernelType] = field(default_factory=dict[Any, KernelType])
    texts: dict[Any, str] = field(default_factory=dict[Any, str])

    def kernel(self, name: str, functions: dict[str, Any]) -> MosaicKernel:
        entry = functions[name]
        attributes = attribute_texts(entry, self.texts)
        grid = read_integers(attributes.get(_ENTRY, "array<i64>"))
        semantics = attributes.get("dimension_semantics", "")
        parallel = [part == "parallel" for part in re.findall(r"semantics<(\w+)>", semantics)]
        body = self.block(entry.regions[0].blocks[0])
        windows = tuple(
            [
                self.window(text, functions)
                for text in split_list(attributes.get("window_params", "[]")[1:-1])
            ]
        )
        return MosaicKernel(
            name=name,
            grid=tuple([None if length == _DYNAMIC else length for length in grid]),
            parallel=tuple(parallel) or (False,) * len(grid),
            prefetched=read_integer(attributes.get("scalar_prefetch", "0")),
            windows=windows,
            body=body,
            types=tuple(self.types),
        )

    def window(self, text: str, functions: dict[str, Any]) -> Window:
        parts = [part.partition(" = ") for part in split_list(text.strip()[1:-1])]
        fields = {name.strip(): value.strip() for name, _, value in parts}
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
        known = self.known.get(kind)
        if known is None:
            known = self.known[kind] = read_kernel_type(str(kind))
        self.types.append(known)
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
