"""What replicas do over a run: iterations, and sequences that decode."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hespas.serve.load import PICOSECONDS


@dataclass(slots=True, kw_only=True)
class Iterations:
    """How long iterations of a kind ran, and new tokens times that."""

    elapsed_ps: int = 0
    tokens_ps: int = 0

    def add(self, elapsed_ps: int, tokens: int) -> None:
        """Count iterations that each make ``tokens`` new tokens."""
        self.elapsed_ps += elapsed_ps
        self.tokens_ps += tokens * elapsed_ps


@dataclass(slots=True, kw_only=True)
class Activity:
    """What a replica's batches did.

    ``working_ps`` is while one or more of them ran, ``decoding_ps`` sequences that had their first
    token times the time that they had it, and ``batch_ps`` the iterations with such sequences.
    """

    decodes: Iterations = field(default_factory=Iterations)
    prompts: Iterations = field(default_factory=Iterations)
    decoding_ps: int = 0
    batch_ps: int = 0
    working_ps: int = 0
    _until_ps: int = 0

    def add(self, start_ps: int, elapsed_ps: int, *, decoding: int, prompt_tokens: int) -> None:
        """Count iterations of a batch.

        ``decoding`` sequences have their first token.
        """
        if prompt_tokens:
            self.prompts.add(elapsed_ps, decoding + prompt_tokens)
        else:
            self.decodes.add(elapsed_ps, decoding)
        self.decoding_ps += decoding * elapsed_ps
        self.batch_ps += elapsed_ps if decoding else 0
        end_ps = start_ps + elapsed_ps
        self.working_ps += max(0, end_ps - max(start_ps, self._until_ps))
        self._until_ps = max(self._until_ps, end_ps)


def mean_batch(activities: Iterable[Activity], duration_s: float) -> float:
    """Return the mean sequences that decode, of all replicas."""
    return sum(each.decoding_ps for each in activities) / PICOSECONDS / duration_s


def working_batch(activities: Iterable[Activity]) -> float:
    """Return the mean sequences of an iteration that has some."""
    pairs = [(each.decoding_ps, each.batch_ps) for each in activities]
    batch_ps = sum(pair[1] for pair in pairs)
    return sum(pair[0] for pair in pairs) / batch_ps if batch_ps else 0.0
