"""Kernels of cuBLAS, cuDNN and CUB, whose shapes stand in the call.

Every operand is read once and every result written once; what a library works in is not counted
as traffic.
"""

from __future__ import annotations

from hespas.cost.attention import attentions
from hespas.cost.convolution import CUDNN_CONVOLUTIONS, convolutions
from hespas.cost.gemm import gemms
from hespas.cost.library_config import author_cost
from hespas.cost.rules.sizes import (
    arithmetic_type,
    bytes_of,
    ceil_log2,
    memory_bytes,
    operand,
    result,
)
from hespas.cost.work import Work, flop_counts, summed
from hespas.errors import CostError
from hespas.program.program import Op, Value
from hespas.program.types import NumberKind, TensorType

_BYTE_BITS = 8


def results_kept(op: Op) -> tuple[Value, ...]:
    """Return the results without the workspace, which is the last one: a row of bytes."""
    *kept, last = op.results
    kind = last.type
    is_workspace = (
        kept
        and isinstance(kind, TensorType)
        and kind.rank == 1
        and kind.element.bits == _BYTE_BITS
        and kind.element.kind is NumberKind.INTEGER
    )
    return tuple(kept) if is_workspace else op.results


def _traffic(op: Op) -> Work:
    return Work(
        bytes_read=bytes_of(op.operands),
        bytes_written=sum(memory_bytes(value.type) for value in results_kept(op)),
    )


def matrix_product(op: Op) -> Work:
    """2 m n k for each product, and what follows it for each element of the result.

    A bias or an addend is one FLOP, ReLU one. GELU is x/2 (1 + tanh(a (x + b x^3))): 8 FLOPs
    and a tanh; SiLU is x / (1 + exp(-x)): 3 and an exp.
    """
    (gemm,) = gemms(op)
    elements = gemm.result.element_count
    epilogue = gemm.epilogue
    following = ("BIAS" in epilogue) + gemm.has_addend + ("RELU" in epilogue)
    following += 8 * ("GELU" in epilogue) + 3 * ("SILU" in epilogue)
    functions = ("GELU" in epilogue) + ("SILU" in epilogue)
    product = Work(flops=flop_counts(gemm.multiplied, gemm.flops))
    name = arithmetic_type(gemm.result.element)
    rest = Work(flops=flop_counts(name, following * elements), transcendentals=functions * elements)
    return summed((product, rest, _traffic(op)))


def convolution(op: Op) -> Work:
    """2 FLOPs for each product with a real element, in every direction.

    A bias, a side input and an activation are one FLOP for each element of the result.
    """
    found = convolutions(op)
    if not found:
        raise CostError("the window of a convolution is not known", location=op.location)
    (each,) = found
    following = each.has_bias + each.has_side_input + bool(each.activation)
    product = Work(flops=flop_counts(each.multiplied, each.flops))
    name = arithmetic_type(each.result.element)
    rest = Work(flops=flop_counts(name, following * each.result.element_count))
    return summed((product, rest, _traffic(op)))


# For each score: scale it, compare it with the maximum, subtract that, add to the sum. Backward:
# scale, subtract the log of the sum; then subtract the row's dot product, multiply by p, scale.
_SOFTMAX_FLOPS, _SOFTMAX_GRADIENT_FLOPS = 4, 5


def attention(op: Op) -> Work:
    """Matrix products of the scores that the mask leaves, and their softmax: one exp each."""
    (each,) = attentions(op)
    steps = _SOFTMAX_GRADIENT_FLOPS if each.is_backward else _SOFTMAX_FLOPS
    steps += each.has_bias
    product = Work(flops=flop_counts(each.multiplied, each.flops))
    softmax = Work(flops=flop_counts("f32", steps * each.scores), transcendentals=each.scores)
    return summed((product, softmax, _traffic(op)))


def radix_sort(op: Op) -> Work:
    """Compare n log2 n times, as any sort; pass over memory once for each byte of the key.

    A histogram of all digits reads the keys once more.
    Source: Adinets and Merrill, "Onesweep", 2022.
    """
    keys = operand(op, 0)
    moved = bytes_of(op.operands)
    passes = (keys.element.bits + _BYTE_BITS - 1) // _BYTE_BITS
    length = result(op).shape[-1] if keys.shape else 1
    comparisons = keys.element_count * ceil_log2(length)
    return Work(
        flops=flop_counts(arithmetic_type(keys.element), comparisons),
        bytes_read=keys.size_bytes + passes * moved,
        bytes_written=passes * moved,
    )


def work_by_author(op: Op) -> Work | None:
    """Return what a kernel's author says it does, where he says it.

    FLOPs count under the type of the first operand. Of the bytes, results are written.
    """
    said = author_cost(op)
    if said is None:
        return None
    written = min(said.bytes_accessed, _traffic(op).bytes_written)
    return Work(
        flops=flop_counts(arithmetic_type(operand(op, 0).element), said.flops),
        transcendentals=said.transcendentals,
        bytes_read=said.bytes_accessed - written,
        bytes_written=written,
    )


MATRIX_PRODUCTS = ("__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8")
_ATTENTIONS = tuple(
    f"__cudnn$fmha{before}Softmax{dropout}{backward}"
    for before in ("", "ScaleBias")
    for dropout in ("", "Dropout")
    for backward in ("", "Backward")
)
TARGETS = {
    **dict.fromkeys(MATRIX_PRODUCTS, matrix_product),
    **dict.fromkeys(sorted(CUDNN_CONVOLUTIONS), convolution),
    **dict.fromkeys(
        (*_ATTENTIONS, "__cudnn$fmhaSoftmaxF8", "__cudnn$fmhaSoftmaxBackwardF8"), attention
    ),
    "__cub$DeviceRadixSort": radix_sort,
}
