"""Numbers that a program reads from the device, where tensors have no data."""

from __future__ import annotations

from dis import get_instructions
from inspect import currentframe
from math import nan
from numbers import Number
from types import FrameType
from typing import Any, NoReturn, Self

from hespas.errors import UnsupportedError
from hespas.torch.script import NO_DATA

_FORMATS = ("%", "%=")


class ValueUnknownError(UnsupportedError):
    """A program reads a value of a tensor without data."""


class UnknownNumber:
    """A number that may be computed with and shown, and decides nothing.

    Whatever needs its value raises `ValueUnknownError` with the ``line`` that read it. A form that
    asks for a ``float`` shows ``nan``.

    >>> number = UnknownNumber("train.py:3") / 2
    >>> f"{number:.3f}", "%.3f" % number
    ('unknown', 'nan')
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

    def __float__(self) -> float:
        """Return no number for ``%.3f`` to show."""
        return nan if _is_shown(currentframe()) else self._needed()

    __bool__ = __int__ = __index__ = __hash__ = _needed
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _needed


def _is_shown(frame: FrameType | None) -> bool:
    """Return whether the code that called a frame formats a text (``%``)."""
    caller = None if frame is None else frame.f_back
    if caller is None:
        return False
    return any(
        instruction.offset == caller.f_lasti and instruction.argrepr in _FORMATS
        for instruction in get_instructions(caller.f_code)
    )


Number.register(UnknownNumber)
