"""Constraints: what they mean, what is not known yet, and what they refuse."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.errors import ConfigError
from hespas.study.goal import EVERYTHING, read_constraint

KNOWN = {"a": 3, "mesh.tp": 8, "name": "full", "yes": True}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a < 4", True),
        ("1 < a <= 3", True),
        ("1 < a < 3", False),
        ("not a == 3", False),
        ("mesh.tp % 2 == 0 and a * 2 + 1 == 7", True),
        ("mesh.tp / a > 2.6 or a // 2 == 2", True),
        ("-a < 0", True),
        ("name in ['full', 'none']", True),
        ("name not in ('none', 'half')", True),
        ("yes", True),
        ("unknown > 3", None),
        ("unknown > 3 and a > 4", False),
        ("unknown > 3 and a > 2", None),
        ("unknown > 3 or a > 2", True),
        ("not unknown", None),
        ("unknown + 1 > 2", None),
    ],
)
def test_what_expressions_mean(text: str, holds: bool | None) -> None:
    assert read_constraint(text).holds(KNOWN) is holds


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "open('x')",
        "(lambda: 1)()",
        "[x for x in y]",
        "a if b else c",
        "a ** 1000000000",
        "'a'.upper",
        "a[0]",
        "f'{a}'",
        "a := 3",
        "{1: 2}",
        "None",
        "b'bytes' == a",
        "1j > a",
        "a <",
        "a is b",
        "~a",
        "1 << 100000",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_constraint(text)


def test_what_cannot_be_compared_is_a_mistake_with_the_text() -> None:
    with pytest.raises(ConfigError, match="where: name < 3"):
        read_constraint("name < 3").holds(KNOWN)
    with pytest.raises(ConfigError, match="zero"):
        read_constraint("a / 0 > 1").holds(KNOWN)
    with pytest.raises(ConfigError, match="where: yes > 3: true and false have no order"):
        read_constraint("yes > 3").holds(KNOWN)
    with pytest.raises(ConfigError, match="no number"):
        read_constraint("name * 3 == 'x'").holds(KNOWN)


def test_an_unknown_field_gets_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'mesh\.tp'"):
        read_constraint("mesh.pt <= 8").check(KNOWN)


def test_nothing_is_a_constraint_that_all_satisfy() -> None:
    assert read_constraint("  ") is EVERYTHING
    assert EVERYTHING.holds({}) is True


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ConfigError):
        read_constraint(text).holds({})


def test_long_and_deep_texts_are_refused() -> None:
    with pytest.raises(ConfigError):
        read_constraint("a" * 3000)
    with pytest.raises(ConfigError):
        read_constraint("(" * 900 + "a" + ")" * 900 + " <")
