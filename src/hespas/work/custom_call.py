"""Count custom calls by target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hespas.errors import CostError, option
from hespas.program.attrs import (
    FLASH_BACKWARD,
    FLASH_FORWARD,
    FLASH_MLA,
    FLASH_MLA_SPARSE,
    INDEX_SCORES,
    MOSAIC,
    PARTITIONER_MARKERS,
    TOP_K,
    TOP_K_OF_GPUS,
    CustomCallAttrs,
)
from hespas.program.operations.libraries import (
    cholesky,
    householder,
    lu_decomposition,
    threefry,
    top_k,
    triangular_solve,
)
from hespas.program.operations.movement import nothing
from hespas.program.operations.traits import (
    arithmetic_type,
    bytes_of,
    memory_bytes,
    operand,
    traffic,
)
from hespas.program.program import Op, Value
from hespas.program.types import NumberKind, TensorType
from hespas.program.work import (
    CustomCallCost,
    OperandTraffic,
    StatedWork,
    Work,
    flop_counts,
    summed,
)
from hespas.work.attention import attentions
from hespas.work.convolution import CUDNN_CONVOLUTIONS, Convolution, convolutions
from hespas.work.gemm import Gemm, gemms
from hespas.work.library_config import author_cost
from hespas.work.sorts import CUB_SORTS, radix_sort


def custom_call(op: Op, stated: Mapping[str, CustomCallCost]) -> tuple[Work, str]:
    """Return the work of a custom call and any assumption.

    ``stated`` maps targets to the user's statements, which override the table. Raises `CostError`
    for a target that neither has.
    """
    if not isinstance(op.attrs, CustomCallAttrs):
        raise CostError("the target of a custom call is not known", location=op.location)
    target = op.attrs.target
    match stated.get(target):
        case None:
            return _table_work(op, target)
        case StatedWork(work=work):
            return work, f"custom call {target}: work as the user states it"
        case OperandTraffic():
            assumed = f"custom call {target}: reads its operands, writes its results, 0 FLOPs"
            return traffic(op), assumed


TRITON = "__gpu$xla.gpu.triton"
"""The target of kernels in Triton's language: Pallas's for GPUs, and those of jax-triton."""


def _table_work(op: Op, target: str) -> tuple[Work, str]:
    rule = TARGETS.get(target)
    if rule is not None:
        return rule(op), _packing(op) if rule is attention else ""
    if target == MOSAIC:
        return _mosaic(op)
    if target == TRITON:
        # Imports jaxlib, which only such programs need.
        from hespas.work.triton import triton_work  # noqa: PLC0415

        return triton_work(op)
    written = work_by_author(op)
    if written is not None:
        return written, f"custom call {target}: work as its author states it"
    from difflib import get_close_matches  # noqa: PLC0415 - for errors alone

    close = get_close_matches(target, TARGETS, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise CostError(
        f"the work of custom call {target!r} is not known{hint}",
        location=op.location,
        hint=f"give {option('custom_call')} {target}=traffic, or {target}=flops:N,type:T,bytes:N",
    )


def _mosaic(op: Op) -> tuple[Work, str]:
    """Count a TPU kernel, or return its author's cost."""
    # Imports numpy and jaxlib, which only such programs need.
    from hespas.work.mosaic.kernel import kernel_load  # noqa: PLC0415

    try:
        load = kernel_load(op)
    except CostError as error:
        written = work_by_author(op)
        if written is None:
            raise
        assumed = f"custom call {MOSAIC}: work as its author states it, for {error.message}"
        return written, assumed
    return load.work, "; ".join(load.notes)


# Placements that move data are transfers, which `hespas.work.fusion.host_traffic` counts.
_PLACEMENTS = ("MoveToDevice", "MoveToHost", "annotate_device_placement")

