"""Costs of PTX opcodes in machine instructions, and their effect on addresses.

Costs are read from machine code: every figure is what ``ptxas`` (CUDA 12.9) makes of the
instruction for sm_80, sm_90a and sm_100a, as ``nvdisasm`` shows it, counted over copies of the
instruction with its operands in registers. Where the three differ, the newest two decide.

Values are those of all threads of a block at once: a whole number that all threads share, or an
array with one element a thread: 32-bit registers as int32, 64-bit ones as int64, predicates as
bool. Semantics from NVIDIA's "Parallel Thread Execution ISA", section 9.7; wrapping is two's
complement.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hespas.errors import ProgramError
from hespas.price.ptx.parser import Instruction
from hespas.price.ptx.terms import Slots

Array = npt.NDArray[Any]
Value = int | Array
"""One number for all threads, or one a thread."""
Rule = Callable[[Sequence[str], Sequence[Value]], Value | None]

_WIDTHS = {"8": 32, "16": 32, "32": 32, "64": 64}


@dataclass(frozen=True, slots=True)
class Opcode:
    """An opcode's cost for a warp, and its rule."""

    slots: Slots
    rule: Rule | None = None


def narrowed(value: Value, bits: int) -> Value:
    """Return the value as a signed register holds it.

    >>> narrowed(2**32 - 1, 32), narrowed(2**32 + 5, 32)
    (-1, 5)
    """
    if isinstance(value, int):
        half = 1 << (bits - 1)
        return ((value + half) & ((1 << bits) - 1)) - half
    if value.dtype == np.bool_:
        return value
    return value.astype(np.int32 if bits == 32 else np.int64, copy=False)


def _unsigned(value: Value, bits: int) -> Value:
    """Reinterpret a value as unsigned; 32 bits become 64."""
    if isinstance(value, int):
        return value & ((1 << bits) - 1)
    if bits == 64:
        return value.view(np.uint64)
    return value.view(np.uint32).astype(np.int64) if value.dtype == np.int32 else value


def _widen(value: Value, kind: str) -> Value:
    if kind[0] == "u":
        is_half = isinstance(value, int) and kind.endswith("16")
        return _unsigned(value, 16 if is_half else 32)
    return value if isinstance(value, int) else value.astype(np.int64)


def evaluate(parts: Sequence[str], operands: Sequence[Value]) -> Value | None:
    """Return an instruction's result from its operands; None if unknown.

    >>> evaluate(("mad", "lo", "s32"), (3, 4, 5)), evaluate(("shr", "u32"), (-1, 28))
    (17, 15)
    """
    opcode = _BY_NAME.get(parts[0])
    return None if opcode is None or opcode.rule is None else opcode.rule(parts, operands)


def bits_of(parts: Sequence[str]) -> int:
    """Return the written register's width: 32 or 64."""
    if "wide" in parts:
        return 32 if parts[-1].endswith("16") else 64
    kind = parts[1] if parts[0] == "cvt" and parts[1][0] in "usb" else parts[-1]
    return _WIDTHS.get(kind.lstrip("usbf"), 32)


def _as_typed(value: Value, kind: str) -> Value:
    return _unsigned(value, 64 if kind.endswith("64") else 32) if kind[0] == "u" else value


def _binary_rule(function: Callable[[Value, Value], Value]) -> Rule:
    return lambda _, operands: function(operands[0], operands[1])


def _minmax_rule(ints: Callable[[int, int], int], arrays: Callable[[Value, Value], Array]) -> Rule:
    def rule(parts: Sequence[str], operands: Sequence[Value]) -> Value:
        left, right = [_as_typed(operand, parts[-1]) for operand in operands[:2]]
        if isinstance(left, int) and isinstance(right, int):
            return ints(left, right)
        return arrays(left, right)

    return rule


def _division_rule(function: Callable[[Value, Value], Value]) -> Rule:
    def rule(parts: Sequence[str], operands: Sequence[Value]) -> Value:
        left, right = [_as_typed(operand, parts[-1]) for operand in operands[:2]]
        # For non-negative numbers only; a zero divisor gives a value that no address depends on.
        divisor = right if isinstance(right, int) and right else np.maximum(right, 1)
        return function(abs(left), divisor)

    return rule


