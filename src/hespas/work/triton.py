"""Count a Triton custom call from its module."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from math import prod

from hespas.errors import CostError, ProgramError, option
from hespas.program.attrs import CustomCallAttrs
from hespas.program.kernels import TritonKernel, TritonOp, TritonType
from hespas.program.operations.traits import bytes_of
from hespas.program.program import Op
from hespas.program.types import ELEMENT_TYPES, NumberKind
from hespas.program.work import Work, flop_counts, summed
from hespas.work.custom_call import TRITON
from hespas.xla.mlir.kernels import read_triton
from hespas.xla.mlir.text import unescaped

_FIELD = re.compile(r"\b(grid_[xyz]) = (\d+)")
_BODY = re.compile(r'\bir = "((?:[^"\\]|\\.)*)"', re.DOTALL)

_ARITHMETIC_NAMES = "addf subf mulf divf negf remf maximumf minimumf maxnumf minnumf cmpf"
_FUNCTION_NAMES = (
    "acos asin atan atan2 cbrt cos cosh erf exp exp2 expm1 log log10 log1p log2 powf rsqrt sin "
    "sinh sqrt tan tanh"
)
_UNCOUNTED_NAMES = (
    "addptr advance assert bitcast broadcast cat expand_dims fp_to_fp gather get_num_programs "
    "get_program_id histogram int_to_ptr join make_range make_tensor_descriptor make_tensor_ptr "
    "print ptr_to_int reduce.return reshape return scan.return splat split trans unsplat"
)
_ARITHMETIC = {f"arith.{name}" for name in _ARITHMETIC_NAMES.split()} | {
    "math.absf",
    "math.fma",
    "tt.clampf",
}
_FUNCTIONS = {f"math.{name}" for name in _FUNCTION_NAMES.split()} | {
    "tt.extern_elementwise",
    "tt.precise_sqrt",
}
_UNCOUNTED = {f"tt.{name}" for name in _UNCOUNTED_NAMES.split()}
_UNCOUNTED_DIALECTS = ("arith.", "scf.", "cf.", "ub.", "math.")
"""Dialects whose other operations compute integers, select or convert."""


def triton_work(op: Op) -> tuple[Work, str]:
    """Return the work of a Triton call and its assumptions.

    FLOPs are summed over all programs of the grid. Bytes are those of the kernel's loads and
    stores, but at most the size of its operands and results, because the cache serves repeated
    reads. Integer operations, which compute addresses, are not counted. Raises `CostError` for a
    kernel that cannot be read or has an operation without a model.
    """
    attrs = op.attrs
    if not isinstance(attrs, CustomCallAttrs):
        raise CostError("it has no kernel", location=op.location)
    try:
        kernel, programs = _kernel(attrs.backend_config)
    except ProgramError as error:
        raise _no_model_error(op, error.message) from error
    works = [_work(inner, kernel, op) for inner in kernel.operations]
    total = summed(works) * programs
    work = replace(
        total,
        bytes_read=min(total.bytes_read, bytes_of(op.operands)),
        bytes_written=min(total.bytes_written, bytes_of(op.results)),
    )
    return work, "; ".join(f"kernel {kernel.name}: {note}" for note in kernel.notes)


def _no_model_error(op: Op, why: str) -> CostError:
    return CostError(
        f"the work of custom call {TRITON!r} is not known: {why}",
        location=op.location,
        hint=f"give {option('custom_call')} {TRITON}=flops:N,type:T,bytes:N",
    )


@lru_cache(maxsize=256)
def _kernel(config: str) -> tuple[TritonKernel, int]:
    body = _BODY.search(config)
    sizes = {name: int(size) for name, size in _FIELD.findall(config)}
    if body is None or not sizes:
        raise ProgramError("its configuration holds no grid or no module")
    return read_triton(unescaped(body[1])), prod(sizes.values())


def _work(inner: TritonOp, kernel: TritonKernel, op: Op) -> Work:
    if inner.body:
        return _reduction(inner) * inner.count
    rule = _RULES.get(inner.name)
    if rule is not None:
        return rule(inner) * inner.count
    if inner.name in _UNCOUNTED or inner.name.startswith(_UNCOUNTED_DIALECTS):
        return Work()
    raise _no_model_error(op, f"operation {inner.name} of kernel {kernel.name} has no model")


def _loaded(inner: TritonOp) -> Work:
    return Work(bytes_read=_size(inner.results))


def _stored(inner: TritonOp) -> Work:
    return Work(bytes_written=_size(inner.operands[1:2]))


def _exchanged(inner: TritonOp) -> Work:
    size = _size(inner.results)
    return Work(bytes_read=size, bytes_written=size)


def _function(inner: TritonOp) -> Work:
    return Work(transcendentals=sum(map(_elements, inner.results)))


def _product(inner: TritonOp) -> Work:
    lhs, _, product = inner.operands[:3]
    name = _arithmetic_type(lhs.element)
    if name == "f32" and inner.precision != "2 : i32":
        name = "tf32"
    return Work(flops=flop_counts(name, 2 * prod(product.shape) * lhs.shape[-1]))


def _elementwise(inner: TritonOp) -> Work:
    (first, *_) = inner.operands
    flops = sum(map(_elements, inner.results)) * (2 if inner.name == "math.fma" else 1)
    return Work(flops=flop_counts(_arithmetic_type(first.element), flops))


def _reduction(inner: TritonOp) -> Work:
    """Count the body once per element that is reduced away."""
    results = 0 if inner.name == "tt.scan" else _elements(inner.results[0])
    steps = _elements(inner.operands[0]) - results
    bodies = [body_op for body_op in inner.body if body_op.name in _ARITHMETIC]
    return summed(_elementwise(body_op) * steps for body_op in bodies)


def _elements(kind: TritonType) -> int:
    return prod(kind.shape)


def _size(kinds: Iterable[TritonType]) -> int:
    return sum(prod(kind.shape) * _bits(kind.element) for kind in kinds) // 8


def _bits(element: str) -> int:
    kind = ELEMENT_TYPES.get(element)
    return kind.bits if kind is not None else 64


def _arithmetic_type(element: str) -> str:
    kind = ELEMENT_TYPES.get(element)
    return element if kind is not None and kind.kind is NumberKind.FLOAT else "f32"


_RULES: dict[str, Callable[[TritonOp], Work]] = {
    **dict.fromkeys(_ARITHMETIC, _elementwise),
    **dict.fromkeys(_FUNCTIONS, _function),
    "tt.atomic_cas": _exchanged,
    "tt.atomic_rmw": _exchanged,
    "tt.descriptor_load": _loaded,
    "tt.descriptor_store": _stored,
    "tt.dot": _product,
    "tt.load": _loaded,
    "tt.store": _stored,
}
