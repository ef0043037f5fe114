"""Inputs for a program that is run to be timed: the same ones each time.

Numbers are not zeros, with which arithmetic takes less power: floating point is spread evenly over
0 to 1/16, integers count from 0 to 99 over and over, and single integers, such as counts of steps,
are 1. They are small enough to be indices of what programs index; XLA clamps those that are not.
"""

# numpy's own types are only partly known here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from importlib import import_module
from math import prod
from typing import Any

_LARGEST = 1 / 16
_DISTINCT = 1 << 16
_INTEGERS = 100
_OF_FEW_BITS = ("int2", "uint2", "int4", "uint4")


def made_input(shape: tuple[int, ...], kind: Any) -> Any:
    """Return the numpy array that an input of a shape and a type is filled with.

    >>> made_input((4,), "int32").tolist(), made_input((), "int64").tolist()
    ([0, 1, 2, 3], 1)
    >>> made_input((2, 2), "bool").tolist()
    [[True, True], [True, True]]
    >>> bool((made_input((300,), "float32") < 1 / 16).all())
    True
    """
    numpy = import_module("numpy")
    dtype = numpy.dtype(kind)
    is_whole = dtype.name.startswith(("int", "uint"))
    if dtype == numpy.bool_ or (is_whole and not shape):
        return numpy.ones(shape, dtype)
    if is_whole:
        values = numpy.arange(2 if dtype.name in _OF_FEW_BITS else _INTEGERS)
    else:
        count = max(1, min(_DISTINCT, prod(shape)))
        values = numpy.random.default_rng(0).random(count) * _LARGEST
    # Types that numpy doesn't know by itself are repeated as they are.
    return numpy.resize(values.astype(dtype), shape)
