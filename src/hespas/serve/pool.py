"""Share requests, queue, prompts and blocks among batches."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hespas.serve.activity import Activity
from hespas.serve.engine import Setup
from hespas.serve.prefixes import Chain, Node, PrefixCache


@dataclass(slots=True, kw_only=True)
class Work:
    """All requests, with their progress; ``generated`` counts tokens.

    A request comes at ``arrivals_ps``, and is at an engine at ``offered_ps``. ``chains`` are the
    segments of prompts, ``output_segments`` those that outputs add to them. Of ``transferred``
    requests another replica computed the prompt.
    """

    arrivals_ps: list[int]
    prompts: Sequence[int]
    outputs: Sequence[int]
    generated: list[int]
    started_ps: list[int]
    first_ps: list[int]
    ended_ps: list[int]
    offered_ps: list[int]
    preempted: dict[int, int] = field(default_factory=dict[int, int])
    chains: Sequence[Chain] | None = None
    output_segments: Sequence[int] | None = None
    transferred: set[int] = field(default_factory=set[int])
    cached: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(slots=True, kw_only=True)
class Prompt:
    """A prompt under way, ``uncomputed`` tokens of its ``length``."""

    request: int
    length: int
    uncomputed: int


class Growth:
    """Sequences by when they take a block, each ``period``."""

    __slots__ = ("_phases", "_sequences", "period")

    def __init__(self, period: int) -> None:
        self.period, self._sequences, self._phases = period, 0, [0] * period

    def count(self, length: int, generation: int, change: int) -> None:
        """Add or remove a sequence of ``length`` tokens."""
        self._phases[(length - generation) % self.period] += change
        self._sequences += change

    def blocks(self, generation: int, tokens: int) -> int:
        """Return the blocks that all sequences take for their next ``tokens``."""
        period, phases = self.period, self._phases
        if tokens == 1 < period:
            return phases[-generation % period]
        rounds, remainder = divmod(tokens, period)
        places = [phases[-(generation + offset) % period] for offset in range(remainder)]
        return rounds * self._sequences + sum(places)


@dataclass(slots=True, kw_only=True)
class Pool:
    """A replica's common queue, prompts and blocks, and what it did."""

    free: int
    cache: PrefixCache | None
    waiting: deque[int] = field(default_factory=deque[int])
    prompts: list[Prompt] = field(default_factory=list[Prompt])
    order: list[int] = field(default_factory=list[int])
    blocks_of: dict[int, int] = field(default_factory=dict[int, int])
    used: dict[int, list[Node]] = field(default_factory=dict[int, list[Node]])
    activity: Activity = field(default_factory=Activity)


def pool_of(setup: Setup, work: Work) -> Pool:
    """Return the pool of a replica without requests."""
    caches = work.chains is not None and setup.engine.caches_prefixes
    cache = PrefixCache(setup.engine.block_tokens) if caches else None
    return Pool(free=setup.blocks, cache=cache)


def summed(causes_ps: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return how long queues waited for each cause."""
    total_ps = Counter[str]()
    for own_ps in causes_ps:
        total_ps.update(own_ps)
    return dict(total_ps)
