"""Literals: the number where there is one, and a text that tells different ones apart."""

from __future__ import annotations

import struct
from hashlib import sha256
from math import isfinite
from typing import Any

from hespas.frontend.hlo import mlir
from hespas.program.attrs import Attrs, ConstantAttrs
from hespas.program.types import TensorType, Type

_LISTS = ("preds", "s32s", "s64s", "u32s", "u64s", "f32s", "f64s")
# Sixteen bits, least significant byte first; bf16 is the upper half of an f32.
_PACKED = {"f16s": "<e", "s16s": "<h", "u16s": "<H"}
_BYTES = {"s8s": "b", "u8s": "B"}


def read_constant(literal: Any, kind: Type) -> tuple[Attrs, mlir.Attributes]:
    """Read a literal; the value of anything but a single number is None.

    Large ones print as the SHA-256 of their bytes.
    """
    single = isinstance(kind, TensorType) and kind.element_count == 1
    value = _number(literal) if single else None
    text = _text(value) if value is not None else _digest(literal)
    return ConstantAttrs(value=value), (("value", f"dense<{text}> : {kind}"),)


def _number(literal: Any) -> int | float | bool | None:
    for name in _LISTS:
        values = getattr(literal, name)
        if values:
            return values[0]
    for name, form in (_PACKED | _BYTES).items():
        packed: bytes = getattr(literal, name)
        if packed:
            return struct.unpack(form, packed)[0]
    if literal.bf16s:
        return struct.unpack("<f", b"\0\0" + literal.bf16s)[0]
    return None


def _text(value: float) -> str:
    """Print a number as MLIR does.

    >>> _text(True), _text(3), _text(1e-05), _text(float("inf"))
    ('true', '3', '1.0e-05', '0x7FF0000000000000')
    """
    if isinstance(value, bool | int):
        return str(value).lower()
    if not isfinite(value):
        return f"0x{struct.pack('>d', value).hex().upper()}"
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _digest(literal: Any) -> str:
    found = sha256(literal.SerializeToString(deterministic=True)).hexdigest()
    return f'"sha256:{found}"'
