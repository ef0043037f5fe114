"""One replica of an engine, by iteration: queue, batch and blocks.

Times are integer picoseconds. Iterations in which the same sequences decode are computed at once:
their times are an arithmetic series, for attention is linear in the context.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import isqrt

from hespas.base.frozen import frozen
from hespas.errors import ConfigError
from hespas.serve.engine import Engine, Reserve
from hespas.serve.prefixes import Chain, Node, PrefixCache
from hespas.serve.step_times import NEVER, StepTimes

_MOST_PREEMPTIONS = 1000
"""Of one request: a load that is preempted for ever is refused."""


@frozen
class Setup:
    """What a replica runs: an engine, step times, and cache blocks.

    The batch of a replica is divided over ``parts`` that hold its weights in common. One that
    ``only_prefills`` makes the first token of each request. Beyond the ``window`` of step times a
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

    def is_beyond(self, tokens: int) -> bool:
        """Return whether a sequence with ``tokens`` has grown beyond the window."""
        return self.tokens_beyond is not None and tokens > self.times.window

    def blocks_of(self, tokens: int, *, joined: int | None = None) -> int:
        """Return the blocks of a sequence that joined with as many tokens, or has them all."""
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


@dataclass(slots=True, kw_only=True)
class Work:
    """All requests, and what is known of each so far: ``made`` counts its tokens.

    A request comes at ``arrivals_ps``, and is at an engine at ``offered_ps``. ``chains`` are the
    segments of prompts, ``output_segments`` those that outputs add to them. Of ``transferred``
    requests another replica computed the prompt.
    """

    arrivals_ps: list[int]
    prompts: Sequence[int]
    outputs: Sequence[int]
    made: list[int]
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
class _Prompt:
    """A request whose prompt is computed: ``left`` of its ``length`` tokens are not yet."""

    request: int
    length: int
    left: int


class _Growth:
    """Sequences that take a block each ``period`` tokens, by where they are in theirs."""

    __slots__ = ("_phases", "_sequences", "period")

    def __init__(self, period: int) -> None:
        self.period, self._sequences, self._phases = period, 0, [0] * period

    def count(self, length: int, generation: int, change: int) -> None:
        """Add or remove a sequence that has, or had, ``length`` tokens at a generation."""
        self._phases[(length - generation) % self.period] += change
        self._sequences += change

    def blocks(self, generation: int, tokens: int) -> int:
        """Return the blocks that all sequences take for their next ``tokens``."""
        period, phases = self.period, self._phases
        if tokens == 1 < period:
            return phases[-generation % period]
        whole, rest = divmod(tokens, period)
        places = [phases[-(generation + offset) % period] for offset in range(rest)]
        return whole * self._sequences + sum(places)


