"""One replica of an engine, by iteration: queue, batch and blocks.

Times are integer picoseconds. Iterations in which the same sequences decode are computed at once:
their times are an arithmetic series, for attention is linear in the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import isqrt

from hespas.errors import ConfigError
from hespas.serve.engine import BatchLimit, Reserve, Setup, StageClock
from hespas.serve.pool import Growth, Pool, Prompt, Work, pool_of
from hespas.serve.prefixes import Node
from hespas.serve.step_times import NEVER, StepTimes

_MOST_PREEMPTIONS = 1000
"""Of one request: a load that is preempted for ever is refused."""


class Replica:
    """One engine: its queue, its decoding sequences and their blocks.

    It is one of the batches of a pipeline where others have its ``pool``: they go through the
    stages of one ``clock``.
    """

    def __init__(
        self,
        setup: Setup,
        work: Work,
        number: int,
        *,
        pool: Pool | None = None,
        clock: StageClock | None = None,
    ) -> None:
        self.setup, self.work, self.number = setup, work, number
        self.pool, self.clock = pool or pool_of(setup, work), clock
        budgets = 1 if setup.engine.divides_budget else setup.parts
        self.budget = setup.engine.token_budget * budgets
        self.limit = setup.engine.most_sequences * setup.parts
        if clock is not None and setup.engine.batch_limit is BatchLimit.SHARED:
            self.limit = max(1, self.limit // len(setup.stages))
        # Where blocks for the output are not reserved, a sequence takes them as it grows.
        self.grows = setup.engine.reserve is Reserve.PROMPT
        self.now = 0
        # The batch of an iteration has what was here when it was planned.
        self.planned_ps = 0
        self.unpolled = 0
        # Requests whose prompt is computed when the iteration ends.
        self.complete: list[Prompt] = []
        self.decoding = 0
        self.context = 0
        self.generation = 0
        # Sequences within the window, and those beyond it.
        self.growths = (
            Growth(setup.engine.block_tokens),
            Growth(setup.tokens_beyond) if setup.tokens_beyond else None,
        )
        self.ends: list[tuple[int, int]] = []
        self.joined: dict[int, tuple[int, int]] = {}
        self.iterations = self.preemptions = 0
        self.credit = 0.0
        self.causes_ps: dict[str, int] = {}

    @property
    def load(self) -> int:
        """The requests that are here, waiting or running."""
        return len(self.pool.waiting) + len(self.pool.prompts) + self.decoding

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.decoding or self.pool.waiting or self.pool.prompts)

    def offer(self, request: int, arrived_ps: int) -> None:
        """Append a request to the queue; an idle replica waits for it."""
        if self.is_idle:
            self.now = max(self.now, arrived_ps)
        self.work.offered_ps[request] = arrived_ps
        self.pool.waiting.append(request)

    def run(self, horizon_ps: int) -> list[int]:
        """Run iterations of one kind that start before ``horizon_ps``; return what ended.

        At least one runs, which may preempt.
        """
        self.start(horizon_ps)
        return self.finish()

    def start(self, horizon_ps: int) -> bool:
        """Begin iterations of one kind; return whether there is something to do."""
        engine = self.setup.engine
        self._admit()
        if engine.mixes or not self.pool.prompts:
            self._make_room()
        if self.pool.prompts:
            self._with_prompts(decodes=engine.mixes and self.decoding > 0)
        elif self.decoding:
            self._decode(horizon_ps)
        else:
            return False
        return True

    def finish(self) -> list[int]:
        """End what was begun; return the requests that ended with it."""
        ended = self._ended()
        if self.complete:
            complete, self.complete = self.complete, []
            for prompt in complete:
                ended += self._begin(prompt)
        return ended

    # -- admission

    def _admit(self) -> None:
        """Take requests from the queue while the engine has room for them."""
        engine, work, pool = self.setup.engine, self.work, self.pool
        room = self.budget - (self.decoding if engine.mixes else 0)
        room -= sum(prompt.uncomputed for prompt in pool.prompts)
        while pool.waiting and room > 0 and self._is_planned(pool.waiting[0]):
            if self._is_full():
                return
            request = pool.waiting[0]
            is_computed = bool(work.transferred) and request in work.transferred
            length = work.prompts[request] + work.generated[request] - is_computed
            shared, cached = ([], 0) if pool.cache is None else self._shared(request, length)
            uncomputed = 0 if is_computed else length - cached
            if not engine.cuts_prompts and uncomputed > room and pool.prompts:
                return
            needed = self._reserved(request)
            if shared:
                needed -= -(-cached // engine.block_tokens)
                unused = sum(node.blocks for node in shared if not node.users)
                if needed + unused > pool.free:
                    return
            elif needed > pool.free:
                return
            pool.waiting.popleft()
            pool.order.append(request)
            self._take(request, shared, needed)
            work.started_ps[request] = min(work.started_ps[request], self.now)
            if is_computed:
                work.transferred.remove(request)
                self._join(request, length)
                continue
            if cached:
                work.cached.setdefault(request, cached)
            pool.prompts.append(Prompt(request=request, length=length, uncomputed=uncomputed))
            room -= uncomputed

    def _is_full(self) -> bool:
        if self.clock is None or self.setup.engine.batch_limit is BatchLimit.TOGETHER:
            return len(self.pool.blocks_of) >= self.limit
        return self.decoding + len(self.pool.prompts) + len(self.complete) >= self.limit

    def _is_planned(self, request: int) -> bool:
        """Return whether a request was here when the next iteration was planned."""
        engine = self.setup.engine
        sees_all = not engine.plans_ahead and engine.poll_interval == 1
        sees_all = sees_all or self.clock is not None
        if sees_all or not (self.pool.prompts or self.decoding):
            self.planned_ps = self.now
        return self.work.offered_ps[request] <= self.planned_ps

    def _shared(self, request: int, length: int) -> tuple[list[Node], int]:
        """Return a prompt's kept segments and their tokens: never the whole prompt."""
        if self.pool.cache is None or self.work.chains is None:
            return [], 0
        nodes = self.pool.cache.match(self.work.chains[request], length - 1)
        return nodes, self.pool.cache.tokens_of(nodes)

    def _take(self, request: int, shared: list[Node], needed: int) -> None:
        """Give a request its blocks: those of kept segments, and new ones."""
        self.pool.free -= needed
        self.pool.blocks_of[request] = needed
        if self.pool.cache is not None:
            self.pool.free -= self.pool.cache.take(shared)
            self.pool.used[request] = shared
            self.pool.cache.shrink_to(self.pool.free)

    def cached_tokens(self, request: int) -> int:
        """Return how many tokens of a prompt are kept here."""
        return self._shared(request, self.work.prompts[request])[1]

    def _reserved(self, request: int) -> int:
        """Return the blocks that must be free when a request is admitted."""
        work = self.work
        if self.setup.only_prefills:
            return self.setup.blocks_of(work.prompts[request])
        is_computed = bool(work.transferred) and request in work.transferred
        tokens = work.generated[request] - is_computed if self.grows else work.outputs[request]
        return self.setup.blocks_of(work.prompts[request] + tokens)

    def _count(self, length: int, generation: int, change: int) -> None:
        growth = self.growths[self.setup.is_beyond(length)]
        if growth is None:
            return
        start = self.setup.times.window if growth is self.growths[1] else 0
        growth.count(length - start, generation, change)

    # -- iterations with prompts

    def _with_prompts(self, *, decodes: bool) -> None:
        """Run one iteration that computes prompts, beside decoding sequences or without."""
        engine, pool = self.setup.engine, self.pool
        decoding = self.decoding if decodes else 0
        room = self.budget - decoding
        tokens, chunks = 0, list[tuple[int, int]]()
        for prompt in pool.prompts:
            chunk = min(prompt.uncomputed, max(room - tokens, 0))
            if not engine.cuts_prompts:
                chunk = prompt.uncomputed if not tokens or chunk == prompt.uncomputed else 0
            if not chunk:
                break
            chunks.append((prompt.length - prompt.uncomputed, chunk))
            tokens += chunk
            prompt.uncomputed -= chunk
        host_ps = engine.host_ps(decoding + len(pool.prompts))
        if self.clock is None:
            elapsed = self._mixed_ps(self.setup.times, decoding, chunks) + host_ps
        else:
            times_ps = [self._mixed_ps(stage, decoding, chunks) for stage in self.setup.stages]
            elapsed = self.clock.through(self.now + host_ps, times_ps) - self.now
        self.planned_ps, self.unpolled = self.now, 0
        count = self._tokens_made() if decodes else 1
        self._pass(elapsed, count, decodes=decodes, prompt_tokens=tokens)
        self.complete = [prompt for prompt in pool.prompts if not prompt.uncomputed]
        pool.prompts = [prompt for prompt in pool.prompts if prompt.uncomputed]

    def _mixed_ps(self, times: StepTimes, decoding: int, chunks: Sequence[tuple[int, int]]) -> int:
        """Return what chunks of prompts take beside sequences that decode.

        A chunk is the tokens before it, and its own.
        """
        parts, tokens, pairs_ps = self.setup.parts, decoding, 0.0
        for before, chunk in chunks:
            pairs_ps += times.pairs_ps(before, chunk)
            tokens += chunk
        elapsed = times.of_tokens(-(-tokens // parts)) + round(pairs_ps / parts)
        if decoding:
            elapsed += times.attended_ps(decoding, self.context, parts)[0]
        return max(elapsed, times.of_exchange(-(-tokens // parts)))

    def _begin(self, prompt: Prompt) -> list[int]:
        """Let a request with a computed prompt decode; return it if done."""
        work, request = self.work, prompt.request
        work.first_ps[request] = min(work.first_ps[request], self.now)
        work.generated[request] += 1
        if self.pool.cache is not None and work.chains is not None:
            # Those that share the prompt find it, with its blocks.
            added = self.pool.cache.insert(self.pool.used[request], work.chains[request])
            self.pool.blocks_of[request] -= added
        if work.generated[request] == work.outputs[request] or self.setup.only_prefills:
            self._release(request)
            work.ended_ps[request] = self.now
            return [request]
        self._join(request, prompt.length)
        return []

    def _join(self, request: int, length: int) -> None:
        """Let a request decode whose keys and values have arrived."""
        self.decoding += 1
        self.context += length
        self.joined[request] = self.generation, length
        if self.grows:
            self._count(length, self.generation, 1)
        remaining = self.work.outputs[request] - self.work.generated[request]
        heappush(self.ends, (self.generation + remaining, request))

    # -- iterations that decode alone

    def _decode(self, horizon_ps: int) -> None:
        """Run iterations until a sequence, the blocks or the horizon end."""
        engine, pool = self.setup.engine, self.pool
        first, step, most = self._decoded_ps(self.setup.times)
        first += engine.host_ps(self.decoding)
        speculation = self.setup.speculation
        if speculation is not None:
            # An iteration makes several tokens: each takes its part of the time.
            drafted = 1 + speculation.tokens * speculation.draft_share
            first = round(first * drafted / speculation.made)
            step = round(step * drafted / speculation.made)
        self._drop_preempted()
        count = min(most, self.ends[0][0] - self.generation)
        if self.grows:
            count = min(count, self._free_tokens())
        if pool.waiting and not self._is_planned(pool.waiting[0]):
            count = min(count, engine.poll_interval - self.unpolled)
        until = horizon_ps - self.now
        if until < first * count + step * (count * (count - 1) // 2):
            count = min(count, _first_at(first, step, until))
        started_ps = self.now
        elapsed = first * count + step * (count * (count - 1) // 2)
        if self.clock is not None:
            elapsed = self._through(elapsed - first - step * (count - 1), count - 1)
        self._pass(elapsed, count, decodes=True)
        # The last iteration that looked for requests did so as it started.
        since, self.unpolled = divmod(self.unpolled + count, engine.poll_interval)
        if since:
            before = count - self.unpolled - 1
            self.planned_ps = started_ps + first * before + step * (before * (before - 1) // 2)

    def _decoded_ps(self, times: StepTimes, later: int = 0) -> tuple[int, int, int]:
        """Return an iteration's time and growth, and how many iterations they hold.

        ``later`` counts the iterations that run before it.
        """
        engine, parts, speculation = self.setup.engine, self.setup.parts, self.setup.speculation
        sequences = -(-self.decoding // parts)
        context = self.context + later * self.decoding
        attended, step, within = times.attended_ps(self.decoding, context, parts)
        checked = sequences if speculation is None else sequences * (speculation.tokens + 1)
        first = times.of_tokens(engine.padded(checked)) + attended
        first, step, most = _least(first, step, times.of_exchange(engine.padded(checked)))
        return first, step, min(most, within)

    def _through(self, before_ps: int, before: int) -> int:
        """Return the time of iterations through the stages.

        The ``before`` ones take ``before_ps``: no other batch is under way then.
        """
        assert self.clock is not None  # noqa: S101 - for the type checker: pipelines have it
        times_ps = [self._decoded_ps(stage, before)[0] for stage in self.setup.stages]
        ready_ps = self.now + before_ps + self.setup.engine.host_ps(self.decoding)
        return self.clock.through(ready_ps, times_ps) - self.now

    def _tokens_made(self) -> int:
        """Return how many tokens decoding sequences make in an iteration with prompts."""
        speculation = self.setup.speculation
        self._drop_preempted()
        if speculation is None or not self.ends:
            return 1
        self.credit += speculation.made
        most = self.ends[0][0] - self.generation
        if self.grows:
            most = min(most, self._free_tokens())
        count = max(1, min(int(self.credit), most))
        self.credit = max(0.0, self.credit - count)
        return count

    def _free_tokens(self) -> int:
        """Return the tokens per sequence that free blocks hold."""
        return max(1, self.pool.free // self.decoding * self.setup.engine.block_tokens)

    def _make_room(self) -> None:
        """Preempt the last requests until all others' next tokens have blocks."""
        if not self.grows:
            return
        while self.decoding and self._growing(1) > self.pool.free:
            if len(self.pool.blocks_of) == 1:
                raise ConfigError(
                    f"one request needs more than all {self.setup.blocks} blocks of a replica",
                    hint="give shorter requests, or more devices to a replica",
                )
            self._preempt()

    def _growing(self, tokens: int) -> int:
        within, beyond = self.growths
        blocks = within.blocks(self.generation, tokens)
        return blocks if beyond is None else blocks + beyond.blocks(self.generation, tokens)

    def _preempt(self) -> None:
        """Take the last request from the batch, to be computed again."""
        request, work = self._last(), self.work
        for prompt in self.pool.prompts:
            if prompt.request == request:
                self.pool.prompts.remove(prompt)
                break
        else:
            self._take_out(request)
        self._give_back(request)
        self.pool.waiting.appendleft(request)
        self.preemptions += 1
        work.preempted[request] = work.preempted.get(request, 0) + 1
        if work.preempted[request] > _MOST_PREEMPTIONS:
            raise ConfigError(
                f"requests are preempted again and again: a replica has {self.setup.blocks} blocks",
                hint="give fewer sequences at a time, shorter requests, or more devices",
            )

    def _last(self) -> int:
        """Take this batch's request that came last from the order."""
        pool, skipped = self.pool, list[int]()
        while True:
            request = pool.order.pop()
            if request not in pool.blocks_of:
                continue
            is_prompt = any(prompt.request == request for prompt in pool.prompts)
            if self.clock is None or request in self.joined or is_prompt:
                pool.order += reversed(skipped)
                return request
            skipped.append(request)

    def _drop_preempted(self) -> None:
        while self.ends and self._is_gone(self.ends[0]):
            heappop(self.ends)

    def _is_gone(self, end: tuple[int, int]) -> bool:
        """Return whether a request was preempted after it joined."""
        generation, request = end
        if request not in self.joined:
            return True
        work, (joined, _) = self.work, self.joined[request]
        return generation != joined + work.outputs[request] - work.generated[request]

    def _take_out(self, request: int) -> None:
        """Take a request with its tokens out of the batch."""
        joined, length = self.joined.pop(request)
        tokens = self.generation - joined
        self.decoding -= 1
        self.context -= length + tokens
        self.work.generated[request] += tokens
        if self.grows:
            self._count(length, joined, -1)
            blocks = self.setup.blocks_of(length + tokens, joined=length)
            if self.pool.cache is not None:
                blocks -= sum(node.blocks for node in self.pool.used[request])
            self.pool.blocks_of[request] = blocks

    # -- time

    def _pass(self, elapsed_ps: int, count: int, *, decodes: bool, prompt_tokens: int = 0) -> None:
        """Let iterations pass, each with a token for every decoding sequence."""
        pool, decoding = self.pool, self.decoding
        pool.activity.add(self.now, elapsed_ps, decoding=decoding, prompt_tokens=prompt_tokens)
        if pool.waiting:
            cause = self._cause()
            self.causes_ps[cause] = self.causes_ps.get(cause, 0) + elapsed_ps
        self.now += elapsed_ps
        self.iterations += count
        if not decodes:
            return
        if self.grows:
            pool.free -= self._growing(count)
            if pool.cache is not None:
                pool.cache.shrink_to(pool.free)
        self.generation += count
        self.context += count * self.decoding

    def _cause(self) -> str:
        if self._is_full():
            return "batch limit"
        lacks_blocks = self._reserved(self.pool.waiting[0]) > self.pool.free
        return "KV blocks" if lacks_blocks else "prompts before"

    def _ended(self) -> list[int]:
        """Release requests that made their last token, in their order."""
        ended: list[int] = []
        work = self.work
        while self.ends and self.ends[0][0] <= self.generation:
            end = heappop(self.ends)
            if self._is_gone(end):
                continue
            _, request = end
            self._take_out(request)
            self._keep_output(request)
            work.ended_ps[request] = self.now
            self._release(request)
            ended.append(request)
        return ended

    def _keep_output(self, request: int) -> None:
        """Keep a request's output, but for its last token."""
        work = self.work
        if self.pool.cache is None or work.chains is None or work.output_segments is None:
            return
        chain, used = work.chains[request], self.pool.used[request]
        if len(used) != len(chain) or not work.output_segments[request]:
            return
        end = work.prompts[request] + work.outputs[request]
        added = self.pool.cache.insert(used, (*chain, (work.output_segments[request], end)))
        self.pool.blocks_of[request] -= added

    def _give_back(self, request: int) -> None:
        self.pool.free += self.pool.blocks_of.pop(request)
        if self.pool.cache is not None:
            self.pool.free += self.pool.cache.leave(self.pool.used.pop(request))

    def _release(self, request: int) -> None:
        self._give_back(request)
        if len(self.pool.order) > 2 * len(self.pool.blocks_of) + 64:
            self.pool.order = [
                admitted for admitted in self.pool.order if admitted in self.pool.blocks_of
            ]


def _least(first: int, step: int, exchange: int) -> tuple[int, int, int]:
    """Return the first iteration's time, its growth, and where both hold.

    None takes less than ``exchange``.

    >>> _least(10, 2, 0) == (10, 2, NEVER), _least(10, 2, 15), _least(10, 0, 15) == (15, 0, NEVER)
    (True, (15, 0, 3), True)
    """
    if first >= exchange:
        return first, step, NEVER
    return exchange, 0, -((first - exchange) // step) if step else NEVER


def _first_at(first: int, step: int, until: int) -> int:
    """Return after how many iterations a time has passed: 1 or more.

    The smallest n with ``first n + step n (n - 1) / 2 >= until``.

    >>> _first_at(10, 0, 25), _first_at(10, 2, 36), _first_at(10, 2, 37)
    (3, 3, 4)
    """
    if until <= first:
        return 1
    if not step:
        return -(-until // first)
    linear = 2 * first - step
    count = (isqrt(linear * linear + 8 * step * until) - linear) // (2 * step)
    while first * count + step * (count * (count - 1) // 2) < until:
        count += 1
    return max(1, count)
