"""The assumptions and warnings of a result as text, the same under every result."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill

_WIDTH = 100


def assumption_lines(assumptions: Iterable[str], warnings: Iterable[str]) -> list[str]:
    """Return the list of assumptions under its heading, and the warnings below it.

    >>> assumption_lines(["the device never waits"], ["it does"])
    ['Assumed:', '  - the device never waits', 'warning: it does']
    """
    listed = [_wrapped(f"  - {assumption}", "    ") for assumption in assumptions]
    heading = ["Assumed:"] if listed else []
    return [*heading, *listed, *[_wrapped(f"warning: {each}", "  ") for each in warnings]]


def _wrapped(text: str, indent: str) -> str:
    return fill(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
