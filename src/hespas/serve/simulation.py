"""Replicas of an engine, iteration by iteration: what each request waits for and when it ends.

Times are integer picoseconds. Iterations in which the same sequences decode are computed at once:
their times are an arithmetic series, for attention is linear in the context. The same requests and
seed give the same times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from math import isqrt

from hespas.errors import ConfigError
from hespas.serve.engine import Engine, Reserve
from hespas.serve.load import PICOSECONDS, Requests
from hespas.serve.step_times import StepTimes

_NEVER = 1 << 62
_MOST_PREEMPTIONS = 1000
"""Of one request: a load that is preempted for ever is refused."""


class Router(Enum):
    """Which replica a request goes to."""

    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"
    """The one with the fewest requests, waiting or running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What one replica runs: an engine, its step times, and blocks for keys and values.

    The batch of a replica is divided over ``parts`` that hold its weights in common.
    """

    engine: Engine
    times: StepTimes
    blocks: int
    parts: int = 1


@dataclass(slots=True, kw_only=True)
class Served:
    """When each request started to be computed, made its first token and ended, in ps.

    ``replicas`` are where each ran. ``samples`` of a replica are its state at ends of iterations.
    """

    arrivals_ps: list[int]
    started_ps: list[int]
    first_ps: list[int]
    ended_ps: list[int]
    replicas: list[int]
    preemptions: int = 0
    iterations: int = 0
    samples: list[Sample] = field(default_factory=list["Sample"])
    causes_ps: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of a replica: decoding and waiting requests, and the blocks in use."""

    time_ps: int
    replica: int
    decoding: int
    waiting: int
    blocks: int


@dataclass(slots=True, kw_only=True)
class _Prompt:
    """A request whose prompt is computed: ``left`` of its ``length`` tokens are not yet."""

    request: int
    length: int
    left: int


