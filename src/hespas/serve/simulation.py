"""Replicas under a load: each request's waiting and end.

Times are integer picoseconds. The same requests and seed give the same times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import heapify, heappop, heappush

import msgspec

from hespas.base.frozen import frozen
from hespas.errors import ConfigError
from hespas.serve.activity import Activity
from hespas.serve.engine import Setup
from hespas.serve.load import PICOSECONDS, Requests
from hespas.serve.pipeline import Pipeline
from hespas.serve.pool import Work, summed
from hespas.serve.replica import Replica
from hespas.serve.step_times import NEVER

_MOST_AHEAD = 32
"""Requests that a replica may have more than the least loaded and still get those whose prefix it
keeps. Source: SGLang's router (sgl-router, cache_aware: balance_abs_threshold)."""


Server = Replica | Pipeline
"""What a request goes to."""


def _server(setup: Setup, work: Work, number: int) -> Server:
    return (Pipeline if setup.stages else Replica)(setup, work, number)


class Router(Enum):
    """Which replica a request goes to."""

    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"
    """The one with the fewest requests, waiting or running."""
    PREFIX = "prefix"
    """The one that keeps most of the prompt, unless it has many more requests than another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Replicas that compute prompts for those that decode.

    A replica sends them one request after another, at ``bytes_per_s``, ``latency_s`` later.
    """

    setup: Setup
    replicas: int
    bytes_per_token: float
    bytes_per_s: float
    latency_s: float = 0.0

    def transfer_ps(self, tokens: int) -> int:
        """Return how long keys and values of so many tokens take."""
        return round(tokens * self.bytes_per_token / self.bytes_per_s * PICOSECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A server's work on a request before its engine, serially.

    It takes ``request_s`` for each, and ``token_s`` for each token of a prompt.
    """

    request_s: float = 0.0
    token_s: float = 0.0

    def time_ps(self, tokens: int) -> int:
        """Return the server's time for a prompt of ``tokens``."""
        return round((self.request_s + self.token_s * tokens) * PICOSECONDS)


NO_ENTRY = Entry()


@frozen
class ServingPlan:
    """Replicas of one setup, their router, and replicas that compute prompts."""

    setup: Setup
    replicas: int = 1
    router: Router = Router.ROUND_ROBIN
    prefill: Prefill | None = None
    entry: Entry = NO_ENTRY

    def serve(self, requests: Requests, *, most_samples: int = 1000) -> Served:
        """Run requests on replicas until the last one ends.

        Raises `ConfigError` for a request that fits no replica.
        """
        for setup in (self.setup,) if self.prefill is None else (self.setup, self.prefill.setup):
            _check(requests, setup)
        count = len(requests)
        work = Work(
            arrivals_ps=list(requests.arrivals_ps),
            prompts=requests.prompts,
            outputs=requests.outputs,
            generated=[0] * count,
            started_ps=[NEVER] * count,
            first_ps=[NEVER] * count,
            ended_ps=[NEVER] * count,
            offered_ps=[0] * count,
            chains=requests.chains,
            output_segments=requests.output_segments,
        )
        samples: list[StateRow] = []
        decoders = [_server(self.setup, work, number) for number in range(self.replicas)]
        sample = _sampler(samples, most_samples)
        fleet = _Fleet(requests=requests, work=work, decoders=decoders, plan=self, sample=sample)
        fleet.run()
        return Served(
            arrivals_ps=work.arrivals_ps,
            started_ps=work.started_ps,
            first_ps=work.first_ps,
            ended_ps=work.ended_ps,
            replicas=fleet.placed,
            preemptions=sum(replica.preemptions for replica in fleet.engines),
            iterations=sum(replica.iterations for replica in fleet.engines),
            cached_tokens=sum(work.cached.values()),
            samples=samples,
            causes_ps=summed(replica.causes_ps for replica in fleet.engines),
            activities=[replica.pool.activity for replica in fleet.engines],
        )


@dataclass(slots=True, kw_only=True)
class Served:
    """When each request started, made its first token and ended, in ps.

    ``replicas`` are where each ran. ``samples`` of a replica are its state at ends of iterations.
    ``cached_tokens`` are those of prompts that were not computed, as a replica kept them.
    ``activities`` are of replicas, those behind the others that compute prompts alone.
    """

    arrivals_ps: list[int]
    started_ps: list[int]
    first_ps: list[int]
    ended_ps: list[int]
    replicas: list[int]
    preemptions: int = 0
    iterations: int = 0
    cached_tokens: int = 0
    samples: list[StateRow] = field(default_factory=list["StateRow"])
    causes_ps: dict[str, int] = field(default_factory=dict[str, int])
    activities: list[Activity] = field(default_factory=list[Activity])


class StateRow(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a replica at a time."""

    time_s: float
    replica: int
    decoding: int
    waiting: int
    kv_blocks: int


def _check(requests: Requests, setup: Setup) -> None:
    engine = setup.engine
    longest = max(map(sum, zip(requests.prompts, requests.outputs, strict=True)))
    if setup.blocks_of(longest) > setup.blocks:
        raise ConfigError(
            f"a request of {longest} tokens needs more than the {setup.blocks} blocks of "
            f"{engine.block_tokens} tokens that a replica has",
            hint="give shorter requests, or more devices to a replica",
        )


def _router(router: Router, engines: Sequence[Server]) -> _Chooser:
    match router:
        case Router.ROUND_ROBIN:
            return lambda request: engines[request % len(engines)]
        case Router.LEAST_LOADED:
            return lambda _: min(engines, key=lambda replica: (replica.load, replica.number))
        case Router.PREFIX:
            return lambda request: _nearest(request, engines)


def _nearest(request: int, engines: Sequence[Server]) -> Server:
    """Return the replica with most of a prompt, unless it's far behind."""
    most = min(replica.load for replica in engines) + _MOST_AHEAD
    near = [replica for replica in engines if replica.load <= most]
    return min(
        near, key=lambda replica: (-replica.cached_tokens(request), replica.load, replica.number)
    )


def _sampler(samples: list[StateRow], most: int) -> Callable[[Server], None]:
    """Return a sampler that thins out as samples grow."""
    every, seen = 1, 0

    def sample(replica: Server) -> None:
        nonlocal every, seen
        seen += 1
        if seen % every:
            return
        samples.append(
            StateRow(
                time_s=replica.now / PICOSECONDS,
                replica=replica.number,
                decoding=replica.decoding,
                waiting=len(replica.pool.waiting),
                kv_blocks=replica.setup.blocks - replica.pool.free,
            )
        )
        if len(samples) >= 2 * most:
            del samples[::2]
            every *= 2

    return sample


_Chooser = Callable[[int], Server]


def _first(times: Sequence[tuple[int, int]]) -> int:
    return times[0][0] if times else NEVER


@dataclass(slots=True, kw_only=True)
class _Fleet:
    """All replicas, and the requests that come to them.

    ``arriving`` are times and requests, ascending, of those that are not yet at a replica, and
    ``entering`` of those that are at its server and not at its engine; ``entered_ps`` is when the
    server of a replica has done with the last one. ``busy`` is a heap of the times and numbers of
    replicas with work.
    """

    requests: Requests
    work: Work
    decoders: list[Server]
    plan: ServingPlan
    sample: Callable[[Server], None]
    engines: list[Server] = field(default_factory=list[Server])
    arriving: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    entering: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    entered_ps: dict[int, int] = field(default_factory=dict[int, int])
    busy: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    placed: list[int] = field(default_factory=list[int])
    sent_ps: dict[int, int] = field(default_factory=dict[int, int])

    def run(self) -> None:
        """Run all replicas, the one that is furthest behind first.

        An iteration that starts before a request arrives is not changed by it. One that follows
        another, in a closed load or a conversation, comes when that ends.
        """
        requests, arrivals = self.requests, self.work.arrivals_ps
        self.placed = [0] * len(requests)
        prefills = self._prefills()
        self.engines = engines = [*self.decoders, *prefills]
        first = _router(self.plan.router, prefills or self.decoders)
        second = _router(self.plan.router, self.decoders)
        starts = requests.starts
        following = min(requests.concurrency or len(starts), len(starts))
        self.arriving = [(arrivals[request], request) for request in starts[:following]]
        heapify(self.arriving)
        waits, busy = requests.follows is not None or bool(prefills), self.busy
        while True:
            next_ps = min(_first(self.arriving), _first(self.entering))
            if _first(busy) >= next_ps:
                if next_ps == NEVER:
                    return
                self._next_arrival(first, second)
                continue
            time_ps, number = heappop(busy)
            behind = engines[number]
            if behind.now != time_ps:
                # A pipeline that was woken earlier.
                continue
            is_open = waits or following < len(starts)
            horizon = min(next_ps, _first(busy)) if is_open else next_ps
            ended = behind.run(max(horizon, behind.now + 1))
            if not behind.is_idle:
                heappush(busy, (behind.now, behind.number))
            self.sample(behind)
            for request in ended:
                if behind.setup.only_prefills and requests.outputs[request] > 1:
                    self._send(request, behind)
                elif (after := self._after(request)) is not None:
                    self._follow(after, behind.now)
                elif following < len(starts):
                    self._follow(starts[following], behind.now)
                    following += 1

    def _prefills(self) -> list[Server]:
        prefill = self.plan.prefill
        if prefill is None:
            return []
        setup = replace(prefill.setup, only_prefills=True)
        numbers = range(len(self.decoders), len(self.decoders) + prefill.replicas)
        return [_server(setup, self.work, number) for number in numbers]

    def _offer(self, request: int, replica: Server, offered_ps: int) -> None:
        """Put a request into the queue of a replica."""
        before_ps = NEVER if replica.is_idle else replica.now
        replica.offer(request, offered_ps)
        if replica.now < before_ps:
            heappush(self.busy, (replica.now, replica.number))

    def _next_arrival(self, first: _Chooser, second: _Chooser) -> None:
        """Pass the next request to its engine or server."""
        if _first(self.entering) < _first(self.arriving):
            offered_ps, request = heappop(self.entering)
            self._offer(request, self.engines[self.placed[request]], offered_ps)
            return
        arrived_ps, request = heappop(self.arriving)
        is_transferred = request in self.work.transferred
        replica = (second if is_transferred else first)(request)
        self.placed[request] = replica.number
        if is_transferred or self.plan.entry == NO_ENTRY:
            self._offer(request, replica, arrived_ps)
        else:
            self._enter(request, arrived_ps)

    def _enter(self, request: int, arrived_ps: int) -> None:
        number = self.placed[request]
        start_ps = max(arrived_ps, self.entered_ps.get(number, 0))
        self.entered_ps[number] = start_ps + self.plan.entry.time_ps(self.requests.prompts[request])
        heappush(self.entering, (self.entered_ps[number], request))

    def _follow(self, request: int, ended_ps: int) -> None:
        """Let a request come that waited for another one to end."""
        self.work.arrivals_ps[request] += ended_ps
        heappush(self.arriving, (self.work.arrivals_ps[request], request))

    def _after(self, request: int) -> int | None:
        """Return the next request of a conversation; None behind its last one."""
        if self.requests.follows is None:
            return None
        after = self.requests.follows[request]
        return None if after < 0 else after

    def _send(self, request: int, replica: Server) -> None:
        """Send what a prompt left behind to a replica that decodes."""
        prefill = self.plan.prefill
        assert prefill is not None  # noqa: S101 - a replica computes prompts alone
        free_ps = max(replica.now, self.sent_ps.get(replica.number, 0))
        sent_ps = free_ps + prefill.transfer_ps(self.requests.prompts[request])
        self.sent_ps[replica.number] = sent_ps
        arrived_ps = sent_ps + round(prefill.latency_s * PICOSECONDS)
        self.work.transferred.add(request)
        self.work.first_ps[request] = arrived_ps
        heappush(self.arriving, (arrived_ps, request))