def _multiply(parts: Sequence[str], operands: Sequence[Value]) -> Value:
    left, right = operands[:2]
    if "wide" in parts:
        return _widen(left, parts[-1]) * _widen(right, parts[-1])
    if "hi" not in parts:
        return left * right
    if parts[-1].endswith("64"):
        return (_as_object(left) * _as_object(right)) >> 64
    high = _widen(left, parts[-1]) * _widen(right, parts[-1])
    if isinstance(high, int) or parts[-1][0] == "s":
        return high >> 32
    return (high.view(np.uint64) >> np.uint64(32)).astype(np.int64)


def _as_object(value: Value) -> Value:
    return value if isinstance(value, int) else value.astype(object)


def _multiply_add(parts: Sequence[str], operands: Sequence[Value]) -> Value:
    return narrowed(_multiply(parts, operands), bits_of(parts)) + operands[2]


def _shift_left(_: Sequence[str], operands: Sequence[Value]) -> Value:
    value, by = operands
    if isinstance(value, int) and isinstance(by, int):
        return value << min(by & 0xFFFFFFFF, 64)
    return np.left_shift(value, np.minimum(by, 63))


def _shift_right(parts: Sequence[str], operands: Sequence[Value]) -> Value:
    kind, by = parts[-1], operands[1]
    value = _as_typed(operands[0], "u" + kind[1:] if kind[0] == "b" else kind)
    if isinstance(value, int) and isinstance(by, int):
        return value >> min(by & 0xFFFFFFFF, 64)
    if isinstance(value, np.ndarray) and value.dtype == np.uint64:
        return np.right_shift(value, np.uint64(min(int(cast("int", by)), 63))).astype(np.int64)
    return np.right_shift(value, np.minimum(by, 63))


def _convert(parts: Sequence[str], operands: Sequence[Value]) -> Value | None:
    kinds = [part for part in parts[1:] if part[0] in "usb" and part[1:].isdigit()]
    if len(kinds) < 2:
        return operands[0] if "f32" not in parts[1:2] else None
    value, source = operands[0], kinds[-1]
    if source in {"u8", "u16"}:
        return value & ((1 << int(source[1:])) - 1)
    return _unsigned(value, 32) if source == "u32" else value


def _select(_: Sequence[str], operands: Sequence[Value]) -> Value:
    yes, no, chosen = operands
    if isinstance(chosen, int):
        return yes if chosen else no
    return np.where(chosen, yes, no)


def _negate_bits(parts: Sequence[str], operands: Sequence[Value]) -> Value:
    value = operands[0]
    is_truth = parts[-1] == "pred" and isinstance(value, int)
    return int(not value) if is_truth else ~value


def _extract(_: Sequence[str], operands: Sequence[Value]) -> Value:
    value, start, length = operands
    return (_unsigned(value, 32) >> start) & ((1 << int(cast("int", length))) - 1)


def _funnel(parts: Sequence[str], operands: Sequence[Value]) -> Value:
    low, high, by = operands
    amount = by & 31 if isinstance(by, int) else 0
    joined = (_unsigned(high, 32) << 32) | _unsigned(low, 32)
    return (joined << amount) >> 32 if "l" in parts else joined >> amount


def _compare(parts: Sequence[str], operands: Sequence[Value]) -> Value:
    result = _COMPARISONS[parts[1]](*compared(parts, operands))
    return int(result) if isinstance(result, (bool, int)) else result


def compared(parts: Sequence[str], operands: Sequence[Value]) -> tuple[Value, Value]:
    """Return the two sides of a comparison."""
    kind = parts[-1]
    if parts[1] in {"lo", "ls", "hi", "hs"}:
        kind = "u" + kind[1:]
    return _as_typed(operands[0], kind), _as_typed(operands[1], kind)


