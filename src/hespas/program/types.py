"""Types of values: elements, tensors, tuples, tokens and asynchronous bundles."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from math import prod

import msgspec

from hespas.errors import UnsupportedError


class NumberKind(Enum):
    """The kind of number of an element."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    COMPLEX = "complex"


class ElementType(msgspec.Struct, frozen=True, kw_only=True):
    """A scalar type: MLIR's name and its bits in memory."""

    name: str
    bits: int
    kind: NumberKind


def _element_types() -> dict[str, ElementType]:
    def element(name: str, bits: int, kind: NumberKind) -> ElementType:
        return ElementType(name=name, bits=bits, kind=kind)

    # XLA stores a boolean in one byte.
    table = [element("i1", 8, NumberKind.BOOLEAN), element("index", 64, NumberKind.INTEGER)]
    for bits in (2, 4, 8, 16, 32, 64):
        signs = ("i", "ui", "si")
        table.extend(element(f"{sign}{bits}", bits, NumberKind.INTEGER) for sign in signs)
    floats = {
        4: ("f4E2M1FN",),
        6: ("f6E2M3FN", "f6E3M2FN"),
        8: (
            "f8E3M4",
            "f8E4M3",
            "f8E4M3FN",
            "f8E4M3FNUZ",
            "f8E4M3B11FNUZ",
            "f8E5M2",
            "f8E5M2FNUZ",
            "f8E8M0FNU",
        ),
        16: ("f16", "bf16"),
        32: ("f32", "tf32"),
        64: ("f64",),
    }
    for bits, names in floats.items():
        table.extend(element(name, bits, NumberKind.FLOAT) for name in names)
    table.append(element("complex<f32>", 64, NumberKind.COMPLEX))
    table.append(element("complex<f64>", 128, NumberKind.COMPLEX))
    return {entry.name: entry for entry in table}


ELEMENT_TYPES = _element_types()
PRECISIONS = ("tf32", "f32_high", "f32_highest")
"""Products of f32 at precision DEFAULT, HIGH and HIGHEST (`jax.lax.Precision`), as types."""
PRODUCT_TYPES = ELEMENT_TYPES | {
    name: ElementType(name=name, bits=32, kind=NumberKind.FLOAT) for name in PRECISIONS
}
"""The types that hardware multiplies: element types, and f32 by precision."""


WITH_ONE_ZERO = {"f8E4M3FN": "f8E4M3FNUZ", "f8E5M2": "f8E5M2FNUZ"}
"""Floats of 8 bits, and those that frameworks take where a device multiplies these alone.

Source: vLLM, ``fp8_dtype`` of vllm/platforms/rocm.py; Transformer Engine for ROCm, ``is_fp8_fnuz``
of transformer_engine/pytorch/utils.py.
"""
FLOATS_OF_8_BITS = frozenset({*WITH_ONE_ZERO, *WITH_ONE_ZERO.values()})
"""The floats of 8 bits that are multiplied."""


def element_type(name: str) -> ElementType:
    """Return the element type that MLIR spells ``name``.

    Raises `UnsupportedError` if there is none.

    >>> element_type("bf16").bits
    16
    """
    element = ELEMENT_TYPES.get(name)
    if element is None:
        raise UnsupportedError(f"element type {name!r} is not known")
    return element


DEVICE_MEMORY, HOST_MEMORY = 0, 5
"""XLA's numbers of memory spaces; any other is on the chip."""


