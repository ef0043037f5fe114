from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import pytest

from hespas.torch.unknown import UnknownNumber, ValueUnknownError, refuse


class _Refusing:
    """Rules by which nothing follows from a number."""

    def decide(self, line: str) -> bool:
        refuse(line)

    def convert(self, line: str) -> float:
        refuse(line)

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return func, args, kwargs


_UNKNOWN = UnknownNumber("train.py:3", _Refusing())


def test_what_is_computed_with_an_unknown_number_is_unknown() -> None:
    computed = (2 * _UNKNOWN + 1 - _UNKNOWN / 3) ** 2 / -abs(_UNKNOWN)
    assert [f"{computed:.3f}", str(round(computed, 2)), repr([computed.item()])] == [
        "unknown",
        "unknown",
        "[unknown]",
    ]
    assert isinstance(computed, Number)


def _is_less(number: UnknownNumber) -> bool:
    return bool(number < 3)


def _is_three(number: UnknownNumber) -> bool:
    return bool(number == 3)


def test_a_comparison_decides_nothing_by_itself() -> None:
    number: Any = _UNKNOWN
    assert repr([number < 3, number != 3]) == "[unknown, unknown]"


def test_a_floating_point_number_is_not_zero() -> None:
    assert _UNKNOWN
    assert (_UNKNOWN / 2 or 0.0) is _UNKNOWN
    with pytest.raises(ValueUnknownError):
        bool(UnknownNumber("train.py:3", _Refusing(), 1))


def test_numpy_computes_with_unknown_numbers() -> None:
    numbers: Any = np.array([_UNKNOWN, 1.0], dtype=object)
    assert repr([numbers.mean(), np.exp(numbers[:1]).sum()]) == "[unknown, unknown]"


def test_rules_call_operations_of_torch_with_unknown_numbers() -> None:
    called = UnknownNumber.__torch_function__(max, (), ([1.0, _UNKNOWN],), {"key": None})
    assert called == (max, ([1.0, _UNKNOWN],), {"key": None})


def test_the_older_form_shows_no_number() -> None:
    record = logging.LogRecord("", 0, "", 0, "loss %.3f", (_UNKNOWN,), None)
    assert record.getMessage() == "loss nan"


@pytest.mark.parametrize("decide", [int, float, hash, operator.index, _is_less, _is_three])
def test_an_unknown_number_decides_nothing(decide: Callable[[UnknownNumber], object]) -> None:
    with pytest.raises(ValueUnknownError, match=r"train.py:3: the program needs a number"):
        decide(_UNKNOWN)