# Annotations and a TPU compiler's memory markers: values pass through unchanged.
_ANNOTATIONS = (
    "AllocateBuffer",
    "AllocatePersistentBuffer",
    "AssumeGatherIndicesInBound",
    "ConcatBitcast",
    "GatherScatterIndicesBitpacked",
    "LayoutConstraint",
    "PrepareAsyncCallDone",
    "PrepareAsyncCallStart",
    "SliceId",
    "ZeroCrop",
    *sorted(PARTITIONER_MARKERS),
)


_BYTE_BITS = 8


def _results_without_workspace(op: Op) -> tuple[Value, ...]:
    """Return the results without a trailing workspace."""
    *results, workspace = op.results
    kind = workspace.type
    is_row_of_bytes = (
        isinstance(kind, TensorType)
        and kind.rank == 1
        and kind.element.bits == _BYTE_BITS
        and kind.element.kind is NumberKind.INTEGER
    )
    return tuple(results) if results and is_row_of_bytes else op.results


def _traffic(op: Op) -> Work:
    return Work(
        bytes_read=bytes_of(op.operands),
        bytes_written=sum(memory_bytes(value.type) for value in _results_without_workspace(op)),
    )


def matrix_product(op: Op) -> Work:
    """Count 2 m n k FLOPs and the epilogue.

    A bias or an addend is one FLOP, ReLU one. GELU is x/2 (1 + tanh(a (x + b x^3))): 8 FLOPs
    and a tanh; SiLU is x / (1 + exp(-x)): 3 and an exp.
    """
    (gemm,) = gemms(op)
    epilogue = gemm.epilogue
    flops = ("BIAS" in epilogue) + gemm.has_addend + ("RELU" in epilogue)
    flops += 8 * ("GELU" in epilogue) + 3 * ("SILU" in epilogue)
    functions = ("GELU" in epilogue) + ("SILU" in epilogue)
    return _product_with_epilogue(op, gemm, flops, functions)


def _product_with_epilogue(
    op: Op, product: Gemm | Convolution, flops: int, functions: int = 0
) -> Work:
    """Count a product, and FLOPs and functions per result element."""
    elements, name = product.result.element_count, arithmetic_type(product.result.element)
    return summed(
        (
            Work(flops=flop_counts(product.multiplied, product.flops)),
            Work(flops=flop_counts(name, flops * elements), transcendentals=functions * elements),
            _traffic(op),
        )
    )


def convolution(op: Op) -> Work:
    """Count 2 FLOPs per product with a real element.

    A bias, a side input and an activation are one FLOP for each element of the result.
    """
    described = next(iter(convolutions(op)), None)
    if described is None:
        raise CostError("the window of a convolution is not known", location=op.location)
    flops = described.has_bias + described.has_side_input + bool(described.activation)
    return _product_with_epilogue(op, described, flops)


# For each score: scale it, compare it with the maximum, subtract the maximum, add to the sum.
# Backward: scale, subtract the log of the sum; then subtract the row's dot product, multiply by p,
# scale.
_SOFTMAX_FLOPS, _SOFTMAX_GRADIENT_FLOPS = 4, 5
_RATING_FLOPS = 3


def attention(op: Op) -> Work:
    """Count the unmasked scores' products and softmax.

    Each has one exp. The scores of an index are cut off at zero, weighed and added up instead.
    """
    (fused,) = attentions(op)
    product = Work(flops=flop_counts(fused.multiplied, fused.flops))
    if fused.only_rates:
        weighed = Work(flops=flop_counts("f32", _RATING_FLOPS * fused.scores))
        return summed((product, weighed, _traffic(op)))
    steps = _SOFTMAX_GRADIENT_FLOPS if fused.is_backward else _SOFTMAX_FLOPS
    steps += fused.has_bias
    softmax = Work(flops=flop_counts("f32", steps * fused.scores), transcendentals=fused.scores)
    memory_traffic = _traffic(op)
    if fused.is_paged or fused.is_of_chosen:
        # Only the pages that the tables name, or the chosen vectors, are read.
        cache_bytes = bytes_of(op.operands[1 : 3 if fused.is_paged else 2])
        unread = max(0, cache_bytes - fused.cache_bytes)
        memory_traffic = replace(memory_traffic, bytes_read=memory_traffic.bytes_read - unread)
    return summed((product, softmax, memory_traffic))


