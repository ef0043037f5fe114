"""Count library work: linear algebra, transforms, normalisation, random numbers, sorts.

XLA's HloCostAnalysis is only rough on factorisations (docs/evidence/operation-counts.md); these are
the textbook counts.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2, prod
from typing import TYPE_CHECKING

from hespas.errors import CostError
from hespas.program.attrs import DimensionAttrs, FftAttrs, KernelAttrs
from hespas.program.operations.movement import nothing
from hespas.program.operations.traits import (
    Category,
    Traits,
    arithmetic_type,
    ceil_log2,
    first_result,
    operand,
    result,
    traffic,
)
from hespas.program.types import NumberKind, tensors
from hespas.program.work import ZERO, Work, flop_counts

if TYPE_CHECKING:
    from hespas.program.program import Op


def _solved(op: Op, flops: int, roots: int = 0) -> Work:
    """Count FLOPs of a solver; a complex one is four."""
    element = operand(op, 0).element
    scale = 4 if element.kind is NumberKind.COMPLEX else 1
    counts = flop_counts(arithmetic_type(element), scale * flops)
    return traffic(op, flops=counts, transcendentals=roots)


def cholesky(op: Op) -> Work:
    """Count the FLOPs and roots of Cholesky factorisations.

    (n^3 - n) / 3 + n (n - 1) / 2 FLOPs and n roots for each n x n matrix. Column j subtracts j
    products from each of its n - j entries, 2 j (n - j) FLOPs, which add up to (n^3 - n) / 3; it
    takes one root, and divides the n - j - 1 entries below it.
    """
    *batch, _, size = operand(op, 0).shape
    count = prod(batch)
    flops = (size**3 - size) // 3 + size * (size - 1) // 2
    return _solved(op, count * flops, roots=count * size)


def triangular_solve(op: Op) -> Work:
    """Count n^2 FLOPs per right-hand side of length n.

    Unknown i subtracts i products and divides once: 2 i + 1 FLOPs, which add up to n^2. The
    solution has n unknowns for each right-hand side, so it is n FLOPs for each element.
    """
    return _solved(op, operand(op, 0).shape[-1] * result(op).element_count)


def lu_decomposition(op: Op) -> Work:
    """Count the FLOPs of LU factorisations.

    n^2 (m - n / 3) for each m x n matrix, m not less than n. Step j divides m - j entries and
    subtracts j's row from the rest: 2 (m - j) (n - j). Source: Golub and Van Loan, "Matrix
    Computations", section 3.4.
    """
    count, rows, columns = _oblong(op)
    return _solved(op, count * round(columns**2 * (rows - columns / 3)))


def householder(op: Op) -> Work:
    """Count the FLOPs of Householder reflectors.

    2 n^2 (m - n / 3) for each m x n matrix, m not less than n. It holds for the reflectors of a QR
    decomposition and for their product. Source: Golub and Van Loan, "Matrix Computations", section
    5.2.
    """
    count, rows, columns = _oblong(op)
    return _solved(op, count * round(2 * columns**2 * (rows - columns / 3)))


def _oblong(op: Op) -> tuple[int, int, int]:
    *batch, rows, columns = operand(op, 0).shape
    return prod(batch), max(rows, columns), min(rows, columns)


def fft(op: Op) -> Work:
    """Count 5 N log2 N FLOPs for N points.

    A real transform takes half. Each of log2 N stages has N / 2 butterflies of a complex product (6
    FLOPs) and two complex sums (2 each). A transform over several dimensions has the stages of all
    of them, and passes over memory once for each: what lies between two passes is complex. Source:
    Cooley and Tukey 1965; the figure by which FFT libraries state their speed; cuFFT's
    documentation.
    """
    attrs = op.attrs
    if not isinstance(attrs, FftAttrs):
        raise CostError("the lengths of a transform are not known", location=op.location)
    source, transformed = operand(op, 0), result(op)
    batch = prod(source.shape[: len(source.shape) - len(attrs.lengths)])
    points = prod(attrs.lengths)
    flops = 5 * points * log2(points) if points > 1 else 0
    is_real = attrs.kind in ("RFFT", "IRFFT")
    count = batch * round(flops / 2 if is_real else flops)
    first_pass = traffic(op, flops=flop_counts(arithmetic_type(transformed.element), count))
    between = source.size_bytes if attrs.kind == "IRFFT" else transformed.size_bytes
    later_bytes = (len(attrs.lengths) - 1) * between
    return first_pass + Work(bytes_read=later_bytes, bytes_written=later_bytes)


def batch_norm_inference(op: Op) -> Work:
    """Count 3 FLOPs per element.

    These are (x - mean) * factor + offset. For each feature, factor = scale * rsqrt(variance +
    epsilon).
    """
    return _normalisation(op, each_element=3, each_feature=2)


def batch_norm_training(op: Op) -> Work:
    """Count 7 FLOPs per element.

    3 normalise the element, 4 are its part in the mean and the variance. The mean adds x (1); the
    variance adds (x - mean)^2 (3). For each feature: two divisions, and scale * rsqrt(variance +
    epsilon).
    """
    return _normalisation(op, each_element=3 + 4, each_feature=4)


def batch_norm_grad(op: Op) -> Work:
    """Count 9 FLOPs per element.

    With c = x - mean (1): the sums of g (1) and of g * c (2), then
    factor * (N * g - sum(g) - c * k) (5). For each feature: the variance's rsqrt, and the
    products that make factor and k.
    """
    return _normalisation(op, each_element=9, each_feature=5)


def _normalisation(op: Op, *, each_element: int, each_feature: int) -> Work:
    image, features = operand(op, 0), operand(op, 1).element_count
    count = each_element * image.element_count + each_feature * features
    flops = flop_counts(arithmetic_type(image.element), count)
    return traffic(op, flops=flops, transcendentals=features)


_LIBRARY = Traits(category=Category.LINEAR_ALGEBRA)

TRAITS = {
    "batch_norm_grad": replace(_LIBRARY, work=batch_norm_grad),
    "batch_norm_inference": replace(_LIBRARY, work=batch_norm_inference),
    "batch_norm_training": replace(_LIBRARY, work=batch_norm_training),
    "cholesky": replace(_LIBRARY, work=cholesky, kernel_name="linear algebra"),
    "fft": replace(_LIBRARY, work=fft, kernel_name="fft"),
    "triangular_solve": replace(_LIBRARY, work=triangular_solve, kernel_name="linear algebra"),
}


def rng(op: Op) -> Work:
    """Count one transcendental per number drawn (XLA's HloCostAnalysis).

    The bounds and the generator's state are read, numbers and new state are written.
    """
    drawn = [kind for value in op.results for kind in tensors(value.type)]
    return traffic(op, transcendentals=sum(kind.element_count for kind in drawn))


# Threefry 2x32 makes two numbers with 20 rounds of add, rotate (2 shifts, 1 or) and xor, after 2
# additions of the key; 5 times in between it adds the key and a counter, 3 additions.
# Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
_THREEFRY_FLOPS_PER_PAIR = 20 * 5 + 2 + 5 * 3


def threefry(op: Op) -> Work:
    """Count the integer operations of Threefry 2x32."""
    numbers = first_result(op)
    name = arithmetic_type(numbers.element)
    return traffic(op, flops=flop_counts(name, numbers.element_count * _THREEFRY_FLOPS_PER_PAIR))


_RANDOM = Traits(category=Category.RANDOM, work=rng, kernel_name="random numbers")

RANDOM_TRAITS = {
    "rng": replace(_RANDOM, fusion_rank=6),
    "rng_bit_generator": replace(_RANDOM, fusion_rank=7),
    "xla.rng_get_and_update_state": replace(_RANDOM, kernel_name=""),
}


def top_k(op: Op) -> Work:
    """Count ceil(log2(k + 1)) comparisons per element.

    A heap keeps the k largest or smallest of each row. An element that enters a heap of k passes
    its ceil(log2(k + 1)) levels. The k values and their indices, the second result, are written.
    """
    source = operand(op, 0)
    comparisons = source.element_count * ceil_log2(first_result(op).shape[-1] + 1)
    return traffic(op, flops=flop_counts(arithmetic_type(source.element), comparisons))


def sort(op: Op, bodies: tuple[Work, ...]) -> Work:  # noqa: ARG001 - a comparison counts as one FLOP
    """Count n log2 n comparisons per row.

    A comparison is one FLOP, whatever the comparator does about NaNs (XLA's convention). Keys
    and values are read once and written once: the least that a sort can do.
    """
    keys = operand(op, 0)
    if not isinstance(op.attrs, DimensionAttrs):
        raise CostError("the sorted dimension is not known", location=op.location)
    length = keys.shape[op.attrs.dimension] if keys.shape else 1
    comparisons = keys.element_count * ceil_log2(length)
    return traffic(op, flops=flop_counts(arithmetic_type(keys.element), comparisons))


SORTING_TRAITS = {
    "sort": Traits(
        category=Category.SORTING, work_of_bodies=sort, kernel_name="sort", fusion_rank=1
    ),
    "topk": Traits(category=Category.SORTING, work=top_k),
}


def moved_bytes(op: Op) -> Work:
    """Return the work of kernels known by bytes."""
    if not isinstance(op.attrs, KernelAttrs):
        return ZERO
    return Work(
        flops=op.attrs.flops,
        bytes_read=op.attrs.bytes_read,
        bytes_written=op.attrs.bytes_written,
    )


LAUNCHED = Traits(category=Category.KERNEL, work=moved_bytes, has_effect=True)
"""The traits of all operations with `hespas.program.attrs.KernelAttrs`, under any name."""

_EVENT = Traits(category=Category.STRUCTURE, work=nothing, runs_nothing=True, has_effect=True)
EVENT_TRAITS = {"host_wait": _EVENT, "record_event": _EVENT, "wait_event": _EVENT}
