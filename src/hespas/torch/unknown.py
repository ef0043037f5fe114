"""Numbers that a program reads from the device, where tensors have no data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dis import get_instructions
from inspect import currentframe
from math import nan
from numbers import Number
from types import FrameType
from typing import Any, NoReturn, Protocol, Self, cast

from hespas.errors import UnsupportedError
from hespas.torch.script import NO_DATA

_FORMATS = ("%", "%=")


class ValueUnknownError(UnsupportedError):
    """A program reads a value of a tensor without data."""


class Rules(Protocol):
    """Says what follows from unknown numbers; each may raise `ValueUnknownError`."""

    def decide(self, line: str) -> bool:
        """Return what a comparison is taken for, of a number that a line read."""
        ...

    def convert(self, line: str) -> float:
        """Return what ``float(number)`` is, of a number that a line read."""
        ...

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an operation of torch that has unknown numbers among its arguments."""
        ...


def refuse(line: str, needed_at: str = "") -> NoReturn:
    """Raise `ValueUnknownError` for a number that a line read and another one needs."""
    where = needed_at or line
    reading = f" (at {line})" if line != where else ""
    raise ValueUnknownError(
        f"the program needs a number that it has read from the device{reading}, and tensors have "
        "no data here",
        location=where,
        hint=NO_DATA,
    )


class UnknownNumber:
    """A number that may be computed with, compared and shown.

    What follows from a comparison, and what ``float(number)`` is, its ``rules`` say. Counts, as of
    ``range(number)``, raise `ValueUnknownError` with the ``line`` that read it. Where a form asks
    for a ``float``, ``nan`` is shown. ``kind`` stands in its place among arguments of torch; a
    floating-point number is not zero.

    >>> from types import SimpleNamespace
    >>> number = UnknownNumber("train.py:3", SimpleNamespace(decide=lambda line: False)) / 2
    >>> f"{number:.3f}", "%.3f" % number, number < 3, bool(number < 3)
    ('unknown', 'nan', unknown, False)
    """

    __slots__ = ("_is_compared", "_line", "_rules", "kind")

    def __init__(
        self, line: str, rules: Rules, kind: float = 1.0, *, is_compared: bool = False
    ) -> None:
        self._line, self._rules, self.kind = line, rules, kind
        self._is_compared = is_compared

    def __format__(self, form: str) -> str:
        """Return ``unknown`` in any form."""
        del form
        return "unknown"

    def __repr__(self) -> str:
        """Return ``unknown``."""
        return "unknown"

    def _computed(self, *_others: Any) -> Self:
        return self

    def _compared(self, *_others: Any) -> UnknownNumber:
        return UnknownNumber(self._line, self._rules, self.kind, is_compared=True)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _computed
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _computed
    __pow__ = __rpow__ = __round__ = __neg__ = __pos__ = __abs__ = _computed
    __lt__ = __le__ = __gt__ = __ge__ = _compared
    __eq__ = __ne__ = cast("Any", _compared)
    item = exp = log = sqrt = conjugate = _computed
    """What NumPy calls of objects; ``item`` is that of its numbers."""

    def __bool__(self) -> bool:
        """Return what a comparison is taken for; a number itself is not zero."""
        if isinstance(self.kind, float) and not self._is_compared:
            return True
        return self._rules.decide(self._line)

    def __float__(self) -> float:
        """Return what stands for the number where a ``float`` is needed."""
        return nan if is_shown(currentframe()) else self._rules.convert(self._line)

    def _needed(self) -> NoReturn:
        refuse(self._line)

    __int__ = __index__ = __hash__ = _needed

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operation of torch with an unknown number."""
        del types
        number = next(_numbers([*args, *(kwargs or {}).values()]))
        return number._rules.call(func, args, kwargs or {})


def _numbers(values: Iterable[Any]) -> Iterator[UnknownNumber]:
    for value in values:
        if isinstance(value, UnknownNumber):
            yield value
        elif isinstance(value, list | tuple):
            yield from _numbers(cast("Sequence[Any]", value))


def is_shown(frame: FrameType | None) -> bool:
    """Return whether the code that called a frame formats a text (``%``)."""
    caller = None if frame is None else frame.f_back
    if caller is None:
        return False
    return any(
        instruction.offset == caller.f_lasti and instruction.argrepr in _FORMATS
        for instruction in get_instructions(caller.f_code)
    )


Number.register(UnknownNumber)
