"""Tally a kernel's operations and the units that they use."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from pathlib import Path

import msgspec

from hespas.errors import CostError
from hespas.program.kernels import KernelOp, KernelType


class Unit(Enum):
    """The parts of a vector unit; they work concurrently."""

    ARITHMETIC = "arithmetic"
    FUNCTIONS = "functions"
    LANES = "lanes"
    LOADS = "loads"
    STORES = "stores"


class VectorUse(msgspec.Struct, frozen=True, kw_only=True):
    """A unit's work on a vector; ``is_arithmetic`` marks counted FLOPs and functions."""

    unit: Unit
    kind: KernelType
    is_arithmetic: bool

    @property
    def elements(self) -> int:
        """The elements of the vector."""
        return prod(self.kind.shape)


Types = Sequence[KernelType]
Choice = Callable[[Types, Types], KernelType | None]
"""Chooses the vector that a unit works on from operands and results; None if it is idle."""


def _wider(operands: Types, results: Types) -> KernelType:
    # A conversion or comparison takes as long as its wider side.
    return max((kind for kind in (*results, *operands) if kind.is_vector), key=element_bits)


def _result(_: Types, results: Types) -> KernelType:
    return results[0]


def _source(operands: Types, _: Types) -> KernelType:
    return operands[0]


def _divisor(operands: Types, _: Types) -> KernelType | None:
    return next((kind for kind in operands[1:] if kind.is_vector), None)


def _stored(operands: Types, _: Types) -> KernelType | None:
    return next((kind for kind in operands if kind.is_vector), None)


def _reduced_lanes(operands: Types, results: Types) -> KernelType | None:
    # If the last dimension is reduced, so are the lanes of the one register that is left.
    source, result = operands[0], results[0]
    if result.shape and source.shape[-1] == result.shape[-1]:
        return None
    return KernelType(element=source.element, shape=(*source.shape[:-1], 1), is_vector=True)


def _column(operands: Types, results: Types) -> KernelType | None:
    # A column is copied along the lanes; a scalar or a row is loaded in that form.
    source, result = operands[0], results[0]
    is_column = source.is_vector and source.shape and source.shape[-1] != result.shape[-1]
    return source if is_column else None


Rule = tuple[tuple[Unit, Choice, bool], ...]
_ARITHMETIC: Rule = ((Unit.ARITHMETIC, _wider, True),)
_FUNCTION: Rule = ((Unit.FUNCTIONS, _result, True),)
# Multiply by the reciprocal, which counts as one FLOP.
_DIVISION: Rule = ((Unit.FUNCTIONS, _divisor, False), (Unit.ARITHMETIC, _result, True))
_LANES: Rule = ((Unit.LANES, _wider, False),)
_REDUCTION: Rule = ((Unit.ARITHMETIC, _source, True), (Unit.LANES, _reduced_lanes, False))
_BROADCAST: Rule = ((Unit.LANES, _column, False),)
_LOAD: Rule = ((Unit.LOADS, _result, False),)
_STORE: Rule = ((Unit.STORES, _stored, False),)
OPERATIONS = json.loads(Path(__file__).with_name("operations.json").read_bytes())
"""Operations by what they do to ``vectors``, and those that only name memory, wait, or mark a
position in a profile (``no_vectors``)."""
_KINDS: Mapping[str, Rule] = {
    "arithmetic": _ARITHMETIC,
    "function": _FUNCTION,
    "division": _DIVISION,
    "lanes": _LANES,
    "reduction": _REDUCTION,
    "broadcast": _BROADCAST,
    "load": _LOAD,
    "store": _STORE,
    # Registers are renamed, or data is already in position.
    "nothing": (),
}
_RULES = {name: _KINDS[kind] for kind, names in OPERATIONS["vectors"].items() for name in names}


def uses(name: str, operands: Types, results: Types) -> list[VectorUse] | None:
    """Return a vector operation's units; None if unknown.

    >>> row = KernelType(element="f32", shape=(8, 128), is_vector=True)
    >>> [use.unit.value for use in uses("arith.divf", [row, row], [row])]
    ['functions', 'arithmetic']
    """
    if name not in _RULES:
        return None
    choices = [(unit, choose(operands, results), counts) for unit, choose, counts in _RULES[name]]
    return [
        VectorUse(unit=unit, kind=kind, is_arithmetic=counts)
        for unit, kind, counts in choices
        if kind
    ]


