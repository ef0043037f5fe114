"""The arithmetic of addresses on all threads of a block at once.

A value is a whole number that all threads share, or an array with one element a thread: 32-bit
registers as int32, 64-bit ones as int64, predicates as bool. Semantics from NVIDIA's "Parallel
Thread Execution ISA", section 9.7; wrapping is two's complement.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Value = int | Array
"""One number for all threads, or one a thread."""

_WIDTHS = {"8": 32, "16": 32, "32": 32, "64": 64}


def narrowed(value: Value, bits: int) -> Value:
    """Return the value as a register of 32 or 64 bits holds it, signed.

    >>> narrowed(2**32 - 1, 32), narrowed(2**32 + 5, 32)
    (-1, 5)
    """
    if isinstance(value, int):
        half = 1 << (bits - 1)
        return ((value + half) & ((1 << bits) - 1)) - half
    if value.dtype == np.bool_:
        return value
    return value.astype(np.int32 if bits == 32 else np.int64, copy=False)


def unsigned(value: Value, bits: int) -> Value:
    """Return the same bits as an unsigned number, in 64 bits where 32 are given."""
    if isinstance(value, int):
        return value & ((1 << bits) - 1)
    if bits == 32:
        return value.view(np.uint32).astype(np.int64) if value.dtype == np.int32 else value
    return value.view(np.uint64)


def _wide(value: Value, kind: str) -> Value:
    bits = 16 if kind.endswith("16") else 32
    if kind[0] == "u":
        return unsigned(value, bits) if isinstance(value, int) else _as_unsigned(value)
    return value if isinstance(value, int) else value.astype(np.int64)


def _as_unsigned(value: Array) -> Array:
    return value.view(np.uint32).astype(np.int64) if value.dtype == np.int32 else value


def evaluate(parts: Sequence[str], operands: Sequence[Value]) -> Value | None:
    """Return what an instruction computes of its operands; None for one not known here.

    >>> evaluate(("mad", "lo", "s32"), (3, 4, 5)), evaluate(("shr", "u32"), (-1, 28))
    (17, 15)
    """
    rule = _RULES.get(parts[0])
    return None if rule is None else rule(parts, operands)


def bits_of(parts: Sequence[str]) -> int:
    """Return the width of the register that an instruction writes: 32 or 64."""
    if "wide" in parts:
        return 32 if parts[-1].endswith("16") else 64
    kind = parts[1] if parts[0] == "cvt" and parts[1][0] in "usb" else parts[-1]
    return _WIDTHS.get(kind.lstrip("usbf"), 32)


def _sensitive(value: Value, kind: str) -> Value:
    """Read a register as its instruction types it."""
    if kind[0] != "u":
        return value
    return unsigned(value, 64 if kind.endswith("64") else 32)


def _plain(function: Callable[[Value, Value], Value]) -> Rule:
    return lambda _, operands: function(operands[0], operands[1])


def _typed(function: Callable[[Value, Value], Value]) -> Rule:
    def rule(parts: Sequence[str], operands: Sequence[Value]) -> Value:
        kind = parts[-1]
        return function(_sensitive(operands[0], kind), _sensitive(operands[1], kind))

    return rule


def _multiply(parts: Sequence[str], operands: Sequence[Value]) -> Value:
    left, right = operands[:2]
    if "wide" in parts:
        return _wide(left, parts[-1]) * _wide(right, parts[-1])
    if "hi" not in parts:
        return left * right
    if parts[-1].endswith("64"):
        return (_object(left) * _object(right)) >> 64
    high = _wide(left, parts[-1]) * _wide(right, parts[-1])
    if isinstance(high, int) or parts[-1][0] == "s":
        return high >> 32
    return (high.view(np.uint64) >> np.uint64(32)).astype(np.int64)


def _object(value: Value) -> Value:
    return value if isinstance(value, int) else value.astype(object)


def _multiply_add(parts: Sequence[str], operands: Sequence[Value]) -> Value:
    return narrowed(_multiply(parts, operands), bits_of(parts)) + operands[2]


def _shift_left(_: Sequence[str], operands: Sequence[Value]) -> Value:
    value, by = operands
    if isinstance(value, int) and isinstance(by, int):
        return value << min(by & 0xFFFFFFFF, 64)
    return np.left_shift(value, np.minimum(by, 63))


def _shift_right(parts: Sequence[str], operands: Sequence[Value]) -> Value:
    value, by = (
        _sensitive(operands[0], "u" + parts[-1][1:] if parts[-1][0] == "b" else parts[-1]),
        operands[1],
    )
    if isinstance(value, int) and isinstance(by, int):
        return value >> min(by & 0xFFFFFFFF, 64)
    if isinstance(value, np.ndarray) and value.dtype == np.uint64:
        return np.right_shift(value, np.uint64(min(int(cast("int", by)), 63))).astype(np.int64)
    return np.right_shift(value, np.minimum(by, 63))


def _convert(parts: Sequence[str], operands: Sequence[Value]) -> Value | None:
    kinds = [part for part in parts[1:] if part[0] in "usb" and part[1:].isdigit()]
    if len(kinds) < 2:
        return operands[0] if "f32" not in parts[1:2] else None
    value, of = operands[0], kinds[-1]
    if of in {"u8", "u16"}:
        return value & ((1 << int(of[1:])) - 1)
    if of == "u32":
        return unsigned(value, 32)
    return value


def _divide(function: Callable[[Value, Value], Value]) -> Rule:
    def rule(parts: Sequence[str], operands: Sequence[Value]) -> Value:
        left, right = (_sensitive(each, parts[-1]) for each in operands[:2])
        # Of what is not negative; a zero divisor gives what no address depends on.
        return function(
            abs(left), right if isinstance(right, int) and right else np.maximum(right, 1)
        )

    return rule


def _select(_: Sequence[str], operands: Sequence[Value]) -> Value:
    yes, no, chosen = operands
    if isinstance(chosen, int):
        return yes if chosen else no
    return np.where(chosen, yes, no)


def _negate_bits(parts: Sequence[str], operands: Sequence[Value]) -> Value:
    value = operands[0]
    if parts[-1] == "pred":
        return int(not value) if isinstance(value, int) else ~value
    return ~value


def _extract(_: Sequence[str], operands: Sequence[Value]) -> Value:
    value, start, length = operands
    return (unsigned(value, 32) >> start) & ((1 << int(cast("int", length))) - 1)


def _funnel(parts: Sequence[str], operands: Sequence[Value]) -> Value:
    low, high, by = operands
    amount = by & 31 if isinstance(by, int) else 0
    joined = (unsigned(high, 32) << 32) | unsigned(low, 32)
    return (joined << amount) >> 32 if "l" in parts else joined >> amount


def _compare(parts: Sequence[str], operands: Sequence[Value]) -> Value:
    left, right = compared(parts, operands)
    found = _COMPARISONS[parts[1]](left, right)
    return int(found) if isinstance(found, (bool, int)) else found


def compared(parts: Sequence[str], operands: Sequence[Value]) -> tuple[Value, Value]:
    """Return the two sides of a comparison as it sees them, signed or not."""
    kind = parts[-1]
    if parts[1] in {"lo", "ls", "hi", "hs"}:
        kind = "u" + kind[1:]
    return _sensitive(operands[0], kind), _sensitive(operands[1], kind)


_COMPARISONS: Mapping[str, Callable[[Value, Value], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
}

Rule = Callable[[Sequence[str], Sequence[Value]], Value | None]
_RULES: Mapping[str, Rule] = {
    "mov": lambda _, operands: operands[0],
    "cvta": lambda _, operands: operands[0],
    "cvt": _convert,
    "add": _plain(lambda a, b: a + b),
    "sub": _plain(lambda a, b: a - b),
    "mul": _multiply,
    "mad": _multiply_add,
    "and": _plain(lambda a, b: a & b),
    "or": _plain(lambda a, b: a | b),
    "xor": _plain(lambda a, b: a ^ b),
    "not": _negate_bits,
    "neg": lambda _, operands: -operands[0],
    "abs": lambda _, operands: abs(operands[0]),
    "shl": _shift_left,
    "shr": _shift_right,
    "min": _typed(
        lambda a, b: min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b)
    ),
    "max": _typed(
        lambda a, b: max(a, b) if isinstance(a, int) and isinstance(b, int) else np.maximum(a, b)
    ),
    "div": _divide(lambda a, b: a // b),
    "rem": _divide(lambda a, b: a % b),
    "selp": _select,
    "setp": _compare,
    "bfe": _extract,
    "shf": _funnel,
}