def _packing(op: Op) -> str:
    (fused,) = attentions(op)
    if fused.segments <= 1:
        return ""
    return (
        f"rows of up to {fused.segments} packed sequences are priced as one sequence each: how "
        "long those are is data"
    )


def work_by_author(op: Op) -> Work | None:
    """Return the work that a kernel's author states, or None.

    FLOPs count under the type of the first operand. The results are the bytes written.
    """
    stated = author_cost(op)
    if stated is None:
        return None
    written = min(stated.bytes_accessed, _traffic(op).bytes_written)
    return Work(
        flops=flop_counts(arithmetic_type(operand(op, 0).element), stated.flops),
        transcendentals=stated.transcendentals,
        bytes_read=stated.bytes_accessed - written,
        bytes_written=written,
    )


_TOP_K = (TOP_K, TOP_K_OF_GPUS, "mhlo.topk", "stablehlo.dynamic_top_k")
_THREEFRY = ("cu_threefry2x32", "cu_threefry2x32_ffi", "hip_threefry2x32_ffi")
_CHOLESKY = ("cusolver_potrf_ffi", "hipsolver_potrf_ffi", *(f"lapack_{t}potrf_ffi" for t in "sdcz"))
_LU = (
    "cusolver_getrf_ffi",
    "hipsolver_getrf_ffi",
    "LuDecomposition",
    *(f"lapack_{t}getrf_ffi" for t in "sdcz"),
)
_REFLECTORS = (
    "cusolver_geqrf_ffi",
    "cusolver_orgqr_ffi",
    "ProductOfElementaryHouseholderReflectors",
    "Qr",
    *(f"lapack_{t}{routine}_ffi" for t in "sd" for routine in ("geqrf", "orgqr")),
)
_PIVOTS = ("cu_lu_pivots_to_permutation", "hip_lu_pivots_to_permutation")
_HALVES = ("X64Combine", "X64SplitHigh", "X64SplitLow")
"""A TPU splits and joins the halves of 64-bit and complex numbers by these calls."""
_TRIANGULAR = tuple(f"lapack_{t}trsm_ffi" for t in "sdcz")
_MATRIX_PRODUCTS = ("__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8")
_ATTENTIONS = tuple(
    f"__cudnn$fmha{before}Softmax{dropout}{backward}"
    for before in ("", "ScaleBias")
    for dropout in ("", "Dropout")
    for backward in ("", "Backward")
)

TARGETS = {
    **dict.fromkeys(_MATRIX_PRODUCTS, matrix_product),
    **dict.fromkeys(sorted(CUDNN_CONVOLUTIONS), convolution),
    **dict.fromkeys(
        (
            *_ATTENTIONS,
            "__cudnn$fmhaSoftmaxF8",
            "__cudnn$fmhaSoftmaxBackwardF8",
            FLASH_FORWARD,
            FLASH_BACKWARD,
            FLASH_MLA,
            FLASH_MLA_SPARSE,
            INDEX_SCORES,
        ),
        attention,
    ),
    **dict.fromkeys(CUB_SORTS, radix_sort),
    **dict.fromkeys((*_ANNOTATIONS, *_PLACEMENTS), nothing),
    **dict.fromkeys(_TOP_K, top_k),
    **dict.fromkeys(_THREEFRY, threefry),
    **dict.fromkeys(_CHOLESKY, cholesky),
    **dict.fromkeys(_TRIANGULAR, triangular_solve),
    **dict.fromkeys(_LU, lu_decomposition),
    **dict.fromkeys(_REFLECTORS, householder),
    **dict.fromkeys((*_PIVOTS, *_HALVES), traffic),
}
