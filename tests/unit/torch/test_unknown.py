from __future__ import annotations

import logging
import operator
from collections.abc import Callable
from numbers import Number

import pytest

from hespas.torch.unknown import UnknownNumber, ValueUnknownError

_UNKNOWN = UnknownNumber("train.py:3")


def test_what_is_computed_with_an_unknown_number_is_unknown() -> None:
    computed = (2 * _UNKNOWN + 1 - _UNKNOWN / 3) ** 2 / -abs(_UNKNOWN)
    assert [f"{computed:.3f}", str(round(computed, 2)), repr([computed.item()])] == [
        "unknown",
        "unknown",
        "[unknown]",
    ]
    assert isinstance(computed, Number)


def _is_less(number: UnknownNumber) -> bool:
    return number < 3


def _is_three(number: UnknownNumber) -> bool:
    return number == 3


def test_the_older_form_shows_no_number() -> None:
    record = logging.LogRecord("", 0, "", 0, "loss %.3f", (_UNKNOWN,), None)
    assert record.getMessage() == "loss nan"


@pytest.mark.parametrize("decide", [bool, int, float, hash, operator.index, _is_less, _is_three])
def test_an_unknown_number_decides_nothing(decide: Callable[[UnknownNumber], object]) -> None:
    with pytest.raises(ValueUnknownError, match=r"train.py:3: the program needs a number"):
        decide(_UNKNOWN)
