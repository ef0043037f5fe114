"""A replica cut into stages, with a batch under way for each.

Each batch has sequences of its own; the queue, prompts and blocks are common to all. A batch that
has been through all stages takes part of the queue and goes through again. Chunks of a long prompt
may follow one another in different batches. Source: vLLM, v1/engine/core.py, step_with_batch_queue,
and SGLang 0.5.9, managers/scheduler_pp_mixin.py, event_loop_pp.
"""

from __future__ import annotations

from bisect import insort
from heapq import heappop, heappush

from hespas.serve.engine import Setup, StageClock
from hespas.serve.pool import Work, pool_of, summed
from hespas.serve.replica import Replica


class Pipeline:
    """An engine cut into stages; a fleet sees it as a `Replica`.

    ``due`` is a heap of the ends of batches under way, with the batch; ``resting`` are those that
    have nothing to do, which look again at ``wake_ps``.
    """

    def __init__(self, setup: Setup, work: Work, number: int) -> None:
        self.setup, self.work, self.number = setup, work, number
        self.pool = pool_of(setup, work)
        clock = StageClock(free_ps=[0] * len(setup.stages))
        self.batches = [
            Replica(setup, work, number, pool=self.pool, clock=clock) for _ in setup.stages
        ]
        self.due: list[tuple[int, int]] = []
        self.resting = list(range(len(self.batches)))
        self.wake_ps: int | None = None

    @property
    def now(self) -> int:
        """When something happens next, or happened last where nothing is to do."""
        times = [time_ps for time_ps, _ in self.due[:1]]
        if self.wake_ps is not None:
            times.append(self.wake_ps)
        return min(times, default=max(batch.now for batch in self.batches))

    @property
    def decoding(self) -> int:
        """The sequences that decode, of all batches."""
        return sum(batch.decoding for batch in self.batches)

    @property
    def load(self) -> int:
        """The requests that are here, waiting or running."""
        return len(self.pool.waiting) + len(self.pool.blocks_of)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.due and self.wake_ps is None

    @property
    def preemptions(self) -> int:
        """How often a request was preempted."""
        return sum(batch.preemptions for batch in self.batches)

    @property
    def iterations(self) -> int:
        """How often a batch went through all stages."""
        return sum(batch.iterations for batch in self.batches)

    @property
    def causes_ps(self) -> dict[str, int]:
        """What the queue waited for, and how long."""
        return summed(batch.causes_ps for batch in self.batches)

    def cached_tokens(self, request: int) -> int:
        """Return how many tokens of a prompt are kept here."""
        return self.batches[0].cached_tokens(request)

    def offer(self, request: int, arrived_ps: int) -> None:
        """Queue a request, and wake batches that rest."""
        self.work.offered_ps[request] = arrived_ps
        self.pool.waiting.append(request)
        if self.resting and self.wake_ps is None:
            self.wake_ps = arrived_ps

    def run(self, horizon_ps: int) -> list[int]:
        """Let a batch end, or those that rest begin; return what ended."""
        if self.due and (self.wake_ps is None or self.due[0][0] <= self.wake_ps):
            self.wake_ps, index = heappop(self.due)
            insort(self.resting, index)
            return self.batches[index].finish()
        now, self.wake_ps = self.wake_ps, None
        # Who has sequences goes first: it takes prompts beside them.
        for index in sorted(self.resting, key=lambda index: not self.batches[index].decoding):
            batch = self.batches[index]
            batch.now = batch.now if now is None else now
            decodes_elsewhere = any(self.batches[it].decoding for it in self.resting if it != index)
            is_alone = not self.due and not decodes_elsewhere
            if batch.start(horizon_ps if is_alone else batch.now + 1):
                self.resting.remove(index)
                heappush(self.due, (batch.now, index))
        return []
