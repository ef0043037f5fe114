"""What steps of a kernel do, added up, and the unit that each vector operation uses."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod

import msgspec

from hespas.errors import CostError
from hespas.program.kernels import KernelOp, KernelType


class Unit(Enum):
    """The parts of a vector unit, which work at the same time."""

    ARITHMETIC = "arithmetic"
    FUNCTIONS = "functions"
    LANES = "lanes"
    LOADS = "loads"
    STORES = "stores"

    @property
    def is_transcendental(self) -> bool:
        """Whether its operations count as transcendental functions rather than FLOPs."""
        return self is Unit.FUNCTIONS


Types = Sequence[KernelType]
Use = tuple[Unit, KernelType, bool]
"""A unit, the vector that it works on, and whether that is arithmetic that counts as FLOPs."""


def _nothing(operands: Types, results: Types) -> list[Use]:
    """Use no unit: registers get other names, or data stand where they should already."""
    del operands, results
    return []


def _arithmetic(operands: Types, results: Types) -> list[Use]:
    return [(Unit.ARITHMETIC, _wider(operands, results), True)]


def _function(operands: Types, results: Types) -> list[Use]:
    del operands
    return [(Unit.FUNCTIONS, results[0], True)]


def _division(operands: Types, results: Types) -> list[Use]:
    """Multiply by the reciprocal, which counts as one FLOP."""
    divisor: list[Use] = [(Unit.FUNCTIONS, kind, False) for kind in operands[1:] if kind.is_vector]
    return [*divisor, (Unit.ARITHMETIC, results[0], True)]


def _load(operands: Types, results: Types) -> list[Use]:
    del operands
    return [(Unit.LOADS, results[0], False)]


def _store(operands: Types, results: Types) -> list[Use]:
    del results
    return [(Unit.STORES, kind, False) for kind in operands if kind.is_vector][:1]


def _across_lanes(operands: Types, results: Types) -> list[Use]:
    return [(Unit.LANES, _wider(operands, results), False)]


def _reduction(operands: Types, results: Types) -> list[Use]:
    """Reduce registers to one, and the lanes of that where the last dimension goes."""
    source, result = operands[0], results[0]
    found: list[Use] = [(Unit.ARITHMETIC, source, True)]
    if not result.shape or source.shape[-1] != result.shape[-1]:
        rows = KernelType(element=source.element, shape=(*source.shape[:-1], 1), is_vector=True)
        found.append((Unit.LANES, rows, False))
    return found


def _broadcast(operands: Types, results: Types) -> list[Use]:
    """Copy a column along the lanes; a number or a row is loaded so from the start."""
    source, result = operands[0], results[0]
    is_column = source.is_vector and source.shape and source.shape[-1] != result.shape[-1]
    return [(Unit.LANES, source, False)] if is_column else []


def _wider(operands: Types, results: Types) -> KernelType:
    """Return the widest type: what converts or compares takes as long as its wider side."""
    return max((kind for kind in (*results, *operands) if kind.is_vector), key=element_bits)


Rule = Callable[[Types, Types], list[Use]]
_OPERATIONS: tuple[tuple[Rule, str, str], ...] = (
    (
        _arithmetic,
        "arith",
        (
            "addf addi andi bitcast cmpf cmpi extf extsi extui fptosi fptoui maximumf maxnumf "
            "maxsi maxui minimumf minnumf minsi minui mulf muli negf ori select shli shrsi shrui "
            "sitofp subf subi truncf trunci uitofp xori"
        ),
    ),
    (_arithmetic, "math", "absf absi ceil copysign ctlz ctpop floor fma round roundeven trunc"),
    (
        _arithmetic,
        "tpu",
        (
            "bitcast bitcast_vreg create_mask create_subelement_mask extf fptosi fptoui iota "
            "mask_cast pack_elementwise pack_mask pack_subelements prng_random_bits roundtoint "
            "sitofp stochastic_convert stochastic_convert_elementwise truncf uitofp "
            "unpack_elementwise unpack_subelements weird"
        ),
    ),
    (_arithmetic, "vector", "fma step"),
    (
        _function,
        "math",
        (
            "acos acosh asin asinh atan atan2 atanh cbrt cos cosh erf erfc exp exp2 expm1 fpowi "
            "ipowi log log10 log1p log2 powf rsqrt sin sinh sqrt tan tanh"
        ),
    ),
    (_function, "tpu", "reciprocal"),
    (_division, "arith", "divf divsi divui remf remsi remui"),
    (_across_lanes, "tpu", "dynamic_gather dynamic_rotate gather rotate sublane_shuffle transpose"),
    (_across_lanes, "vector", "transpose"),
    (_reduction, "tpu", "all_reduce reduce_index scan"),
    (_reduction, "vector", "multi_reduction reduction"),
    (_broadcast, "vector", "broadcast"),
    (_load, "tpu", "load shuffled_load strided_load vector_load"),
    (_load, "vector", "load maskedload transfer_read"),
    (_store, "tpu", "shuffled_store store strided_store vector_store"),
    (_store, "vector", "maskedstore store transfer_write"),
    (_nothing, "arith", "constant"),
    (_nothing, "builtin", "unrealized_conversion_cast"),
    (
        _nothing,
        "tpu",
        "assume_layout concatenate relayout repeat reshape roll_vectors unroll_vectors",
    ),
    (
        _nothing,
        "vector",
        (
            "constant_mask create_mask extract extract_strided_slice insert insert_strided_slice "
            "shape_cast splat"
        ),
    ),
)
_RULES = {
    f"{dialect}.{name}": rule for rule, dialect, names in _OPERATIONS for name in names.split()
}


def uses(name: str, operands: Types, results: Types) -> list[Use] | None:
    """Return the units that an operation on vectors uses; None for one that is not known.

    >>> row = KernelType(element="f32", shape=(8, 128), is_vector=True)
    >>> [unit.value for unit, _, _ in uses("arith.divf", [row, row], [row])]
    ['functions', 'arithmetic']
    """
    rule = _RULES.get(name)
    return None if rule is None else rule(operands, results)


_BITS = {"index": 32, "i1": 32}


def element_bits(kind: KernelType) -> int:
    """Return the bits that an element takes in a register; a mask takes as many as a number.

    >>> element_bits(KernelType(element="bf16")), element_bits(KernelType(element="i1"))
    (16, 32)
    """
    known = _BITS.get(kind.element)
    if known is not None:
        return known
    digits = "".join(character if character.isdigit() else " " for character in kind.element)
    return int(digits.split()[0]) if digits.strip() else 32


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
