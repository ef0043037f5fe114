"""Name what the user probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


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