_BITS = {"index": 32, "i1": 32}


def element_bits(kind: KernelType) -> int:
    """Return the bits of an element in a register.

    A mask takes as many as a number.

    >>> element_bits(KernelType(element="bf16")), element_bits(KernelType(element="i1"))
    (16, 32)
    """
    bits = _BITS.get(kind.element)
    if bits is not None:
        return bits
    digits = re.search(r"\d+", kind.element)
    return int(digits[0]) if digits else 32


class KernelProduct(msgspec.Struct, frozen=True, kw_only=True):
    """``batch`` products, (m x k) by (k x n), in full precision or rounded to bf16."""

    batch: int
    m: int
    n: int
    k: int
    left: str
    right: str
    is_full_precision: bool

    @property
    def multiply_accumulates(self) -> int:
        """The products of two elements."""
        return self.batch * self.m * self.n * self.k


def _counts() -> defaultdict[int, float]:
    return defaultdict(float)


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of operations, and bytes of explicit copies.

    The keys of ``read`` and ``written`` are the kernel's arguments for the arrays in memory.
    """

    products: defaultdict[KernelProduct, float] = field(default_factory=lambda: defaultdict(float))
    vectors: defaultdict[VectorUse, float] = field(default_factory=lambda: defaultdict(float))
    read: defaultdict[int, float] = field(default_factory=_counts)
    written: defaultdict[int, float] = field(default_factory=_counts)

    def add(self, tally: Tally, times: float = 1.0) -> None:
        """Add another tally ``times`` times."""
        for product, count in tally.products.items():
            self.products[product] += count * times
        for use, count in tally.vectors.items():
            self.vectors[use] += count * times
        for totals, added in ((self.read, tally.read), (self.written, tally.written)):
            for number, count in added.items():
                totals[number] += count * times

    @property
    def size(self) -> tuple[float, float, float]:
        """The sort key of a tally: products, vector elements, bytes."""
        return (
            sum(item.multiply_accumulates * count for item, count in self.products.items()),
            sum(item.elements * count for item, count in self.vectors.items()),
            sum(self.read.values()) + sum(self.written.values()),
        )


_LIST = re.compile(r"\[([\d, ]*)\]")
_MAP = re.compile(r"affine_map<\(([^)]*)\) -> \(([^)]*)\)>")


def product_of(op: KernelOp, left: KernelType, right: KernelType) -> KernelProduct:
    """Return the product of a ``tpu.matmul`` or ``vector.contract``.

    Raises `CostError` for one whose dimensions cannot be read.
    """
    contracted, batched = _dimensions(op)
    if len(contracted) != 2 or len(batched) != 2:
        raise CostError(f"the dimensions of {op.name} cannot be read", location=op.place)
    k = prod(left.shape[dimension] for dimension in contracted[0])
    batch = prod(left.shape[dimension] for dimension in batched[0])
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
    numbers = op.attributes.get("dimension_numbers", "")
    if numbers:
        lists = [tuple(map(int, re.findall(r"\d+", text))) for text in _LIST.findall(numbers)]
        return lists[:2], lists[5:7]
    if op.name == "tpu.matmul":
        right = 1 if op.attributes.get("transpose_rhs", "false") == "true" else 0
        return [(1,), (right,)], [(), ()]
    return _dimensions_of_maps(op.attributes)


def _dimensions_of_maps(attributes: Mapping[str, str]) -> tuple[Dimensions, Dimensions]:
    maps = _MAP.findall(attributes.get("indexing_maps", ""))
    names = [[part.strip() for part in results.split(",")] for _, results in maps]
    if len(names) != 3:
        return [], []
    left, right, result = names
    shared = [name for name in left if name in right]
    contracted = [name for name in shared if name not in result]
    batched = [name for name in shared if name in result]
    sides = (left, right)
    return (
        [tuple(map(side.index, contracted)) for side in sides],
        [tuple(map(side.index, batched)) for side in sides],
    )
