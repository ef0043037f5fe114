"""Protobuf's wire format without a schema: take a message apart, and put it together again."""

from __future__ import annotations

from dataclasses import dataclass

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a message: its number, its kind on the wire, and what it holds."""

    number: int
    kind: int
    value: int | bytes


def varint(value: int) -> bytes:
    """Return a number as 7 bits a byte."""
    value &= 2**64 - 1
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def read_varint(content: bytes, at: int) -> tuple[int, int] | None:
    """Return the number that begins at a byte and where it ends; None if there is none."""
    value = 0
    for index in range(10):
        if at + index >= len(content):
            return None
        byte = content[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    return None


def read_fields(content: bytes) -> list[Field] | None:
    """Return the fields of a message, None for what is none."""
    fields: list[Field] = []
    at = 0
    while at < len(content):
        one = _read_field(content, at)
        if one is None:
            return None
        field, at = one
        fields.append(field)
    return fields


def _read_field(content: bytes, at: int) -> tuple[Field, int] | None:
    tag = read_varint(content, at)
    if tag is None or not 0 < tag[0] >> 3 < 1 << 20:
        return None
    number, kind = tag[0] >> 3, tag[0] & 7
    if kind == VARINT:
        value = read_varint(content, tag[1])
        return value and (Field(number=number, kind=kind, value=value[0]), value[1])
    if kind == BYTES:
        size = read_varint(content, tag[1])
        start, end = (size[1], size[1] + size[0]) if size else (0, len(content) + 1)
    elif kind in _FIXED_BYTES:
        start, end = tag[1], tag[1] + _FIXED_BYTES[kind]
    else:
        return None
    if end > len(content):
        return None
    return Field(number=number, kind=kind, value=content[start:end]), end


def write_fields(fields: list[Field]) -> bytes:
    """Return a message."""
    return b"".join(_written(field) for field in fields)


def _written(field: Field) -> bytes:
    tag = varint(field.number << 3 | field.kind)
    if isinstance(field.value, int):
        return tag + varint(field.value)
    return tag + (varint(len(field.value)) if field.kind == BYTES else b"") + field.value