_COMPARISONS: Mapping[str, Callable[[Value, Value], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    **dict.fromkeys(("lt", "lo"), operator.lt),
    **dict.fromkeys(("le", "ls"), operator.le),
    **dict.fromkeys(("gt", "hi"), operator.gt),
    **dict.fromkeys(("ge", "hs"), operator.ge),
}

NOTHING = Slots()
_LOGIC = Slots(logic=1)
_FUSED = Slots(fused=1)
_EITHER = Slots(either=1)
_SPECIAL = Slots(special=1)
_MEMORY = Slots(memory=1)
_DOUBLE = Slots(double=1)
_OTHER = Slots(other=1)
# A special function scales a value that may be denormal before and after.
_SCALED_SPECIAL = Slots(logic=1, fused=2, special=1)
_INTEGER_DIVISION = Slots(logic=5, fused=5, either=5, special=3)


def _with_slots(names: str, slots: Slots) -> Mapping[str, Opcode]:
    return dict.fromkeys(names.split(), Opcode(slots))


# By the first word alone.
_BY_NAME: Mapping[str, Opcode] = {
    **_with_slots("ld st shfl atom red redux vote match ldmatrix stmatrix cp", _MEMORY),
    **_with_slots("bra ret exit bar barrier membar fence brx griddepcontrol mma", _OTHER),
    **_with_slots("wgmma mbarrier elect tcgen05", _OTHER),
    **_with_slots("lop3 prmt bfi set slct bfind addc subc copysign testp sad", _LOGIC),
    **_with_slots("fma madc mul24 mad24 dp4a", _FUSED),
    **_with_slots("popc clz brev fns tanh", _SPECIAL),
    **_with_slots("ex2 lg2 sqrt rsqrt", _SCALED_SPECIAL),
    **_with_slots("sin cos", Slots(fused=1, special=1)),
    **_with_slots("isspacep activemask createpolicy", NOTHING),
    "mov": Opcode(NOTHING, lambda _, operands: operands[0]),
    "cvta": Opcode(NOTHING, lambda _, operands: operands[0]),
    "cvt": Opcode(_OTHER, _convert),
    "add": Opcode(_EITHER, _binary_rule(lambda a, b: a + b)),
    "sub": Opcode(_EITHER, _binary_rule(lambda a, b: a - b)),
    "neg": Opcode(_EITHER, lambda _, operands: -operands[0]),
    "abs": Opcode(_EITHER, lambda _, operands: abs(operands[0])),
    "shl": Opcode(_EITHER, _shift_left),
    "mul": Opcode(_FUSED, _multiply),
    "mad": Opcode(_FUSED, _multiply_add),
    "and": Opcode(_LOGIC, _binary_rule(lambda a, b: a & b)),
    "or": Opcode(_LOGIC, _binary_rule(lambda a, b: a | b)),
    "xor": Opcode(_LOGIC, _binary_rule(lambda a, b: a ^ b)),
    "not": Opcode(_LOGIC, _negate_bits),
    "shr": Opcode(_LOGIC, _shift_right),
    "shf": Opcode(_LOGIC, _funnel),
    "bfe": Opcode(_LOGIC, _extract),
    "min": Opcode(_LOGIC, _minmax_rule(min, np.minimum)),
    "max": Opcode(_LOGIC, _minmax_rule(max, np.maximum)),
    "selp": Opcode(_LOGIC, _select),
    "setp": Opcode(_LOGIC, _compare),
    "div": Opcode(_INTEGER_DIVISION, _division_rule(lambda a, b: a // b)),
    "rem": Opcode(_INTEGER_DIVISION, _division_rule(lambda a, b: a % b)),
    "rcp": Opcode(Slots(logic=4, fused=2, special=1)),
}
# By the whole opcode.
_BY_OPCODE: Mapping[str, Slots] = {
    "div.full.f32": Slots(logic=2, fused=5, special=1),
    "div.approx.f32": Slots(logic=1, fused=3, special=1),
    "div.rn.f32": Slots(logic=2, fused=5, either=2, special=1, other=5),
    "ex2.approx.ftz.f32": _SPECIAL,
    "lg2.approx.ftz.f32": _SPECIAL,
    "rcp.approx.ftz.f32": _SPECIAL,
    "rsqrt.approx.ftz.f32": _SPECIAL,
    "sqrt.approx.ftz.f32": Slots(fused=1, special=1),
}
_FLOAT_TYPES = frozenset({"f32", "f16", "bf16", "f16x2", "bf16x2"})
_LONG_TYPES = frozenset({"s64", "u64", "b64"})


def slots_of(instructions: Sequence[Instruction]) -> tuple[Slots, ...]:
    """Return the cost of each instruction for one warp.

    Some cost nothing because the assembler folds them into a neighbour: a 64-bit addition into the
    wide multiplication before it, a test for zero into the ``and`` that it tests.
    """
    writer = {name: instruction for instruction in instructions for name in instruction.writes}
    readers: dict[str, set[str]] = {}
    for instruction in instructions:
        if instruction.name in {"cvt", "mov"}:
            for name in instruction.reads:
                readers.setdefault(name, set()).add(instruction.name)
    return tuple(_slots(instruction, writer, readers) for instruction in instructions)


def _slots(
    instruction: Instruction, writer: Mapping[str, Instruction], readers: Mapping[str, set[str]]
) -> Slots:
    match instruction.name:
        case "cvt":
            return _conversion(instruction, readers)
        case "setp" | "add" | "or" if _is_folded(instruction, writer):
            return NOTHING
        case "mov":
            # One permutation splits a register into halves or joins them.
            split = Slots(logic=0.5) if len(instruction.writes) > 1 else NOTHING
            return _LOGIC if len(instruction.sources) > 1 else split
        case _:
            return _by_type(instruction.opcode)


@cache
def _by_type(opcode: str) -> Slots:
    name, *words = opcode.split(".")
    kind = words[-1] if words else ""
    if "param" in words or kind == "pred":
        return NOTHING
    if opcode in _BY_OPCODE:
        return _BY_OPCODE[opcode]
    if kind == "f64" and name not in {"ld", "st", "selp"}:
        return _DOUBLE
    if kind in _FLOAT_TYPES and name in {"add", "sub", "mul", "fma", "neg", "abs"}:
        return _FUSED
    slots = _BY_NAME[name].slots if name in _BY_NAME else _OTHER
    is_double = {"wide", "hi"}.intersection(words) or kind in _LONG_TYPES
    return slots.plus(slots, 1) if is_double and slots not in {_MEMORY, _OTHER} else slots


def _is_folded(instruction: Instruction, writer: Mapping[str, Instruction]) -> bool:
    makers = [
        writer[name] for name in instruction.sources if isinstance(name, str) and name in writer
    ]
    if instruction.name == "setp":
        return instruction.sources[-1:] == (0,) and any(maker.name == "and" for maker in makers)
    if instruction.parts[-1] in _LONG_TYPES:
        return any("wide" in maker.parts for maker in makers)
    # LEA and LOP3 take a shifted or masked operand as it is.
    return instruction.parts[-1] in {"s32", "b32"} and any(maker.name == "shl" for maker in makers)


def _conversion(instruction: Instruction, readers: Mapping[str, set[str]]) -> Slots:
    types = [
        part for part in instruction.parts if part.rstrip("0123456789x") in {"f", "bf", "s", "u"}
    ]
    if not types:
        raise ProgramError(f"the PTX {instruction.opcode!r} does not say what it converts")
    match types[0], types[-1]:
        case to, source if to[0] in "su" and source[0] in "su":
            return _LOGIC if to[0] == "s" and to[1:] < source[1:] else NOTHING
        case to, source if "bf16" in {to, source} or "bf16x2" in {to, source}:
            return _bf16_conversion(instruction, to, readers)
        case to, source if source == "f16" or (
            to == source == "f32" and "sat" in instruction.parts
        ):
            return _FUSED
        case ("f16" | "f16x2", _) | ("f32", "s32" | "u32"):
            return _LOGIC
        case _:
            return _SPECIAL


def _bf16_conversion(instruction: Instruction, to: str, readers: Mapping[str, set[str]]) -> Slots:
    """Return the cost of a conversion to or from bf16.

    To f32 it is a shift; from f32 a packing one, or for a single value a slow conversion. The
    assembler converts on the slow pipe (``F2F``) a value that is widened again, and packs elsewhere
    (``F2FP.PACK_AB``).
    """
    if to == "f32":
        return _EITHER
    users = readers.get(instruction.writes[0], set()) if to != "bf16x2" else set[str]()
    return _SPECIAL if "cvt" in users and "mov" not in users else _LOGIC
