"""Served loads, against a simulator that takes every iteration and every token by itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hespas.errors import ConfigError
from hespas.serve.engine import ENGINES, Engine, Reserve, Setup, engine_named
from hespas.serve.load import PICOSECONDS, Lengths, Requests, drawn_requests
from hespas.serve.simulation import Router, Served, ServingPlan
from hespas.serve.step_times import StepTimes

TIMES = StepTimes(
    tokens_s=((1, 6e-3), (64, 8e-3), (256, 12e-3), (1024, 30e-3), (8192, 200e-3)),
    context_s=((1, 2e-8), (256, 1e-8)),
    pair_s=5e-10,
)
VLLM = engine_named("vllm", memory_bytes=80 * 2**30, part="H100")


@dataclass
class _Sequence:
    number: int
    prompt: int
    output: int
    computed: int = 0
    made: int = 0
    restarted_with: int = 0

    @property
    def needed(self) -> int:
        """Tokens whose keys and values it needs before it decodes."""
        return self.prompt + self.restarted_with

    @property
    def decodes(self) -> bool:
        return self.computed >= self.needed


@dataclass
class _Reference:
    """One replica, a list of sequences, one iteration at a time."""

    requests: Requests
    setup: Setup
    now: int = 0
    planned: int = 0
    unpolled: int = 0
    waiting: list[_Sequence] = field(default_factory=list)
    running: list[_Sequence] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)

    def held(self, sequence: _Sequence) -> int:
        if self.engine.reserve is Reserve.OUTPUT:
            return self.setup.blocks_of(sequence.prompt + sequence.output)
        return self.with_tokens(sequence, max(sequence.needed, sequence.computed))

    def with_tokens(self, sequence: _Sequence, tokens: int) -> int:
        return self.setup.blocks_of(tokens, joined=sequence.needed)

    @property
    def engine(self) -> Engine:
        return self.setup.engine

    @property
    def free(self) -> int:
        return self.setup.blocks - sum(map(self.held, self.running))

    def admit(self) -> None:
        sees_all = not self.engine.plans_ahead and self.engine.poll_interval == 1
        if sees_all or not self.running:
            self.planned = self.now
        decoding = sum(sequence.decodes for sequence in self.running)
        room = self.engine.token_budget - (decoding if self.engine.mixes else 0)
        room -= sum(each.needed - each.computed for each in self.running if not each.decodes)
        while self.waiting and room > 0 and len(self.running) < self.engine.most_sequences:
            sequence = self.waiting[0]
            if self.arrived[sequence.number] > self.planned:
                return
            is_alone = all(each.decodes for each in self.running)
            if not self.engine.cuts_prompts and sequence.needed > room and not is_alone:
                return
            if self.held(sequence) > self.free:
                return
            self.running.append(self.waiting.pop(0))
            room -= sequence.needed

    def make_room(self) -> None:
        if self.engine.reserve is Reserve.OUTPUT:
            return
        while True:
            decoding = [sequence for sequence in self.running if sequence.decodes]
            starting = sum(
                self.with_tokens(each, each.computed + 1) - self.held(each) for each in decoding
            )
            if starting <= self.free:
                return
            last = self.running.pop()
            last.restarted_with, last.computed = last.made, 0
            self.waiting.insert(0, last)

    def iterate(self) -> list[_Sequence]:
        """Run one iteration; return what ended."""
        self.admit()
        if self.engine.mixes or all(sequence.decodes for sequence in self.running):
            self.make_room()
        prompts = [sequence for sequence in self.running if not sequence.decodes]
        decoding = [sequence for sequence in self.running if sequence.decodes]
        if prompts and not self.engine.mixes:
            decoding = []
        chunks = self.chunks(prompts, len(decoding) if self.engine.mixes else 0)
        if not chunks and not decoding:
            return []
        self.unpolled += 1
        if chunks or self.unpolled == self.engine.poll_interval:
            self.planned, self.unpolled = self.now, 0
        self.now += self.elapsed(chunks, decoding)
        self.now += self.engine.host_ps(len(decoding) + len(prompts))
        for sequence in decoding:
            sequence.computed += 1
            sequence.made += 1
        for sequence, chunk in chunks:
            sequence.computed += chunk
            if sequence.decodes:
                sequence.made += 1
                self.first.setdefault(sequence.number, self.now)
        done = [sequence for sequence in self.running if sequence.made == sequence.output]
        for sequence in done:
            self.running.remove(sequence)
            self.ended[sequence.number] = self.now
        return done

    def chunks(self, prompts: list[_Sequence], decoding: int) -> list[tuple[_Sequence, int]]:
        room, chunks = self.engine.token_budget - decoding, list[tuple[_Sequence, int]]()
        for sequence in prompts:
            left = sequence.needed - sequence.computed
            chunk = min(left, max(room, 0))
            if not self.engine.cuts_prompts:
                chunk = left if not chunks or chunk == left else 0
            if not chunk:
                break
            chunks.append((sequence, chunk))
            room -= chunk
        return chunks

    def elapsed(self, chunks: list[tuple[_Sequence, int]], decoding: list[_Sequence]) -> int:
        tokens = sum(chunk for _, chunk in chunks)
        times = self.setup.times
        pairs_ps = sum((times.pairs_ps(s.computed, c) for s, c in chunks), 0.0)
        batch = len(decoding) + tokens if chunks else self.engine.padded(len(decoding))
        context = sum(each.computed for each in decoding)
        attended = times.attended_ps(len(decoding), context, 1)[0] if decoding else 0
        computed = times.of_tokens(batch) + round(pairs_ps) + attended
        return max(computed, times.of_exchange(batch))

    def run(self) -> None:
        waiting = [
            _Sequence(number=number, prompt=prompt, output=output)
            for number, (prompt, output) in enumerate(
                zip(self.requests.prompts, self.requests.outputs, strict=True)
            )
        ]
        closed = self.requests.concurrency
        for sequence in waiting[: closed or 0]:
            self.arrived[sequence.number] = 0
            self.waiting.append(sequence)
        del waiting[: closed or 0]
        while waiting or self.waiting or self.running:
            if closed is None:
                if not self.waiting and not self.running:
                    self.now = max(self.now, self.requests.arrivals_ps[waiting[0].number])
                while waiting and self.requests.arrivals_ps[waiting[0].number] <= self.now:
                    sequence = waiting.pop(0)
                    self.arrived[sequence.number] = self.requests.arrivals_ps[sequence.number]
                    self.waiting.append(sequence)
            for _ in self.iterate():
                if closed is not None and waiting:
                    sequence = waiting.pop(0)
                    self.arrived[sequence.number] = self.now
                    self.waiting.append(sequence)


def _loads() -> st.SearchStrategy[Requests]:
    lengths = st.lists(
        st.tuples(st.integers(1, 400), st.integers(1, 60), st.integers(0, 200)),
        min_size=1,
        max_size=30,
    )

    def made(rows: list[tuple[int, int, int]], concurrency: int | None) -> Requests:
        time_ms, arrivals = 0, list[int]()
        for _, _, gap in rows:
            time_ms += gap
            arrivals.append(time_ms * PICOSECONDS // 1000)
        return Requests(
            arrivals_ps=tuple(arrivals) if concurrency is None else (0,) * len(rows),
            prompts=tuple(row[0] for row in rows),
            outputs=tuple(row[1] for row in rows),
            concurrency=concurrency,
        )

    return st.builds(made, lengths, st.none() | st.integers(1, 8))


@settings(max_examples=120, deadline=None)
@given(
    requests=_loads(),
    name=st.sampled_from(list(ENGINES)),
    blocks=st.integers(0, 40),
    budget=st.integers(64, 600),
    most=st.integers(1, 12),
    plans_ahead=st.booleans(),
    polls=st.sampled_from([1, 1, 2, 7]),
    exchange_s=st.none() | st.floats(6e-3, 6.2e-3),
    beyond=st.none() | st.sampled_from([0, 24, 40]),
    states=st.integers(0, 2),
)
def test_iterations_taken_together_are_those_taken_one_by_one(
    *,
    requests: Requests,
    name: str,
    blocks: int,
    budget: int,
    most: int,
    plans_ahead: bool,
    polls: int,
    exchange_s: float | None,
    beyond: int | None,
    states: int,
) -> None:
    exchanges = () if exchange_s is None else ((1, exchange_s), (64, exchange_s + 2e-3))
    times = replace(TIMES, exchange_s=exchanges)
    if beyond is not None:
        times = replace(times, window=150, window_s=((1, 3e-8),), window_pair_s=1e-9)
    engine = engine_named(name, memory_bytes=80 * 2**30, part="H100")
    engine = replace(engine, token_budget=budget, most_sequences=most, plans_ahead=plans_ahead)
    engine = replace(engine, poll_interval=polls)
    longest = max(map(sum, zip(requests.prompts, requests.outputs, strict=True)))
    setup = Setup(engine=engine, times=times, blocks=0, tokens_beyond=beyond, state_blocks=states)
    blocks += max(-(-longest // engine.block_tokens) + states, setup.blocks_of(longest))
    setup = replace(setup, blocks=blocks)
    served = ServingPlan(setup=setup).serve(requests)
    reference = _Reference(requests=requests, setup=setup)
    reference.run()
    everything = range(len(requests))
    assert served.first_ps == [reference.first[number] for number in everything]
    assert served.ended_ps == [reference.ended[number] for number in everything]
    assert served.arrivals_ps == [reference.arrived[number] for number in everything]
    _check_laws(requests, served, blocks)


def _check_laws(requests: Requests, served: Served, blocks: int) -> None:
    times = zip(
        served.arrivals_ps, served.started_ps, served.first_ps, served.ended_ps, strict=True
    )
    for arrived, started, first, ended in times:
        assert arrived <= started < first <= ended
    assert all(0 <= sample.kv_blocks <= blocks for sample in served.samples)
    assert served.samples[-1].kv_blocks == served.samples[-1].decoding == 0
    if not served.preemptions:
        busy_ps = max(served.ended_ps) - min(served.arrivals_ps)
        tokens = sum(requests.outputs)
        assert busy_ps >= TIMES.of_tokens(1) * tokens / len(requests)


@pytest.mark.parametrize("router", Router)
@pytest.mark.parametrize("name", ENGINES)
def test_replicas_share_the_load_and_serve_no_less(name: str, router: Router) -> None:
    engine = engine_named(name, memory_bytes=80 * 2**30, part="H100")
    setup = Setup(engine=engine, times=TIMES, blocks=20_000)
    requests = drawn_requests(
        300, prompts=Lengths(mean=512, spread=0.5), outputs=Lengths(mean=64, spread=0.5), rate=200.0
    )
    durations: list[int] = []
    for replicas in (1, 2, 4):
        served = ServingPlan(setup=setup, replicas=replicas, router=router).serve(requests)
        assert set(served.replicas) == set(range(replicas))
        durations.append(max(served.ended_ps))
    assert durations == sorted(durations, reverse=True)


def test_a_closed_load_never_has_more_under_way() -> None:
    requests = drawn_requests(
        200, prompts=Lengths(mean=100), outputs=Lengths(mean=20, spread=0.5), concurrency=7
    )
    setup = Setup(engine=VLLM, times=TIMES, blocks=10_000)
    served = ServingPlan(setup=setup, replicas=3, router=Router.LEAST_LOADED).serve(requests)
    changes = [(time, 1) for time in served.arrivals_ps] + [(time, -1) for time in served.ended_ps]
    under_way = most = 0
    for _, change in sorted(changes):
        under_way += change
        most = max(most, under_way)
    assert most == 7


@pytest.mark.parametrize(("name", "shorter"), [("vllm", True), ("trtllm", True), ("sglang", False)])
def test_parts_with_attention_of_their_own_have_budgets(*, name: str, shorter: bool) -> None:
    engine = engine_named(name, memory_bytes=80 * 2**30, part="H100")
    load = drawn_requests(64, prompts=Lengths(mean=4096), outputs=Lengths(mean=1), concurrency=64)
    one = Setup(engine=replace(engine, token_budget=8192), times=TIMES, blocks=100_000)
    ended = [
        max(ServingPlan(setup=replace(one, parts=parts)).serve(load).ended_ps) for parts in (1, 4)
    ]
    # Tokens of an iteration are divided over parts: fewer or shorter iterations.
    assert ended[1] < ended[0] / 2
    iterations = [
        ServingPlan(setup=replace(one, parts=parts)).serve(load).iterations for parts in (1, 4)
    ]
    assert (iterations[1] < iterations[0]) == shorter


def test_the_same_load_gives_the_same_times() -> None:
    requests = drawn_requests(
        100, prompts=Lengths(mean=300, spread=0.9), outputs=Lengths(mean=40), rate=30.0, seed=3
    )
    setup = Setup(engine=VLLM, times=TIMES, blocks=500)
    assert ServingPlan(setup=setup).serve(requests) == ServingPlan(setup=setup).serve(requests)


def test_a_request_that_fits_no_replica_is_refused() -> None:
    requests = Requests(arrivals_ps=(0,), prompts=(160,), outputs=(1,))
    with pytest.raises(ConfigError, match=r"161 tokens needs more than the 10 blocks"):
        ServingPlan(setup=Setup(engine=VLLM, times=TIMES, blocks=10)).serve(requests)


def test_the_cost_follows_requests_and_not_their_tokens() -> None:
    setup = Setup(engine=VLLM, times=TIMES, blocks=1_000_000)

    def cpu_s(output: int) -> float:
        requests = drawn_requests(
            500, prompts=Lengths(mean=10), outputs=Lengths(mean=output), rate=2.0
        )
        start_s = process_time()
        served = ServingPlan(setup=setup).serve(requests)
        assert served.iterations > output
        return process_time() - start_s

    assert cpu_s(4000) < 100 * max(cpu_s(400), 0.01)
