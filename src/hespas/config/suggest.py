"""Name what the user probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import Enum
from typing import TypeVar

from hespas.errors import ConfigError

Choice = TypeVar("Choice", bound=Enum)


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return a mend that names the ``known`` words nearest to ``given``, or all of them.

    >>> suggestion("peak_flop", ["peak_flops", "num_npus"])
    "did you mean 'peak_flops'?"
    >>> suggestion("npus", ["peak_flops", "num_npus"])
    "did you mean 'num_npus'?"
    >>> suggestion("speed", ["peak_flops", "num_npus"])
    'known: num_npus, peak_flops'
    """
    words = sorted(set(known))
    by_folded = {word.casefold(): word for word in words}
    folded = given.casefold()
    close = get_close_matches(folded, by_folded, n=3)
    if not close and len(folded) >= 3:
        close = [word for word in by_folded if folded in word]
    if close:
        return f"did you mean {' or '.join(repr(by_folded[match]) for match in close)}?"
    return f"known: {', '.join(words)}" if words else "remove it"


def choice(name: str, kind: type[Choice], *, what: str) -> Choice:
    """Return the member of ``kind`` whose value is ``name``; `ConfigError` for any other.

    >>> class Side(Enum):
    ...     LEFT = "left"
    >>> choice("left", Side, what="the side")
    <Side.LEFT: 'left'>
    """
    known = {member.value: member for member in kind}
    if name not in known:
        raise ConfigError(f"{what} is {name!r}", mend=f"use one of {', '.join(known)}")
    return known[name]
