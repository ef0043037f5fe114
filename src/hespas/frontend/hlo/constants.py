"""Literals: the number where there is one, and a text that tells different ones apart."""

from __future__ import annotations

import struct
from hashlib import sha256
from math import isfinite, prod
from typing import Any

from hespas.frontend.hlo import mlir
from hespas.program.attrs import Attrs, ConstantAttrs
from hespas.program.types import TensorType, Type, plain_text

_LISTS = ("preds", "s32s", "s64s", "u32s", "u64s", "f32s", "f64s")
# Numbers of one or two bytes, least significant byte first.
_PACKED = {"f16s": "e", "s16s": "h", "u16s": "H", "s8s": "b", "u8s": "B"}
# How the bits of infinities and NaNs are had; bf16 is the upper half of an f32.
_BITS = {"f64": (">d", 8), "f32": (">f", 4), "f16": (">e", 2), "bf16": (">f", 2)}
_MOST_PRINTED = 64

Number = int | float | bool


def read_constant(literal: Any, kind: Type) -> tuple[Attrs, mlir.Attributes]:
    """Read a literal; its value is None unless it is one number, alone or everywhere.

    Literals of more than 64 elements, and those of types that Python has no numbers for, print
    as the SHA-256 of their bytes.
    """
    numbers = _numbers(literal, kind)
    single = len(set(map(repr, numbers))) == 1
    if not isinstance(kind, TensorType) or not numbers:
        text = _digest(literal)
    elif single:
        text = _text(numbers[0], kind)
    else:
        text = _nested([_text(number, kind) for number in numbers], kind.shape)
    value = numbers[0] if single else None
    return ConstantAttrs(value=value), (("value", f"dense<{text}> : {plain_text(kind)}"),)


def _numbers(literal: Any, kind: Type) -> tuple[Number, ...]:
    """Return the elements of a small literal, nothing for any other."""
    if not isinstance(kind, TensorType) or kind.element_count > _MOST_PRINTED:
        return ()
    for name in _LISTS:
        values = getattr(literal, name)
        if values:
            return tuple(values)
    for name, form in _PACKED.items():
        packed: bytes = getattr(literal, name)
        if packed:
            return struct.unpack(f"<{len(packed) // struct.calcsize(form)}{form}", packed)
    halves: bytes = literal.bf16s
    whole = b"".join([b"\0\0" + halves[at : at + 2] for at in range(0, len(halves), 2)])
    return struct.unpack(f"<{len(halves) // 2}f", whole)


def _text(value: Number, kind: TensorType) -> str:
    """Print a number as MLIR does.

    >>> from hespas.program.types import tensor_type
    >>> _text(True, tensor_type("i1")), _text(1e-05, tensor_type("f32"))
    ('true', '1.0e-05')
    >>> _text(float("inf"), tensor_type("bf16"))
    '0x7F80'
    """
    if isinstance(value, bool | int):
        return str(value).lower()
    if not isfinite(value):
        form, size = _BITS[kind.element.name]
        return f"0x{struct.pack(form, value)[:size].hex().upper()}"
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _nested(texts: list[str], shape: tuple[int, ...]) -> str:
    """Print elements in brackets, one pair for each dimension."""
    if not shape:
        return texts[0]
    inner = prod(shape[1:])
    rows = [texts[at : at + inner] for at in range(0, len(texts), inner)]
    return f"[{', '.join([_nested(row, shape[1:]) for row in rows])}]"


def _digest(literal: Any) -> str:
    found = sha256(literal.SerializeToString(deterministic=True)).hexdigest()
    return f'"sha256:{found}"'
