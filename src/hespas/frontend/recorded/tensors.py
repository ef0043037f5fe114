"""Types and bytes of recorded tensors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod

from msgspec.structs import replace

from hespas.errors import UnsupportedError
from hespas.program.recorded import RecordedTensor
from hespas.program.types import HOST_MEMORY, ElementType, TensorType, element_type

_ELEMENTS = {
    "bool": "i1",
    "uint8": "ui8",
    "uint16": "ui16",
    "uint32": "ui32",
    "uint64": "ui64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ",
    "float8_e8m0fnu": "f8E8M0FNU",
    "float4_e2m1fn_x2": "ui8",
}
"""MLIR's names of torch's types; two 4-bit numbers are one byte."""


@lru_cache(maxsize=64)
def element_of(dtype: str) -> ElementType:
    """Return the element type of a torch dtype.

    Raises `UnsupportedError` for one without a model.
    """
    if dtype not in _ELEMENTS:
        raise UnsupportedError(f"tensors of torch.{dtype} have no model")
    return element_type(_ELEMENTS[dtype])


@lru_cache(maxsize=65536)
def _type(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> TensorType:
    order = sorted(range(len(shape)), key=lambda axis: (strides[axis], -axis))
    layout = tuple(order)
    is_default = layout == tuple(reversed(range(len(shape)))) or 0 in strides
    return TensorType(element=element_of(dtype), shape=shape, layout=None if is_default else layout)


def type_of(tensor: RecordedTensor) -> TensorType:
    """Return a tensor's type, dimensions ordered by stride.

    Equal types are the same object.
    """
    return _type(tensor.shape, tensor.strides, tensor.dtype)


def type_on_host(tensor: RecordedTensor) -> TensorType:
    """Return the type of a copy in the host's memory."""
    return replace(type_of(tensor), memory_space=HOST_MEMORY)


def size_of(tensor: RecordedTensor) -> int:
    """Return a tensor's bytes; repeated elements count once.

    >>> size_of(RecordedTensor(storage=0, shape=(4, 8), strides=(0, 1), dtype="bfloat16"))
    16
    """
    sizes = zip(tensor.shape, tensor.strides, strict=True)
    elements = prod(size for size, stride in sizes if stride or size == 0)
    return elements * element_of(tensor.dtype).bits // 8


def sizes_of(tensors: Iterable[RecordedTensor]) -> int:
    """Return the bytes of tensors, each tensor counted once."""
    return sum(map(size_of, dict.fromkeys(tensors)))
