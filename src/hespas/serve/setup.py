"""Describe what a replica runs."""

from __future__ import annotations

from hespas.base.frozen import frozen
from hespas.serve.engine import Engine
from hespas.serve.step_times import StepTimes


@frozen
class Setup:
    """What a replica runs: an engine, step times, and cache blocks.

    The batch of a replica is divided over ``parts`` that hold its weights in common. One that
    ``only_prefills`` makes the first token of each request. ``times`` are of all layers; the
    ``stages`` of a pipeline have their own, none without one. Beyond the ``window`` of step times a
    block holds ``tokens_beyond``, 0 for any number, and a sequence has ``state_blocks`` beside.
    """

    engine: Engine
    times: StepTimes
    blocks: int
    parts: int = 1
    tokens_beyond: int | None = None
    state_blocks: int = 0
    speculation: Speculation | None = None
    only_prefills: bool = False
    stages: tuple[StepTimes, ...] = ()

    def is_beyond(self, tokens: int) -> bool:
        """Return whether a sequence with ``tokens`` has grown beyond the window."""
        return self.tokens_beyond is not None and tokens > self.times.window

    def blocks_of(self, tokens: int, *, joined: int | None = None) -> int:
        """Return the blocks of a sequence with this many tokens."""
        block, window = self.engine.block_tokens, self.times.window
        if not self.is_beyond(tokens if joined is None else joined):
            return -(-tokens // block) + self.state_blocks
        more = -(-(tokens - window) // self.tokens_beyond) if self.tokens_beyond else 0
        return -(-window // block) + more + self.state_blocks


@frozen
class Speculation:
    """Tokens guessed ahead, accepted in order with a probability each.

    A guess takes ``draft_share`` of the iteration that checks it. Source of the mean: Leviathan et
    al., Fast Inference from Transformers via Speculative Decoding, ICML 2023, equation 1.
    """

    tokens: int
    acceptance: float
    draft_share: float

    @property
    def made(self) -> float:
        """The mean number of tokens that an iteration makes of a sequence.

        >>> Speculation(tokens=3, acceptance=0.5, draft_share=0.0).made
        1.875
        """
        return sum(self.acceptance**guessed for guessed in range(self.tokens + 1))
