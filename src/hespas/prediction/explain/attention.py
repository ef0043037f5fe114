"""Attention whose scores are written to memory and read again.

It is known by its shapes: a batch of products makes scores of H x S x T elements, an exponential is
taken of as many, and products of the same batch sum over them. With N products that make scores and
M that sum over them, forward and backward passes (`F` and `B`) are found from what each consists of
in Dao, "FlashAttention-2", 2023: F + B = N (``q k^T``, ``do v^T``) and F + 3 B = M (``p v``, and
``dv``, ``dq``, ``dk``). Queries that share a key are rows of one product. A mask is causal if
places of queries and keys are compared: two counts along the dimensions of the scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import assert_never

from hespas.base.frozen import frozen
from hespas.price.driver import OperationMethod
from hespas.price.estimate import Estimate, OpEstimate, Price
from hespas.price.measured import Measured
from hespas.price.ptx.kernels import KernelEstimator
from hespas.price.roofline import Roofline
from hespas.program.attrs import CompareAttrs
from hespas.program.program import Op, Program, Value, all_ops
from hespas.program.types import PRODUCT_TYPES, TensorType
from hespas.program.work import Work, flop_counts
from hespas.work.attention import Attention
from hespas.work.expand import Leaf
from hespas.work.gemm import Gemm, gemms

_MAKES, _SUMS, _REST = "makes scores", "sums over scores", "is of scores"
_PRODUCTS = frozenset({"custom_call", "dot", "dot_general", "fusion"})
PricesAttention = Roofline | KernelEstimator | Measured
"""The methods that know what fused attention takes: by tables, or by the roofline."""


@frozen
class Scores:
    """The scores of unfused attention.

    ``sharing`` of the ``heads`` read the same keys.
    """

    heads: int
    sharing: int
    query_length: int
    key_length: int
    head_size: int
    multiplied: str
    is_causal: bool

    @property
    def rows(self) -> int:
        """The queries that share keys: the rows of a product."""
        return self.sharing * self.query_length

    @property
    def text(self) -> str:
        """The shape in words."""
        return f"{self.heads} x {self.query_length} x {self.key_length}"

    @property
    def computed(self) -> str:
        """The scores that a kernel computes, in words."""
        return "what its causal mask leaves" if self.is_causal else "all scores"

    def is_of(self, op: Op) -> bool:
        """Return whether an operation reads or writes the scores."""
        shapes = {
            (self.heads, self.query_length, self.key_length),
            (self.heads // self.sharing, self.rows, self.key_length),
        }
        if any(_shape(value.type) in shapes for value in (*op.operands, *op.results)):
            return True
        return _part(op, self) != _REST

    def fused(self, *, is_backward: bool) -> Attention:
        """Return the attention as one kernel, which skips masked tokens."""
        return Attention(
            batch=1,
            heads=self.heads,
            key_heads=self.heads // self.sharing,
            query_length=self.query_length,
            key_length=self.key_length,
            head_size=self.head_size,
            value_size=self.head_size,
            is_causal=self.is_causal,
            is_backward=is_backward,
            multiplied=self.multiplied,
        )


def unfused(program: Program) -> Scores | None:
    """Return the largest scores that a program keeps, if any."""
    operations = list(all_ops(program))
    exponentials = {
        shape
        for op in operations
        if op.kind == "exponential" and (shape := _shape(op.results[0].type))
    }
    products = [product for op in operations if op.kind in _PRODUCTS for product in gemms(op)]
    candidates = (_scores(product, products, exponentials) for product in products)
    largest = max(
        filter(None, candidates),
        key=lambda scores: scores.heads * scores.query_length * scores.key_length,
        default=None,
    )
    if largest is None:
        return None
    return replace(largest, is_causal=_has_causal_mask(operations, largest))


def _scores(
    product: Gemm, products: Iterable[Gemm], exponentials: set[tuple[int, ...]]
) -> Scores | None:
    for rows, keys in ((product.m, product.n), (product.n, product.m)):
        sharing = _sharing(product.batch, rows, keys, exponentials)
        if not sharing or product.k >= min(rows // sharing, keys):
            continue
        if any(
            summing.batch == product.batch and _sums(summing, product.k, (rows, keys))
            for summing in products
        ):
            return Scores(
                heads=product.batch * sharing,
                sharing=sharing,
                query_length=rows // sharing,
                key_length=keys,
                head_size=product.k,
                multiplied=product.multiplied,
                is_causal=False,
            )
    return None


def _sharing(batch: int, rows: int, keys: int, exponentials: set[tuple[int, ...]]) -> int:
    """Return the number of heads that share a product's keys.

    It is 0 without exponentials of such scores.
    """
    for heads, query_length, key_length in sorted(exponentials):
        if key_length == keys and heads * query_length == batch * rows and not heads % batch:
            return heads // batch
    return 0


_ORDERS = frozenset({"LT", "LE", "GT", "GE"})
_PASSED = frozenset(
    {"add", "bitcast", "broadcast_in_dim", "convert", "copy", "reshape", "subtract"}
)


def _has_causal_mask(operations: Iterable[Op], scores: Scores) -> bool:
    producers = {result: op for op in operations for result in op.results}
    lengths = sorted((scores.query_length, scores.key_length))
    return any(
        isinstance(op.attrs, CompareAttrs)
        and op.attrs.direction in _ORDERS
        and isinstance(op.results[0].type, TensorType)
        and sorted(size for size in op.results[0].type.shape if size > 1) == lengths
        and all(_counts(operand, producers) for operand in op.operands)
        for op in operations
    )


def _counts(value: Value, producers: Mapping[Value, Op]) -> bool:
    """Return whether a value is an iota, perhaps shifted."""
    op = producers.get(value)
    while op is not None and op.kind in _PASSED:
        counting = [operand for operand in op.operands if not _is_constant(operand, producers)]
        op = producers.get(counting[0]) if len(counting) == 1 else None
    return op is not None and op.kind == "iota"


def _is_constant(value: Value, producers: Mapping[Value, Op]) -> bool:
    op = producers.get(value)
    while op is not None and op.kind in _PASSED and len(op.operands) == 1:
        op = producers.get(op.operands[0])
    return op is not None and op.kind == "constant"


def _sums(product: Gemm, head_size: int, lengths: tuple[int, int]) -> bool:
    own = sorted((product.m, product.n, product.k))
    return head_size in {product.m, product.n} and own == sorted((*lengths, head_size))


def _shape(kind: object) -> tuple[int, ...]:
    """Return the heads and both lengths of scores, if any."""
    if not isinstance(kind, TensorType):
        return ()
    sizes = [size for size in kind.shape if size > 1]
    if len(sizes) < 3:
        return ()
    return prod(sizes[:-2]), sizes[-2], sizes[-1]


@frozen
class Labelled:
    """Labels each operation's part of attention in another method's prices."""

    method: OperationMethod
    scores: Scores

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Return the price with launches, under its label."""
        price = self.method.price(leaf, is_kernel=is_kernel)
        if not self.scores.is_of(leaf.op):
            return Price(cost=OpEstimate())
        time_s = price.cost.time_s + price.launch_s
        return Price(cost=OpEstimate(count=1.0, time_s=time_s), label=_part(leaf.op, self.scores))