class TensorType(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of static shape.

    ``layout`` lists the dimensions from the fastest-varying to the slowest, as XLA's
    minor-to-major does; None is the default order, last dimension fastest. ``memory_space`` is
    XLA's number for it: 0 is device memory, 5 the host's, any other a TPU's on-chip memory (1
    its vector memory). ``tile`` has the sizes of the tiles that a TPU lays the fastest-varying
    dimensions out in, the fastest last.

    >>> tensor = tensor_type("bf16", 4, 8)
    >>> str(tensor), tensor.element_count, tensor.size_bytes
    ('tensor<4x8xbf16>', 32, 64)
    >>> str(TensorType(element=tensor.element, shape=(4, 8), layout=(0, 1), memory_space=1))
    'tensor<4x8xbf16, {order = [0, 1], space = 1}>'
    """

    element: ElementType
    shape: tuple[int, ...]
    layout: tuple[int, ...] | None = None
    memory_space: int = 0
    tile: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions from the fastest-varying to the slowest."""
        return self.layout or tuple(range(self.rank))[::-1]

    @property
    def long_dimensions(self) -> tuple[int, ...]:
        """The dimensions of more than one element, the fastest first."""
        return tuple([axis for axis in self.order if self.shape[axis] > 1])

    @property
    def element_count(self) -> int:
        """The number of elements; 1 for a scalar."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The bytes of the data, in packed form."""
        return self._bytes_of(self.element_count)

    @property
    def allocated_bytes(self) -> int:
        """The memory that it takes, with edge tiles padded.

        >>> bf16 = element_type("bf16")
        >>> TensorType(element=bf16, shape=(3, 10, 130), tile=(8, 128)).allocated_bytes
        24576
        """
        if not self.tile:
            return self.size_bytes
        tiles = self.tile[::-1]
        sizes = [self.shape[dimension] for dimension in self.order]
        sizes += [1] * (len(tiles) - len(sizes))
        padded = (-(-size // tile) * tile for size, tile in zip(sizes, tiles, strict=False))
        return self._bytes_of(prod(padded) * prod(sizes[len(tiles) :]))

    def _bytes_of(self, elements: int) -> int:
        return (elements * self.element.bits + 7) // 8

    @property
    def is_in_device_memory(self) -> bool:
        """Whether it lies in device memory, not on the chip or the host."""
        return self.memory_space == DEVICE_MEMORY

    @property
    def plain_text(self) -> str:
        """The type without layout and memory space."""
        return f"tensor<{''.join([f'{size}x' for size in self.shape])}{self.element.name}>"

    def __str__(self) -> str:
        if self.layout is None and not self.memory_space:
            return self.plain_text
        # MLIR lets a tensor carry any attribute as its encoding.
        parts = [] if self.layout is None else [f"order = {list(self.layout)}"]
        parts += [f"space = {self.memory_space}"] if self.memory_space else []
        return f"{self.plain_text[:-1]}, {{{', '.join(parts)}}}>"


class TupleType(msgspec.Struct, frozen=True, kw_only=True):
    """An ordered group of values under one name."""

    members: tuple[Type, ...]

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.members))}>"


class TokenType(msgspec.Struct, frozen=True, kw_only=True):
    """A token that orders side effects and holds no data."""

    def __str__(self) -> str:
        return "!stablehlo.token"


class AsyncType(msgspec.Struct, frozen=True, kw_only=True):
    """The handle from an asynchronous start to its done."""

    spelling: str
    members: tuple[Type, ...]

    def __str__(self) -> str:
        return self.spelling


Type = TensorType | TupleType | TokenType | AsyncType


def bundle_type(members: tuple[Type, ...]) -> AsyncType:
    """Return the type of what a start of values hands to its end."""
    return AsyncType(
        spelling=f"!mhlo.async_bundle<{', '.join(map(str, members))}>", members=members
    )


def plain_text(kind: Type) -> str:
    """Print a type without layouts and memory spaces.

    >>> plain_text(TensorType(element=element_type("bf16"), shape=(2, 3), layout=(0, 1)))
    'tensor<2x3xbf16>'
    """
    match kind:
        case TensorType():
            return kind.plain_text
        case TupleType(members=members):
            return f"tuple<{', '.join(map(plain_text, members))}>"
        case TokenType() | AsyncType():
            return str(kind)


@lru_cache(maxsize=4096)
def tensor_type(element: str, *shape: int) -> TensorType:
    """Return a tensor type; ``element`` is MLIR's name."""
    return TensorType(element=element_type(element), shape=shape)


def size_bytes(kind: Type) -> int:
    """Return a type's bytes of data; tokens hold none."""
    return sum([tensor.size_bytes for tensor in tensors(kind)])


def allocated_bytes(kind: Type) -> int:
    """Return a value's memory, tile padding included."""
    return sum(tensor.allocated_bytes for tensor in tensors(kind))


def tensors(kind: Type) -> tuple[TensorType, ...]:
    """Return every tensor in a type, with tuples opened."""
    match kind:
        case TensorType():
            return (kind,)
        case TupleType() | AsyncType():
            return tuple(tensor for member in kind.members for tensor in tensors(member))
        case TokenType():
            return ()
