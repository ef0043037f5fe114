"""The rounds of loops that are unrolled, all or some of them, since they communicate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRound:
    """A round of a loop: the ``number``-th of ``count``, from 1 on.

    ``first`` and ``last`` are the ids of its first and its last region. ``loop`` names the loop.
    """

    loop: str
    number: int
    count: int
    first: int
    last: int


def runs_of_round(number: int, count: int, *, walked: int) -> int:
    """Return how many of ``count`` rounds one of those that are ``walked`` stands for.

    The last but one stands for all that are left out, since another round follows it as well.

    >>> [runs_of_round(number, 10, walked=4) for number in (1, 2, 3, 4)]
    [1, 1, 7, 1]
    """
    return count - walked + 1 if number == max(1, walked - 1) else 1


def rounds_of_regions(
    rounds: Iterable[LoopRound], region_of: Sequence[int | None]
) -> Iterator[LoopRound]:
    """Yield rounds in regions, of rounds whose ``first`` and ``last`` are operations.

    ``region_of`` gives the region of each operation, None for one that is in none. A region with
    the end of a round and the beginning of the next one belongs to the former; a round that has no
    region of its own is left out.
    """
    reached: dict[str, int] = {}
    for each in rounds:
        inside = [number for number in region_of[each.first : each.last + 1] if number is not None]
        first = max(min(inside, default=0), reached.get(each.loop, -1) + 1)
        last = max(inside, default=-1)
        if first <= last:
            reached[each.loop] = last
            yield replace(each, first=first, last=last)