@frozen
class Fused:
    """Prices attention as one kernel for each pass.

    Products that make scores have the kernel's time, other operations on scores none.
    """

    method: OperationMethod
    scores: Scores
    each_s: float

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Return the price of one operation."""
        if not self.scores.is_of(leaf.op):
            return self.method.price(leaf, is_kernel=is_kernel)
        is_first = _part(leaf.op, self.scores) == _MAKES
        return Price(cost=OpEstimate(count=1.0, time_s=self.each_s if is_first else 0.0))


def _part(op: Op, scores: Scores) -> str:
    for product in gemms(op) if op.kind in _PRODUCTS else ():
        if product.batch != scores.heads // scores.sharing:
            continue
        lengths = (scores.rows, scores.key_length)
        if product.k == scores.head_size and sorted((product.m, product.n)) == sorted(lengths):
            return _MAKES
        if _sums(product, scores.head_size, lengths):
            return _SUMS
    return _REST


@frozen
class Passes:
    """The number of attention passes and their unfused time."""

    forward: float
    backward: float
    time_s: float

    def fused_s(self, scores: Scores, method: PricesAttention) -> float:
        """Return the time of all passes as fused kernels."""
        forward_s = _one_s(scores.fused(is_backward=False), method)
        backward_s = _one_s(scores.fused(is_backward=True), method)
        return self.forward * forward_s + self.backward * backward_s


def passes_of(labelled: Estimate) -> Passes | None:
    """Return the attention passes of labelled operations, if any."""
    counts = {name: cost.count for name, cost in labelled.per_op.items()}
    makes, sums = counts.get(_MAKES, 0.0), counts.get(_SUMS, 0.0)
    backward = (sums - makes) / 2
    forward = makes - backward
    if forward <= 0 or backward < 0:
        return None
    return Passes(forward=forward, backward=backward, time_s=labelled.time_s)


def _one_s(attention: Attention, method: PricesAttention) -> float:
    match method:
        case Measured():
            return method.attention.price(attention).time_s + method.gemm.part.about.alone_s
        case KernelEstimator(roofline=roofline, kernels=kernels):
            return _roofline_s(attention, roofline) + kernels.gpu.launch_s
        case Roofline():
            return _roofline_s(attention, method) + (method.device.launch_overhead_s or 0.0)
        case _:
            assert_never(method)


def _roofline_s(attention: Attention, roofline: Roofline) -> float:
    size = PRODUCT_TYPES[attention.multiplied].bits / 8
    rows = attention.heads * attention.query_length + attention.key_heads * attention.key_length
    one_way = round(rows * attention.head_size * size)
    # q, k, v and the result; backward also the result's gradient, and three more of the operands.
    work = Work(
        flops=flop_counts(attention.multiplied, attention.flops),
        bytes_read=(4 if attention.is_backward else 2) * one_way,
    )
    return roofline.at_peaks("attention", work).time_s
