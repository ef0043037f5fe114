"""Which unit of a TPU an operation on vectors uses, and on how many elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from hespas.program.mosaic import KernelType


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
