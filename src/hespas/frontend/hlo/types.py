"""Read HLO's shapes, tuples and literals."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from math import isfinite, prod
from sys import byteorder
from typing import Any

from hespas.errors import ProgramError, UnsupportedError
from hespas.frontend.tables import is_table
from hespas.program.attrs import ConstantAttrs
from hespas.program.program import Value
from hespas.program.types import (
    HOST_MEMORY,
    TensorType,
    TokenType,
    TupleType,
    Type,
    element_type,
    plain_text,
)
from hespas.xla.hlo.schema import enum_names

Tree = Value | tuple["Tree", ...]
"""An instruction's result: one value, or a tuple of trees."""

_FLOATS = (
    "4E2M1FN 6E2M3FN 6E3M2FN 8E3M4 8E4M3 8E4M3B11FNUZ 8E4M3FN 8E4M3FNUZ 8E5M2 8E5M2FNUZ 8E8M0FNU "
    "16 32 64"
)
_ELEMENTS = {
    "PRED": "i1",
    "BF16": "bf16",
    "C64": "complex<f32>",
    "C128": "complex<f64>",
    **{f"S{bits}": f"i{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"U{bits}": f"ui{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"F{form}": f"f{form}" for form in _FLOATS.split()},
}


@dataclass(slots=True)
class TypeReader:
    """Reads shapes; equal types are one object."""

    _type_of_shape: dict[bytes, Type] = field(default_factory=dict[bytes, Type])
    _unique_types: dict[Type, Type] = field(default_factory=dict[Type, Type])

    def read(self, shape: Any) -> Type:
        """Return a shape's type; `UnsupportedError` if it has none."""
        key = shape.SerializeToString()
        cached = self._type_of_shape.get(key)
        if cached is None:
            kind = self._read(shape)
            cached = self._type_of_shape[key] = self._unique_types.setdefault(kind, kind)
        return cached

    def _read(self, shape: Any) -> Type:
        number: int = shape.element_type
        name = enum_names("xla.PrimitiveType").get(number, str(number))
        if name == "TUPLE":
            return TupleType(members=tuple([self.read(member) for member in shape.tuple_shapes]))
        if name == "TOKEN":
            return TokenType()
        if name not in _ELEMENTS:
            raise UnsupportedError(f"element type {name.lower()} is not known")
        if any(shape.is_dynamic_dimension):
            raise UnsupportedError("a dimension's size is known only when it runs")
        order = tuple(shape.layout.minor_to_major)
        rank = len(shape.dimensions)
        if min(shape.dimensions, default=0) < 0 or (order and sorted(order) != list(range(rank))):
            raise ProgramError(f"a shape is {list(shape.dimensions)} with the order {list(order)}")
        return TensorType(
            element=element_type(_ELEMENTS[name]),
            shape=tuple(shape.dimensions),
            layout=None if order in ((), tuple(range(rank))[::-1]) else order,
            memory_space=_memory_space(shape.layout),
            tile=_tile(shape.layout),
        )


def _tile(layout: Any) -> tuple[int, ...]:
    """Return the first tile; later ones subdivide it without padding."""
    sizes = tuple(layout.tiles[0].dimensions) if layout.tiles else ()
    # A negative size merges a dimension with the next.
    return sizes if all(size > 0 for size in sizes) else ()


def _memory_space(layout: Any) -> int:
    """Return a tensor's memory space, as `TensorType` numbers it.

    Only TPUs have memory on the chip for tensors, and only their layouts have tiles; a GPU's
    compiler uses the same numbers for parts of device memory. Source: openxla/xla,
    ``xla/layout.h`` and ``xla/service/gpu/gpu_memory_space_assignment.h``.
    """
    space: int = layout.memory_space
    return space if layout.tiles or space == HOST_MEMORY else 0


def fresh_tree(kind: Type) -> Tree:
    """Create values for every tensor and token of a type."""
    if isinstance(kind, TupleType):
        return tuple([fresh_tree(member) for member in kind.members])
    return Value(type=kind)


def leaves(tree: Tree) -> Iterator[Value]:
    """Yield the values of a tree, in order."""
    if isinstance(tree, Value):
        yield tree
        return
    for member in tree:
        yield from leaves(member)


def flat(trees: Iterator[Tree] | list[Tree]) -> tuple[Value, ...]:
    """Return the values of several trees, one after another."""
    return tuple([value for tree in trees for value in leaves(tree)])


def leaf_number(tree: Tree, path: tuple[int, ...]) -> int:
    """Return a tuple path's position among flattened values.

    >>> from hespas.program.types import tensor_type
    >>> pair = TupleType(members=(tensor_type("f32"), tensor_type("f32")))
    >>> leaf_number(fresh_tree(TupleType(members=(pair, pair))), (1, 0))
    2
    """
    number = 0
    for index in path:
        if isinstance(tree, Value) or index >= len(tree):
            raise UnsupportedError(f"there is nothing at {list(path)} of a tuple")
        number += len(flat(list(tree[:index])))
        tree = tree[index]
    return number


def leaf_count(kind: Type) -> int:
    """Return the number of values of a type."""
    return sum(map(leaf_count, kind.members)) if isinstance(kind, TupleType) else 1


_LISTS = ("preds", "s32s", "s64s", "u32s", "u64s", "f32s", "f64s")
# Numbers of one or two bytes, least significant byte first.
_PACKED = {"f16s": "e", "s16s": "h", "u16s": "H", "s8s": "b", "u8s": "B"}
# The packed forms of infinities and NaNs; bf16 is the upper half of an f32.
_BITS = {"f64": (">d", 8), "f32": (">f", 4), "f16": (">e", 2), "bf16": (">f", 2)}
_MOST_PRINTED = 64

Number = int | float | bool


def read_constant(literal: Any, kind: Type) -> tuple[ConstantAttrs, tuple[tuple[str, str], ...]]:
    """Read a literal; only scalars and splats have a value.

    Literals of more than 64 elements, and those of types without Python numbers, print as the
    SHA-256 of their bytes; tables of integers print as their bytes.
    """
    numbers = _numbers(literal, kind)
    single = len(set(map(repr, numbers))) == 1
    if not isinstance(kind, TensorType) or not numbers:
        text = (_hexadecimal(literal) if is_table(kind) else "") or _digest(literal)
    elif single:
        text = _text(numbers[0], kind)
    else:
        text = _nested([_text(number, kind) for number in numbers], kind.shape)
    value = numbers[0] if single else None
    return ConstantAttrs(value=value), (("value", f"dense<{text}> : {plain_text(kind)}"),)


def _numbers(literal: Any, kind: Type) -> tuple[Number, ...]:
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
    widened = b"".join([b"\0\0" + halves[start : start + 2] for start in range(0, len(halves), 2)])
    return struct.unpack(f"<{len(halves) // 2}f", widened)


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
    if not shape:
        return texts[0]
    inner = prod(shape[1:])
    rows = [texts[start : start + inner] for start in range(0, len(texts), inner)]
    return f"[{', '.join([_nested(row, shape[1:]) for row in rows])}]"


_INTEGER_LISTS = {"s32s": "i", "s64s": "q", "u32s": "I", "u64s": "Q"}


def _hexadecimal(literal: Any) -> str:
    """Print the bytes of integers as MLIR does, or ""."""
    for name, code in _INTEGER_LISTS.items():
        values = getattr(literal, name)
        if values:
            packed = array(code, values)
            if byteorder == "big":
                packed.byteswap()
            return f'"0x{packed.tobytes().hex().upper()}"'
    for name in ("s8s", "u8s", "s16s", "u16s"):
        narrow: bytes = getattr(literal, name)
        if narrow:
            return f'"0x{narrow.hex().upper()}"'
    return ""


def _digest(literal: Any) -> str:
    digest = sha256(literal.SerializeToString(deterministic=True)).hexdigest()
    return f'"sha256:{digest}"'
