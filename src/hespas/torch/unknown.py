"""Numbers that a program reads from the device, where tensors have no data."""

from __future__ import annotations

from numbers import Number
from typing import Any, NoReturn, Self

from hespas.errors import UnsupportedError
from hespas.torch.script import NO_DATA


class ValueUnknownError(UnsupportedError):
    """A program reads a value of a tensor without data."""


class UnknownNumber:
    """A number that may be computed with and shown, and decides nothing.

    Whatever needs its value raises `ValueUnknownError` with the ``line`` that read it.

    >>> f"{UnknownNumber('train.py:3') / 2:.3f}"
    'unknown'
    """

    __slots__ = ("_line",)

    def __init__(self, line: str) -> None:
        self._line = line

    def __format__(self, form: str) -> str:
        """Return ``unknown`` in any form."""
        del form
        return "unknown"

    def __repr__(self) -> str:
        """Return ``unknown``."""
        return "unknown"

    def _computed(self, *_others: Any) -> Self:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _computed
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __round__ = _computed
    __neg__ = __abs__ = _computed

    def item(self) -> Self:
        """Return the number, as numbers of NumPy do."""
        return self

    def _needed(self, *_others: Any) -> NoReturn:
        raise ValueUnknownError(
            "the program needs a number that it has read from the device, and tensors have no "
            "data here",
            location=self._line,
            hint=NO_DATA,
        )

    __bool__ = __float__ = __int__ = __index__ = __hash__ = _needed
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _needed


Number.register(UnknownNumber)
