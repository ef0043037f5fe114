"""HLO's shapes as types, and the trees of values that tuples form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hespas.errors import ProgramError, UnsupportedError
from hespas.program.program import Value
from hespas.program.types import HOST_MEMORY, TensorType, TokenType, TupleType, Type, element_type
from hespas.xla.hlo.schema import enum_names

Tree = Value | tuple["Tree", ...]
"""An instruction's result: one value, or a tuple of trees."""

_NAMED = {
    "PRED": "i1",
    "BF16": "bf16",
    "C64": "complex<f32>",
    "C128": "complex<f64>",
    "F8E5M2": "f8E5M2",
    "F8E4M3": "f8E4M3",
    "F8E4M3FN": "f8E4M3FN",
    "F8E4M3B11FNUZ": "f8E4M3B11FNUZ",
    "F8E3M4": "f8E3M4",
    "F8E5M2FNUZ": "f8E5M2FNUZ",
    "F8E4M3FNUZ": "f8E4M3FNUZ",
    "F8E8M0FNU": "f8E8M0FNU",
    "F6E2M3FN": "f6E2M3FN",
    "F6E3M2FN": "f6E3M2FN",
    "F4E2M1FN": "f4E2M1FN",
    **{f"S{bits}": f"i{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"U{bits}": f"ui{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"F{bits}": f"f{bits}" for bits in (16, 32, 64)},
}


@dataclass(slots=True)
class TypeReader:
    """Reads shapes; equal types are one object."""

    _of_bytes: dict[bytes, Type] = field(default_factory=dict[bytes, Type])
    _of_type: dict[Type, Type] = field(default_factory=dict[Type, Type])

    def read(self, shape: Any) -> Type:
        """Return the type of an ``xla.ShapeProto``; `UnsupportedError` if it has none."""
        key = shape.SerializeToString()
        cached = self._of_bytes.get(key)
        if cached is None:
            kind = self._read(shape)
            cached = self._of_bytes[key] = self._of_type.setdefault(kind, kind)
        return cached

    def _read(self, shape: Any) -> Type:
        number: int = shape.element_type
        name = enum_names("xla.PrimitiveType").get(number, str(number))
        if name == "TUPLE":
            return TupleType(members=tuple([self.read(member) for member in shape.tuple_shapes]))
        if name == "TOKEN":
            return TokenType()
        if name not in _NAMED:
            raise UnsupportedError(f"element type {name.lower()} is not known")
        if any(shape.is_dynamic_dimension):
            raise UnsupportedError("a dimension's size is known only when it runs")
        order = tuple(shape.layout.minor_to_major)
        rank = len(shape.dimensions)
        if min(shape.dimensions, default=0) < 0 or (order and sorted(order) != list(range(rank))):
            raise ProgramError(f"a shape is {list(shape.dimensions)} with the order {list(order)}")
        return TensorType(
            element=element_type(_NAMED[name]),
            shape=tuple(shape.dimensions),
            layout=None if order in ((), tuple(range(rank))[::-1]) else order,
            memory_space=_memory_space(shape.layout),
            tile=_tile(shape.layout),
        )


def _tile(layout: Any) -> tuple[int, ...]:
    """Return the first tile; later ones divide it further and add no padding."""
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
    """Make values for every tensor and token of a type."""
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


def leaf_number(kind: Type, path: tuple[int, ...]) -> int:
    """Return the position of a tuple path among a type's flattened values.

    >>> from hespas.program.types import tensor_type
    >>> pair = TupleType(members=(tensor_type("f32"), tensor_type("f32")))
    >>> leaf_number(TupleType(members=(pair, pair)), (1, 0))
    2
    """
    number = 0
    for index in path:
        if not isinstance(kind, TupleType) or index >= len(kind.members):
            raise UnsupportedError(f"there is nothing at {list(path)} of {kind}")
        number += sum(map(leaf_count, kind.members[:index]))
        kind = kind.members[index]
    return number


def leaf_number_in(tree: Tree, path: tuple[int, ...]) -> int:
    """Return the position of a tuple path among a tree's flattened values."""
    number = 0
    for index in path:
        if isinstance(tree, Value) or index >= len(tree):
            raise UnsupportedError(f"there is nothing at {list(path)} of a tuple")
        number += len(flat(list(tree[:index])))
        tree = tree[index]
    return number


def leaf_count(kind: Type) -> int:
    """Return how many values a type stands for."""
    return sum(map(leaf_count, kind.members)) if isinstance(kind, TupleType) else 1