class Replica:
    """One engine: its queue, the sequences that decode, and the blocks that they hold."""

    __slots__ = (
        "blocks_of",
        "budget",
        "cache",
        "causes_ps",
        "context",
        "credit",
        "decoding",
        "ends",
        "free",
        "generation",
        "grows",
        "growths",
        "iterations",
        "joined",
        "now",
        "number",
        "order",
        "planned_ps",
        "preemptions",
        "prompts",
        "setup",
        "unpolled",
        "used",
        "waiting",
        "work",
    )

    def __init__(self, setup: Setup, work: Work, number: int) -> None:
        self.setup, self.work, self.number = setup, work, number
        self.budget = setup.engine.token_budget * (
            1 if setup.engine.divides_budget else setup.parts
        )
        # Where blocks for the output are not reserved, a sequence takes them as it grows.
        self.grows = setup.engine.reserve is Reserve.PROMPT
        self.now = 0
        # The batch of an iteration has what was here when it was planned.
        self.planned_ps = 0
        self.unpolled = 0
        self.waiting: deque[int] = deque()
        self.prompts: list[_Prompt] = []
        self.decoding = 0
        self.context = 0
        self.generation = 0
        self.free = setup.blocks
        # Sequences within the window, and those beyond it.
        self.growths = (
            _Growth(setup.engine.block_tokens),
            _Growth(setup.tokens_beyond) if setup.tokens_beyond else None,
        )
        self.ends: list[tuple[int, int]] = []
        self.joined: dict[int, tuple[int, int]] = {}
        self.order: list[int] = []
        self.blocks_of: dict[int, int] = {}
        self.iterations = self.preemptions = 0
        caches = work.chains is not None and setup.engine.caches_prefixes
        self.cache = PrefixCache(setup.engine.block_tokens) if caches else None
        self.used: dict[int, list[Node]] = {}
        self.credit = 0.0
        self.causes_ps: dict[str, int] = {}

    @property
    def load(self) -> int:
        """The requests that are here, waiting or running."""
        return len(self.waiting) + len(self.prompts) + self.decoding

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.decoding or self.waiting or self.prompts)

    def offer(self, request: int, arrived_ps: int) -> None:
        """Put a request at the end of the queue; one without work waits for it."""
        if self.is_idle:
            self.now = max(self.now, arrived_ps)
        self.work.offered_ps[request] = arrived_ps
        self.waiting.append(request)

    def run(self, horizon_ps: int) -> list[int]:
        """Run iterations of one kind that start before ``horizon_ps``; return what ended.

        At least one runs, which may preempt.
        """
        engine = self.setup.engine
        self._admit()
        if engine.mixes or not self.prompts:
            self._make_room()
        if self.prompts:
            return self._with_prompts(decodes=engine.mixes and self.decoding > 0)
        return self._decode(horizon_ps) if self.decoding else []

    # -- admission

    def _admit(self) -> None:
        """Take requests from the queue while the engine has room for them."""
        engine, work = self.setup.engine, self.work
        room = self.budget - (self.decoding if engine.mixes else 0)
        room -= sum(prompt.left for prompt in self.prompts)
        while self.waiting and room > 0 and self._is_planned(self.waiting[0]):
            if self.decoding + len(self.prompts) >= engine.most_sequences * self.setup.parts:
                return
            request = self.waiting[0]
            is_computed = bool(work.transferred) and request in work.transferred
            length = work.prompts[request] + work.made[request] - is_computed
            shared, cached = ([], 0) if self.cache is None else self._shared(request, length)
            left = 0 if is_computed else length - cached
            if not engine.cuts_prompts and left > room and self.prompts:
                return
            needed = self._reserved(request)
            if shared:
                needed -= -(-cached // engine.block_tokens)
                unused = sum(node.blocks for node in shared if not node.users)
                if needed + unused > self.free:
                    return
            elif needed > self.free:
                return
            self.waiting.popleft()
            self.order.append(request)
            self._take(request, shared, needed)
            work.started_ps[request] = min(work.started_ps[request], self.now)
            if is_computed:
                work.transferred.remove(request)
                self._join(request, length)
                continue
            if cached:
                work.cached.setdefault(request, cached)
            self.prompts.append(_Prompt(request=request, length=length, left=left))
            room -= left

    def _is_planned(self, request: int) -> bool:
        """Return whether a request was here when the next iteration was planned."""
        engine = self.setup.engine
        sees_all = not engine.plans_ahead and engine.poll_interval == 1
        if sees_all or not (self.prompts or self.decoding):
            self.planned_ps = self.now
        return self.work.offered_ps[request] <= self.planned_ps

    def _shared(self, request: int, length: int) -> tuple[list[Node], int]:
        """Return a prompt's kept segments and their tokens: never the whole prompt."""
        if self.cache is None or self.work.chains is None:
            return [], 0
        nodes = self.cache.match(self.work.chains[request], length - 1)
        return nodes, self.cache.tokens_of(nodes)

    def _take(self, request: int, shared: list[Node], needed: int) -> None:
        """Give a request its blocks: those of kept segments, and others of its own."""
        self.free -= needed
        self.blocks_of[request] = needed
        if self.cache is not None:
            self.free -= self.cache.take(shared)
            self.used[request] = shared
            self.cache.shrink_to(self.free)

    def cached_tokens(self, request: int) -> int:
        """Return how many tokens of a prompt are kept here."""
        return self._shared(request, self.work.prompts[request])[1]

    def _reserved(self, request: int) -> int:
        """Return the blocks that must be free when a request is admitted."""
        work = self.work
        if self.setup.only_prefills:
            return self.setup.blocks_of(work.prompts[request])
        is_computed = bool(work.transferred) and request in work.transferred
        tokens = work.made[request] - is_computed if self.grows else work.outputs[request]
        return self.setup.blocks_of(work.prompts[request] + tokens)

    def _count(self, length: int, generation: int, change: int) -> None:
        """Add a sequence to those that grow, or remove it."""
        growth = self.growths[self.setup.is_beyond(length)]
        if growth is None:
            return
        start = self.setup.times.window if growth is self.growths[1] else 0
        growth.count(length - start, generation, change)

    # -- iterations with prompts

    def _with_prompts(self, *, decodes: bool) -> list[int]:
        """Run one iteration that computes prompts, beside decoding sequences or without."""
        engine, times = self.setup.engine, self.setup.times
        decoding = self.decoding if decodes else 0
        room = self.budget - decoding
        tokens, pairs_ps = 0, 0.0
        for prompt in self.prompts:
            chunk = min(prompt.left, max(room - tokens, 0))
            if not engine.cuts_prompts:
                chunk = prompt.left if not tokens or chunk == prompt.left else 0
            if not chunk:
                break
            pairs_ps += times.pairs_ps(prompt.length - prompt.left, chunk)
            tokens += chunk
            prompt.left -= chunk
        parts = self.setup.parts
        host_ps = engine.host_ps(decoding + len(self.prompts))
        elapsed = times.of_tokens(-(-(decoding + tokens) // parts))
        elapsed += round(pairs_ps / parts)
        if decoding:
            elapsed += times.attended_ps(decoding, self.context, parts)[0]
        elapsed = max(elapsed, times.of_exchange(-(-(decoding + tokens) // parts)))
        self.planned_ps, self.unpolled = self.now, 0
        self._pass(elapsed + host_ps, self._made() if decodes else 1, decodes=decodes)
        ended = self._ended() if decodes else []
        complete = [prompt for prompt in self.prompts if not prompt.left]
        self.prompts = [prompt for prompt in self.prompts if prompt.left]
        for prompt in complete:
            ended += self._begin(prompt)
        return ended

    def _begin(self, prompt: _Prompt) -> list[int]:
        """Let a request decode whose prompt is computed; return it where that was all."""
        work, request = self.work, prompt.request
        work.first_ps[request] = min(work.first_ps[request], self.now)
        work.made[request] += 1
        if self.cache is not None:
            self._keep_prompt(request)
        if work.made[request] == work.outputs[request] or self.setup.only_prefills:
            self._release(request)
            work.ended_ps[request] = self.now
            return [request]
        self._join(request, prompt.length)
        return []

    def _keep_prompt(self, request: int) -> None:
        """Keep a computed prompt for those that share it, with its blocks."""
        if self.cache is not None and self.work.chains is not None:
            added = self.cache.insert(self.used[request], self.work.chains[request])
            self.blocks_of[request] -= added

    def _join(self, request: int, length: int) -> None:
        """Let a request decode whose keys and values have arrived."""
        self.decoding += 1
        self.context += length
        self.joined[request] = self.generation, length
        if self.grows:
            self._count(length, self.generation, 1)
        left = self.work.outputs[request] - self.work.made[request]
        heappush(self.ends, (self.generation + left, request))

    # -- iterations that decode alone

    def _decode(self, horizon_ps: int) -> list[int]:
        """Run iterations until a sequence ends, blocks run out or the horizon is reached."""
        engine, times, parts = self.setup.engine, self.setup.times, self.setup.parts
        sequences = -(-self.decoding // parts)
        attended, step, within = times.attended_ps(self.decoding, self.context, parts)
        speculation = self.setup.speculation
        checked = sequences if speculation is None else sequences * (speculation.tokens + 1)
        first = times.of_tokens(engine.padded(checked)) + attended
        exchange = times.of_exchange(engine.padded(checked))
        first, step, most = _least(first, step, exchange)
        first += engine.host_ps(self.decoding)
        if speculation is not None:
            # An iteration makes several tokens: each takes its part of the time.
            drafted = 1 + speculation.tokens * speculation.draft_share
            first = round(first * drafted / speculation.made)
            step = round(step * drafted / speculation.made)
        self._drop_preempted()
        count = min(most, within, self.ends[0][0] - self.generation)
        if self.grows:
            block = engine.block_tokens
            count = min(count, max(1, self.free // self.decoding * block))
        if self.waiting and not self._is_planned(self.waiting[0]):
            count = min(count, engine.poll_interval - self.unpolled)
        until = horizon_ps - self.now
        if until < first * count + step * (count * (count - 1) // 2):
            count = min(count, _first_at(first, step, until))
        started_ps = self.now
        self._pass(first * count + step * (count * (count - 1) // 2), count, decodes=True)
        # The last iteration that looked for requests did so as it started.
        since, self.unpolled = divmod(self.unpolled + count, engine.poll_interval)
        if since:
            before = count - self.unpolled - 1
            self.planned_ps = started_ps + first * before + step * (before * (before - 1) // 2)
        return self._ended()

    def _made(self) -> int:
        """Return how many tokens decoding sequences make in an iteration with prompts."""
        speculation = self.setup.speculation
        self._drop_preempted()
        if speculation is None or not self.ends:
            return 1
        self.credit += speculation.made
        most = self.ends[0][0] - self.generation
        if self.grows:
            most = min(most, max(1, self.free // self.decoding * self.setup.engine.block_tokens))
        count = max(1, min(int(self.credit), most))
        self.credit = max(0.0, self.credit - count)
        return count

    def _make_room(self) -> None:
        """Preempt the last requests until the next token of all others has a block."""
        if not self.grows:
            return
        while self.decoding and self._next_blocks() > self.free:
            if len(self.order) == 1:
                raise ConfigError(
                    f"one request needs more than all {self.setup.blocks} blocks of a replica",
                    hint="give shorter requests, or more devices to a replica",
                )
            self._preempt()

    def _next_blocks(self) -> int:
        """Return how many sequences start a block with their next token."""
        return self._growing(1)

    def _growing(self, tokens: int) -> int:
        """Return the blocks that sequences within and beyond take for their next ``tokens``."""
        within, beyond = self.growths
        blocks = within.blocks(self.generation, tokens)
        return blocks if beyond is None else blocks + beyond.blocks(self.generation, tokens)

    def _preempt(self) -> None:
        """Take the last request from the batch: it is computed again from its start."""
        while True:
            request = self.order.pop()
            if request in self.blocks_of:
                break
        work = self.work
        for prompt in self.prompts:
            if prompt.request == request:
                self.prompts.remove(prompt)
                break
        else:
            self._leave(request)
        self._give_back(request)
        self.waiting.appendleft(request)
        self.preemptions += 1
        work.preempted[request] = work.preempted.get(request, 0) + 1
        if work.preempted[request] > _MOST_PREEMPTIONS:
            raise ConfigError(
                f"requests are preempted again and again: a replica has {self.setup.blocks} blocks",
                hint="give fewer sequences at a time, shorter requests, or more devices",
            )

    def _drop_preempted(self) -> None:
        while self.ends and self._is_gone(self.ends[0]):
            heappop(self.ends)

    def _is_gone(self, end: tuple[int, int]) -> bool:
        """Return whether a request does not end there: it was preempted after it joined."""
        generation, request = end
        if request not in self.joined:
            return True
        work, (joined, _) = self.work, self.joined[request]
        return generation != joined + work.outputs[request] - work.made[request]

    def _leave(self, request: int) -> None:
        """Take a request out of the batch, with the tokens it has made."""
        joined, length = self.joined.pop(request)
        made = self.generation - joined
        self.decoding -= 1
        self.context -= length + made
        self.work.made[request] += made
        if self.grows:
            self._count(length, joined, -1)
            blocks = self.setup.blocks_of(length + made, joined=length)
            if self.cache is not None:
                blocks -= sum(node.blocks for node in self.used[request])
            self.blocks_of[request] = blocks

    # -- time

    def _pass(self, elapsed_ps: int, count: int, *, decodes: bool) -> None:
        """Let iterations pass; a token is added to every decoding sequence in each."""
        if self.waiting:
            cause = self._cause()
            self.causes_ps[cause] = self.causes_ps.get(cause, 0) + elapsed_ps
        self.now += elapsed_ps
        self.iterations += count
        if not decodes:
            return
        if self.grows:
            self.free -= self._growing(count)
            if self.cache is not None:
                self.cache.shrink_to(self.free)
        self.generation += count
        self.context += count * self.decoding

    def _cause(self) -> str:
        engine = self.setup.engine
        if self.decoding + len(self.prompts) >= engine.most_sequences * self.setup.parts:
            return "batch limit"
        return "KV blocks" if self._reserved(self.waiting[0]) > self.free else "prompts before"

    def _ended(self) -> list[int]:
        """Release what has made its last token, in the order of the requests."""
        ended: list[int] = []
        work = self.work
        while self.ends and self.ends[0][0] <= self.generation:
            end = heappop(self.ends)
            if self._is_gone(end):
                continue
            _, request = end
            self._leave(request)
            if self.cache is not None:
                self._keep_output(request)
            work.ended_ps[request] = self.now
            self._release(request)
            ended.append(request)
        return ended

    def _keep_output(self, request: int) -> None:
        """Keep what a request made behind its prompt, but for its last token."""
        work = self.work
        if self.cache is None or work.chains is None or work.output_segments is None:
            return
        chain, used = work.chains[request], self.used[request]
        if len(used) != len(chain) or not work.output_segments[request]:
            return
        end = work.prompts[request] + work.outputs[request]
        added = self.cache.insert(used, (*chain, (work.output_segments[request], end)))
        self.blocks_of[request] -= added

    def _give_back(self, request: int) -> None:
        self.free += self.blocks_of.pop(request)
        if self.cache is not None:
            self.free += self.cache.leave(self.used.pop(request))

    def _release(self, request: int) -> None:
        self._give_back(request)
        if len(self.order) > 2 * (self.decoding + len(self.prompts)) + 64:
            self.order = [each for each in self.order if each in self.blocks_of]


def _least(first: int, step: int, exchange: int) -> tuple[int, int, int]:
    """Return the first iteration's time, its growth, and the iterations for which both hold.

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
