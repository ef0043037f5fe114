"""What replicas do over a run: iterations, sequences that decode, and their energy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hespas.serve.load import PICOSECONDS
from hespas.serve.step_times import interpolated

if TYPE_CHECKING:
    from hespas.serve.surface import Surface


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


def energy_of(
    surface: Surface, activities: Sequence[Activity], devices: Sequence[int], duration_s: float
) -> float | None:
    """Return the energy that replicas of ``devices`` draw over the run.

    Each kind of iteration draws the power of its mean tokens, and devices that wait draw
    ``idle_w``. None where power is not known.
    """
    if surface.power_w is None:
        return None
    total_j = 0.0
    for activity, count in zip(activities, devices, strict=True):
        working_s = activity.working_ps / PICOSECONDS
        total_j += count * surface.idle_w * max(0.0, duration_s - working_s)
        total_j += count * _working_w(surface.power_w, activity, surface.parts) * working_s
    return total_j


def _working_w(table_w: Sequence[tuple[int, float]], activity: Activity, parts: int) -> float:
    """Return the mean power of a device while its replica works; 0 where it never does."""
    most = table_w[-1][0]
    energy_ps = elapsed_ps = 0.0
    for kind in (activity.decodes, activity.prompts):
        if kind.elapsed_ps:
            tokens = kind.tokens_ps / kind.elapsed_ps / parts
            power_w = interpolated(table_w, min(most, max(1, round(tokens))))
            energy_ps += power_w * kind.elapsed_ps
            elapsed_ps += kind.elapsed_ps
    return energy_ps / elapsed_ps if elapsed_ps else 0.0
