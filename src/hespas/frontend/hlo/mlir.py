"""Attributes as MLIR prints them: programs read from HLO print like those from StableHLO."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

Attributes = tuple[tuple[str, str], ...]
"""Names and texts, sorted by name."""


@lru_cache(maxsize=4096)
def array(numbers: tuple[int, ...]) -> str:
    """Print ``array<i64: 0, 1>``.

    >>> array((0, 1)), array(())
    ('array<i64: 0, 1>', 'array<i64>')
    """
    return f"array<i64: {', '.join(map(str, numbers))}>" if numbers else "array<i64>"


def integer(number: int) -> str:
    """Print a number of 64 bits."""
    return f"{number} : i64"


def flags(values: Sequence[bool]) -> str:
    """Print ``array<i1: true, false>``."""
    return f"array<i1: {', '.join(str(value).lower() for value in values)}>"


def rows(pairs: Sequence[tuple[int, ...]], width: int = 2) -> str:
    """Print rows of numbers as a dense tensor.

    >>> rows(((0, 1), (2, 3)))
    'dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>'
    """
    listed = str([list(pair) for pair in pairs]) if pairs else ""
    return f"dense<{listed}> : tensor<{len(pairs)}x{width}xi64>"


def stablehlo(name: str, value: str) -> str:
    """Print a StableHLO enumeration's value, ``#stablehlo<comparison_direction LT>``."""
    return f"#stablehlo<{name} {value}>"


@lru_cache(maxsize=256)
def string(text: str) -> str:
    r"""Print a string, as ASCII on one line.

    >>> print(string('{"n":"32"}'))
    "{\22n\22:\2232\22}"
    """
    plain = "".join([char if _is_plain(char) else _escaped(char) for char in text])
    return f'"{plain}"'


def _is_plain(char: str) -> bool:
    return " " <= char <= "~" and char not in '"\\'


def _escaped(char: str) -> str:
    return "".join([f"\\{byte:02X}" for byte in char.encode()])


def listed(named: dict[str, str]) -> Attributes:
    """Return attributes sorted by name."""
    return tuple(sorted(named.items()))