class _Replica:
    """One engine: its queue, the sequences that decode, and the blocks that they hold."""

    __slots__ = (
        "blocks_of",
        "causes_ps",
        "context",
        "decoding",
        "ends",
        "free",
        "generation",
        "grows",
        "host_ps",
        "iterations",
        "joined",
        "now",
        "number",
        "order",
        "phases",
        "preemptions",
        "prompts",
        "setup",
        "waiting",
        "work",
    )

    def __init__(self, setup: Setup, work: _Work, number: int) -> None:
        self.setup, self.work, self.number = setup, work, number
        self.host_ps = round(setup.engine.host_s * PICOSECONDS)
        # Where blocks for the output are not reserved, a sequence takes them as it grows.
        self.grows = setup.engine.reserve is Reserve.PROMPT
        self.now = 0
        self.waiting: deque[int] = deque()
        self.prompts: list[_Prompt] = []
        self.decoding = 0
        self.context = 0
        self.generation = 0
        self.free = setup.blocks
        self.phases = [0] * setup.engine.block_tokens
        self.ends: list[tuple[int, int]] = []
        self.joined: dict[int, tuple[int, int]] = {}
        self.order: list[int] = []
        self.blocks_of: dict[int, int] = {}
        self.iterations = self.preemptions = 0
        self.causes_ps: dict[str, int] = {}

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.prompts) + self.decoding

    @property
    def is_idle(self) -> bool:
        return not self.load

    def offer(self, request: int) -> None:
        """Put a request at the end of the queue."""
        if self.is_idle:
            self.now = max(self.now, self.work.arrivals_ps[request])
        self.waiting.append(request)

    def run(self, horizon_ps: int) -> list[int]:
        """Run iterations of one kind, the last of which starts before a time; return what ended.

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
        room = engine.token_budget - (self.decoding if engine.mixes else 0)
        room -= sum(prompt.left for prompt in self.prompts)
        while self.waiting and room > 0:
            if self.decoding + len(self.prompts) >= engine.most_sequences * self.setup.parts:
                return
            request = self.waiting[0]
            length = work.prompts[request] + work.made[request]
            if not engine.cuts_prompts and length > room and self.prompts:
                return
            needed = self._reserved(request)
            if needed > self.free:
                return
            self.waiting.popleft()
            self.free -= needed
            self.blocks_of[request] = needed
            self.prompts.append(_Prompt(request=request, length=length, left=length))
            self.order.append(request)
            work.started_ps[request] = min(work.started_ps[request], self.now)
            room -= length

    def _reserved(self, request: int) -> int:
        """Return the blocks that must be free when a request is admitted."""
        work = self.work
        tokens = work.made[request] if self.grows else work.outputs[request]
        return self._blocks(work.prompts[request] + tokens)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.setup.engine.block_tokens)

    # -- iterations with prompts

    def _with_prompts(self, *, decodes: bool) -> list[int]:
        """Run one iteration that computes prompts, beside decoding sequences or without."""
        engine, times = self.setup.engine, self.setup.times
        decoding = self.decoding if decodes else 0
        room = engine.token_budget - decoding
        tokens, pairs = 0, 0
        for prompt in self.prompts:
            chunk = min(prompt.left, max(room - tokens, 0))
            if not engine.cuts_prompts:
                chunk = prompt.left if not tokens or chunk == prompt.left else 0
            if not chunk:
                break
            before = prompt.length - prompt.left
            pairs += chunk * before + chunk * (chunk + 1) // 2
            tokens += chunk
            prompt.left -= chunk
        parts = self.setup.parts
        elapsed = times.of_tokens(-(-(decoding + tokens) // parts))
        elapsed += round(times.of_pair * pairs / parts)
        if decoding:
            elapsed += times.of_context(-(-decoding // parts)) * self.context // parts
        self._pass(elapsed + self.host_ps, 1, decodes=decodes)
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
        left = work.outputs[request] - work.made[request]
        if not left:
            self._release(request)
            work.ended_ps[request] = self.now
            return [request]
        self.decoding += 1
        self.context += prompt.length
        self.joined[request] = self.generation, prompt.length
        if self.grows:
            self.phases[(prompt.length - self.generation) % len(self.phases)] += 1
        heappush(self.ends, (self.generation + left, request))
        return []

    # -- iterations that decode alone

    def _decode(self, horizon_ps: int) -> list[int]:
        """Run iterations until a sequence ends, blocks run out or the horizon is reached."""
        engine, times, parts = self.setup.engine, self.setup.times, self.setup.parts
        sequences = -(-self.decoding // parts)
        attended = times.of_context(sequences)
        first = times.of_tokens(engine.padded(sequences)) + attended * self.context // parts
        first += self.host_ps
        step = attended * self.decoding // parts
        self._drop_preempted()
        count = self.ends[0][0] - self.generation
        if self.grows:
            block = engine.block_tokens
            count = min(count, max(1, self.free // self.decoding * block))
        until = horizon_ps - self.now
        if until < first * count + step * (count * (count - 1) // 2):
            count = min(count, _first_at(first, step, until))
        self._pass(first * count + step * (count * (count - 1) // 2), count, decodes=True)
        return self._ended()

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
        return self.phases[-self.generation % len(self.phases)]

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
        self.free += self.blocks_of.pop(request)
        self.waiting.appendleft(request)
        self.preemptions += 1
        work.preempted[request] = work.preempted.get(request, 0) + 1
        if work.preempted[request] > _MOST_PREEMPTIONS:
            raise ConfigError(
                f"requests are preempted again and again: a replica has {self.setup.blocks} blocks",
                hint="give fewer sequences at a time, shorter requests, or more devices",
            )

    def _drop_preempted(self) -> None:
        while self._is_gone(self.ends[0]):
            heappop(self.ends)

    def _is_gone(self, end: tuple[int, int]) -> bool:
        """Return whether a request does not end there: it was preempted after it joined."""
        generation, request = end
        if request not in self.joined:
            return True
        work, (joined, _) = self.work, self.joined[request]
        return generation != joined + work.outputs[request] - work.made[request]

    def _leave(self, request: int) -> None:
        """Take a request out of the batch, with the tokens that it has made since it joined."""
        joined, length = self.joined.pop(request)
        made = self.generation - joined
        self.decoding -= 1
        self.context -= length + made
        self.work.made[request] += made
        if self.grows:
            self.phases[(length - joined) % len(self.phases)] -= 1
            self.blocks_of[request] = self._blocks(length + made)

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
            whole, rest = divmod(count, len(self.phases))
            added = whole * self.decoding + sum(
                self.phases[-(self.generation + offset) % len(self.phases)]
                for offset in range(rest)
            )
            self.free -= added
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
            work.ended_ps[request] = self.now
            self._release(request)
            ended.append(request)
        return ended

    def _release(self, request: int) -> None:
        self.free += self.blocks_of.pop(request)
        if len(self.order) > 2 * (self.decoding + len(self.prompts)) + 64:
            self.order = [each for each in self.order if each in self.blocks_of]


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


@dataclass(slots=True, kw_only=True)
class _Work:
    """All requests, and what is known of each so far: ``made`` counts its tokens."""

    arrivals_ps: list[int]
    prompts: Sequence[int]
    outputs: Sequence[int]
    made: list[int]
    started_ps: list[int]
    first_ps: list[int]
    ended_ps: list[int]
    preempted: dict[int, int] = field(default_factory=dict[int, int])


def serve(
    requests: Requests,
    setup: Setup,
    *,
    replicas: int = 1,
    router: Router = Router.ROUND_ROBIN,
    most_samples: int = 1000,
) -> Served:
    """Run requests on replicas until the last one ends.

    Raises `ConfigError` for a request that fits no replica.
    """
    _check(requests, setup)
    count = len(requests)
    work = _Work(
        arrivals_ps=list(requests.arrivals_ps),
        prompts=requests.prompts,
        outputs=requests.outputs,
        made=[0] * count,
        started_ps=[_NEVER] * count,
        first_ps=[_NEVER] * count,
        ended_ps=[_NEVER] * count,
    )
    engines = [_Replica(setup, work, number) for number in range(replicas)]
    placed = [0] * count
    samples: list[Sample] = []
    choose = _router(router, engines)

    def place(request: int) -> None:
        replica = choose(request)
        placed[request] = replica.number
        replica.offer(request)

    _run(requests, work, engines, place, _sampler(samples, most_samples))
    causes: dict[str, int] = {}
    for replica in engines:
        for cause, waited in replica.causes_ps.items():
            causes[cause] = causes.get(cause, 0) + waited
    return Served(
        arrivals_ps=work.arrivals_ps,
        started_ps=work.started_ps,
        first_ps=work.first_ps,
        ended_ps=work.ended_ps,
        replicas=placed,
        preemptions=sum(replica.preemptions for replica in engines),
        iterations=sum(replica.iterations for replica in engines),
        samples=samples,
        causes_ps=causes,
    )


def _check(requests: Requests, setup: Setup) -> None:
    engine = setup.engine
    longest = max(map(sum, zip(requests.prompts, requests.outputs, strict=True)))
    if -(-longest // engine.block_tokens) > setup.blocks:
        raise ConfigError(
            f"a request of {longest} tokens needs more than the {setup.blocks} blocks of "
            f"{engine.block_tokens} tokens that a replica has",
            hint="give shorter requests, or more devices to a replica",
        )


def _router(router: Router, engines: Sequence[_Replica]) -> Callable[[int], _Replica]:
    match router:
        case Router.ROUND_ROBIN:
            return lambda request: engines[request % len(engines)]
        case Router.LEAST_LOADED:
            return lambda _: min(engines, key=lambda replica: (replica.load, replica.number))


def _sampler(samples: list[Sample], most: int) -> Callable[[_Replica], None]:
    """Return what keeps the state of a replica: fewer and fewer as they become many."""
    every, seen = 1, 0

    def sample(replica: _Replica) -> None:
        nonlocal every, seen
        seen += 1
        if seen % every:
            return
        samples.append(
            Sample(
                time_ps=replica.now,
                replica=replica.number,
                decoding=replica.decoding,
                waiting=len(replica.waiting),
                blocks=replica.setup.blocks - replica.free,
            )
        )
        if len(samples) >= 2 * most:
            del samples[::2]
            every *= 2

    return sample


def _run(
    requests: Requests,
    work: _Work,
    engines: Sequence[_Replica],
    place: Callable[[int], None],
    sample: Callable[[_Replica], None],
) -> None:
    """Run all replicas, the one that is furthest behind first.

    An iteration that starts before a request arrives is not changed by it. Of a closed load one
    follows each that ends.
    """
    count, arrivals = len(requests), work.arrivals_ps
    at_first = count if requests.concurrency is None else min(requests.concurrency, count)
    arriving = [(arrivals[request], request) for request in range(at_first)]
    heapify(arriving)
    following = at_first
    while True:
        busy = [replica for replica in engines if not replica.is_idle]
        next_ps = arriving[0][0] if arriving else _NEVER
        behind = min(busy, key=lambda replica: (replica.now, replica.number), default=None)
        if behind is None or behind.now >= next_ps:
            if next_ps == _NEVER:
                return
            place(heappop(arriving)[1])
            continue
        horizon = next_ps
        if following < count:
            others = (replica.now for replica in busy if replica is not behind)
            horizon = min(next_ps, min(others, default=_NEVER))
        ended = behind.run(max(horizon, behind.now + 1))
        sample(behind)
        for _ in ended[: count - following]:
            arrivals[following] += behind.now
            heappush(arriving, (arrivals[following], following))
            following += 1
