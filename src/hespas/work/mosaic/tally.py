"""What steps of a kernel do, added up."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import msgspec

from hespas.errors import CostError
from hespas.program.mosaic import KernelOp, KernelType
from hespas.work.mosaic.vectors import Unit


class KernelProduct(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix product that a step runs: ``batch`` times (m x k) (k x n).

    ``is_full_precision`` marks products of f32 that must not be rounded to bf16.
    """

    batch: int
    m: int
    n: int
    k: int
    left: str
    right: str
    is_full_precision: bool

    @property
    def multiply_accumulates(self) -> int:
        """Products of two elements."""
        return self.batch * self.m * self.n * self.k


class VectorUse(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that works on a vector; ``is_arithmetic`` where that counts as FLOPs."""

    unit: Unit
    kind: KernelType
    is_arithmetic: bool

    @property
    def elements(self) -> int:
        """Elements of the vector."""
        return prod(self.kind.shape)


def _counts() -> defaultdict[int, float]:
    return defaultdict(float)


@dataclass(slots=True, kw_only=True)
class Tally:
    """How often each product and vector operation runs, and the bytes that copies by hand move.

    ``read`` and ``written`` are by the kernel's argument that stands for the array in memory.
    """

    products: defaultdict[KernelProduct, float] = field(default_factory=lambda: defaultdict(float))
    vectors: defaultdict[VectorUse, float] = field(default_factory=lambda: defaultdict(float))
    read: defaultdict[int, float] = field(default_factory=_counts)
    written: defaultdict[int, float] = field(default_factory=_counts)

    def add(self, other: Tally, times: float = 1.0) -> None:
        """Add what another tally holds, so many times."""
        for key, count in other.products.items():
            self.products[key] += count * times
        for use, count in other.vectors.items():
            self.vectors[use] += count * times
        for number, count in other.read.items():
            self.read[number] += count * times
        for number, count in other.written.items():
            self.written[number] += count * times

    @property
    def size(self) -> tuple[float, float, float]:
        """Orders tallies: products, then elements of vectors, then bytes."""
        return (
            sum(each.multiply_accumulates * count for each, count in self.products.items()),
            sum(each.elements * count for each, count in self.vectors.items()),
            sum(self.read.values()) + sum(self.written.values()),
        )


_LIST = re.compile(r"\[([\d, ]*)\]")
_MAP = re.compile(r"affine_map<\(([^)]*)\) -> \(([^)]*)\)>")


def product_of(op: KernelOp, left: KernelType, right: KernelType) -> KernelProduct:
    """Return the matrix product that ``tpu.matmul`` or ``vector.contract`` runs.

    Raises `CostError` for one whose dimensions cannot be read.
    """
    contracted, batched = _dimensions(op)
    if len(contracted) != 2 or len(batched) != 2:
        raise CostError(f"the dimensions of {op.name} cannot be read", location=op.place)
    sizes = [prod(left.shape[at] for at in dimensions[0]) for dimensions in (contracted, batched)]
    k, batch = sizes
    return KernelProduct(
        batch=batch,
        m=prod(left.shape) // (k * batch),
        n=prod(right.shape) // (k * batch),
        k=k,
        left=left.element,
        right=right.element,
        is_full_precision="fp32" in op.attributes.get("precision", ""),
    )


Dimensions = list[tuple[int, ...]]


def _dimensions(op: KernelOp) -> tuple[Dimensions, Dimensions]:
    """Return the contracted and the batched dimensions, each of the left and the right side."""
    numbers = op.attributes.get("dimension_numbers", "")
    if numbers:
        lists = [tuple(map(int, re.findall(r"\d+", text))) for text in _LIST.findall(numbers)]
        return lists[:2], lists[5:7]
    if op.name == "tpu.matmul":
        right = 1 if op.attributes.get("transpose_rhs", "false") == "true" else 0
        return [(1,), (right,)], [(), ()]
    return _of_maps(op.attributes)


def _of_maps(attributes: Mapping[str, str]) -> tuple[Dimensions, Dimensions]:
    maps = _MAP.findall(attributes.get("indexing_maps", ""))
    names = [[part.strip() for part in results.split(",")] for _, results in maps]
    if len(names) != 3:
        return [], []
    left, right, result = names
    both = [name for name in left if name in right]
    contracted = [name for name in both if name not in result]
    batched = [name for name in both if name in result]
    found = [
        [tuple(side.index(name) for name in chosen) for side in (left, right)]
        for chosen in (contracted, batched)
    ]
    return found[0], found[1]
