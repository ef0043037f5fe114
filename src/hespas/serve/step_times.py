"""The time of an engine's iteration, by what it computes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hespas.base.frozen import frozen
from hespas.serve.load import PICOSECONDS

NEVER = 1 << 62


@frozen
class StepFactors:
    """How much longer iterations take than predicted."""

    decode: float = 1.0
    prompts: float = 1.0


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """An iteration takes what its tokens take, and what each attends to.

    Some layers may attend to the last ``window`` tokens alone: ``window_s`` and ``window_pair_s``
    are what these take, ``context_s`` and ``pair_s`` what others do.

    ``tokens_s`` has the seconds of iterations of so many new tokens, ascending, without what they
    attend to; ``context_s`` the seconds for each token of context that a batch of so many decoding
    sequences attends to; ``pair_s`` those for each pair of a token of a prompt and one that it
    attends to. Between sizes all is linear, as it goes on beyond the last. ``exchange_s`` has the
    seconds that a number of tokens travels to experts beside this; an iteration takes no less.
    """

    tokens_s: tuple[tuple[int, float], ...]
    context_s: tuple[tuple[int, float], ...]
    pair_s: float = 0.0
    exchange_s: tuple[tuple[int, float], ...] = ()
    window: int = 0
    window_s: tuple[tuple[int, float], ...] = ()
    window_pair_s: float = 0.0

    def scaled(self, factors: StepFactors, *, most_decoded: int) -> StepTimes:
        """Return times that factors multiply; sizes up to ``most_decoded`` are of decoding."""
        return replace(
            self,
            tokens_s=tuple(
                (size, time_s * (factors.decode if size <= most_decoded else factors.prompts))
                for size, time_s in self.tokens_s
            ),
            context_s=tuple((size, time_s * factors.decode) for size, time_s in self.context_s),
            pair_s=self.pair_s * factors.prompts,
            window_s=tuple((size, time_s * factors.decode) for size, time_s in self.window_s),
            window_pair_s=self.window_pair_s * factors.prompts,
        )

    def received(self, fixed_s: float, token_s: float) -> StepTimes:
        """Return the times with those to receive tokens."""
        tokens_s = ((size, time_s + fixed_s + size * token_s) for size, time_s in self.tokens_s)
        return replace(self, tokens_s=tuple(tokens_s))

    def of_tokens(self, tokens: int) -> int:
        """Return the ps of an iteration of so many tokens, without attention."""
        if tokens not in self._tokens_ps:
            self._tokens_ps[tokens] = round(interpolated(self.tokens_s, tokens) * PICOSECONDS)
        return self._tokens_ps[tokens]

    def of_context(self, sequences: int) -> int:
        """Return the ps per token of context, at a batch of ``sequences``."""
        if sequences not in self._context_ps:
            time_s = max(0.0, interpolated(self.context_s, sequences))
            self._context_ps[sequences] = round(time_s * PICOSECONDS)
        return self._context_ps[sequences]

    def of_window(self, sequences: int) -> int:
        """Return the ps per token of context within the window, beside `of_context`."""
        if not self.window_s:
            return 0
        return round(max(0.0, interpolated(self.window_s, sequences)) * PICOSECONDS)

    def attended_ps(self, decoding: int, context: int, parts: int) -> tuple[int, int, int]:
        """Return an iteration's attention time, its growth, and for how long.

        ``decoding`` sequences, divided over ``parts``, attend to ``context`` tokens together, and
        to one more each an iteration later. Within a window all count as long as the mean.
        """
        sequences = -(-decoding // parts)
        rate = self.of_context(sequences)
        attended = rate * context // parts
        if not self.window_s:
            return attended, rate * decoding // parts, NEVER
        room = decoding * self.window - context
        if room <= 0:
            seen = self.of_window(sequences) * decoding * self.window
            return attended + seen // parts, rate * decoding // parts, NEVER
        rate += self.of_window(sequences)
        return rate * context // parts, rate * decoding // parts, -(-room // decoding)

    def of_exchange(self, tokens: int) -> int:
        """Return how long ``tokens`` travel beside an iteration, in ps; 0 without."""
        if not self.exchange_s:
            return 0
        return round(interpolated(self.exchange_s, tokens) * PICOSECONDS)

    @cached_property
    def _tokens_ps(self) -> dict[int, int]:
        return {}

    @cached_property
    def _context_ps(self) -> dict[int, int]:
        return {}

    @cached_property
    def of_pair(self) -> float:
        """The ps per pair of a token and attended one."""
        return max(0.0, self.pair_s) * PICOSECONDS

    def pairs_ps(self, before: int, tokens: int) -> float:
        """Return the attention time of ``tokens`` of a prompt after ``before``."""
        time_ps = self.of_pair * (tokens * before + tokens * (tokens + 1) // 2)
        if self.window_pair_s:
            seen = pairs_within(self.window, before + tokens) - pairs_within(self.window, before)
            time_ps += self.window_pair_s * PICOSECONDS * seen
        return time_ps

    @property
    def left_out_error(self) -> float:
        """The largest error of a size left out; 0 for two sizes.

        The first and the last have a neighbour on one side alone, and are not left out.
        """
        errors = [
            abs(interpolated(self.tokens_s[:index] + self.tokens_s[index + 1 :], size) / value - 1)
            for index, (size, value) in enumerate(self.tokens_s)
            if 0 < index < len(self.tokens_s) - 1
        ]
        return max(errors, default=0.0)


def summed(stages: Sequence[StepTimes]) -> StepTimes:
    """Return the times of all stages in turn, of equal sizes.

    >>> one = StepTimes(tokens_s=((1, 2.0), (8, 3.0)), context_s=((1, 0.5),), pair_s=0.25)
    >>> summed((one, one)) == StepTimes(
    ...     tokens_s=((1, 4.0), (8, 6.0)), context_s=((1, 1.0),), pair_s=0.5)
    True
    """

    def added(axes: Sequence[tuple[tuple[int, float], ...]]) -> tuple[tuple[int, float], ...]:
        maps = [dict(axis) for axis in axes if axis]
        return tuple((size, sum(it[size] for it in maps)) for size in maps[0]) if maps else ()

    return StepTimes(
        tokens_s=added([stage.tokens_s for stage in stages]),
        context_s=added([stage.context_s for stage in stages]),
        pair_s=sum(stage.pair_s for stage in stages),
        exchange_s=added([stage.exchange_s for stage in stages]),
        window=max(stage.window for stage in stages),
        window_s=added([stage.window_s for stage in stages]),
        window_pair_s=sum(stage.window_pair_s for stage in stages),
    )


def pairs_within(window: int, tokens: int) -> int:
    """Count the pairs of tokens that attention joins.

    Each token attends to those at most ``window`` back.

    >>> pairs_within(4, 3), pairs_within(4, 4), pairs_within(4, 6)
    (6, 10, 18)
    """
    growing = min(window, tokens)
    return growing * (growing + 1) // 2 + (tokens - growing) * window


def interpolated(points: Sequence[tuple[int, float]], size: int) -> float:
    """Interpolate linearly; constant below the first point.

    >>> interpolated([(1, 2.0), (3, 4.0)], 2), interpolated([(1, 2.0), (3, 4.0)], 5)
    (3.0, 6.0)
    """
    if len(points) == 1 or size <= points[0][0]:
        return points[0][1]
    upper = min(bisect_right(points, size, key=lambda point: point[0]), len(points) - 1)
    (low, below), (high, above) = points[upper - 1], points[upper]
    return below + (above - below) * (size - low) / (high - low)
