"""Compute a kernel's scalars for all grid steps at once.

A number that depends on data is opaque: a mark represents it, equal for the same function of the
same arguments, and taken to differ everywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number at each step: an axis per dimension, of length 1 if constant."""

    numbers: Numbers
    is_known: bool = True


def number(value: int, rank: int) -> Scalar:
    """Return a number that is equal at every step."""
    return Scalar(np.full((1,) * rank, value, dtype=np.int64))


def opaque(mark: int, rank: int, arguments: Sequence[Scalar] = ()) -> Scalar:
    """Return the mark of a function that depends on data."""
    mixed = np.full((1,) * rank, mark, dtype=np.uint64)
    for argument in arguments:
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + argument.numbers.astype(np.uint64)
        mixed ^= mixed >> np.uint64(29)
    return Scalar(mixed.astype(np.int64), is_known=False)


def counting(length: int, axis: int, rank: int) -> Numbers:
    """Return 0, 1, ... along one axis."""
    shape = [1] * rank
    shape[axis] = length
    return np.arange(length, dtype=np.int64).reshape(shape)


def _quotient(left: Numbers, right: Numbers) -> Numbers:
    """Divide towards zero; division by zero gives 0.

    Only steps that never run divide by zero.
    """
    divisor = np.where(right == 0, 1, right)
    magnitude = np.abs(left) // np.abs(divisor)
    return np.where(right == 0, 0, magnitude * np.sign(left) * np.sign(divisor))


def _remainder(left: Numbers, right: Numbers) -> Numbers:
    return left - _quotient(left, right) * right


def _right_shift(left: Numbers, right: Numbers) -> Numbers:
    return left >> np.clip(right, 0, 63)


Function = Callable[[Numbers, Numbers], Any]

_TWO_OPERANDS: Mapping[str, Function] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divsi": _quotient,
    "arith.divui": _quotient,
    "arith.remsi": _remainder,
    "arith.remui": _remainder,
    "arith.floordivsi": lambda left, right: left // np.where(right == 0, 1, right),
    "arith.ceildivsi": lambda left, right: -(-left // np.where(right == 0, 1, right)),
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": lambda left, right: left << np.clip(right, 0, 63),
    "arith.shrsi": _right_shift,
    "arith.shrui": _right_shift,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxui": np.maximum,
    "arith.minui": np.minimum,
}
# In the order of MLIR's numbers for them: eq ne slt sle sgt sge, and without sign.
_COMPARISONS: tuple[Function, ...] = (
    np.equal,
    np.not_equal,
    *(np.less, np.less_equal, np.greater, np.greater_equal) * 2,
)
UNCHANGED = frozenset(
    {
        "arith.extui",
        "arith.index_cast",
        "arith.index_castui",
        "arith.trunci",
        "tpu.assume_multiple",
    }
)
"""Operations that leave a number unchanged."""
_INTEGER = re.compile(r"(-?\d+)\b(?!\.)")


def constant(text: str, rank: int) -> Scalar:
    """Return the number of an ``arith.constant``; floats are opaque.

    No float decides a step.

    >>> int(constant("-2 : i32", 1).numbers[0]), int(constant("true", 1).numbers[0])
    (-2, 1)
    >>> constant("1.000000e+00 : f32", 1).is_known
    False
    """
    if text in ("true", "false"):
        return number(int(text == "true"), rank)
    match = _INTEGER.match(text)
    if match is None or not text.rpartition(" : ")[2].startswith(("i", "s", "u")):
        return opaque(len(text), rank)
    return number(int(match[1]), rank)


def computed(name: str, attributes: Mapping[str, str], operands: Sequence[Scalar]) -> Scalar | None:
    """Return an operation's result on known numbers, or None."""
    numbers = [operand.numbers for operand in operands]
    if name in UNCHANGED or name == "arith.extsi":
        return Scalar(numbers[0])
    if name == "arith.select":
        return Scalar(np.where(numbers[0] != 0, numbers[1], numbers[2]))
    if name == "arith.cmpi":
        compare = _COMPARISONS[int(attributes["predicate"].partition(" ")[0])]
        return Scalar(compare(*numbers).astype(np.int64))
    function = _TWO_OPERANDS.get(name)
    return None if function is None else Scalar(function(*numbers).astype(np.int64))


_NEUTRAL_RIGHT = {
    "arith.addi": 0,
    "arith.divsi": 1,
    "arith.divui": 1,
    "arith.muli": 1,
    "arith.ori": 0,
    "arith.subi": 0,
}
_NEUTRAL_LEFT = {"arith.addi": 0, "arith.muli": 1, "arith.ori": 0}


def unchanged(name: str, operands: Sequence[Scalar]) -> Scalar | None:
    """Return the operand that an operation passes through, or None.

    Pallas loops have bounds such as 0 + n / 1 * 1, followed by a second loop from there to n.
    """
    if name in UNCHANGED:
        return operands[0]
    if len(operands) != 2:
        return None
    left, right = operands
    if _equals(right, _NEUTRAL_RIGHT.get(name)):
        return left
    return right if _equals(left, _NEUTRAL_LEFT.get(name)) else None


def _equals(scalar: Scalar, value: int | None) -> bool:
    return value is not None and scalar.is_known and bool((scalar.numbers == value).all())


def same(left: Scalar, right: Scalar) -> bool:
    """Return whether two numbers are equal at every step."""
    return left.is_known == right.is_known and bool(np.array_equal(left.numbers, right.numbers))
