"""Requests: arrivals and lengths, drawn with a seed or from a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from enum import Enum
from pathlib import Path

import msgspec
import numpy as np

from hespas.base.decode import read_text
from hespas.base.frozen import frozen
from hespas.base.table import read_table
from hespas.errors import ConfigError, option

PICOSECONDS = 10**12
_MOST_REQUESTS = 10_000_000
_SHARED = 1
"""The segment that all prompts begin with; others of drawn loads are even."""
_HASHED_TOKENS = 512
"""Tokens of a block that Mooncake's ``hash_ids`` number (kvcache-ai/Mooncake, README of FAST25)."""


class Arrivals(Enum):
    """How requests of an open load are spaced."""

    POISSON = "poisson"
    GAMMA = "gamma"
    """With the coefficient of variation that `Load.burstiness` has: above 1 it is burstier."""
    UNIFORM = "uniform"


@frozen
class Requests:
    """Requests in order of arrival: times in ps, lengths in tokens.

    Of a closed load ``concurrency`` are under way at a time: each starts when one before it ends,
    and its own ``arrivals_ps`` have passed then. So does the request that one ``follows`` with in
    its conversation; -1 is none. ``chains`` are the segments of each prompt, as
    `hespas.serve.prefixes` says, and ``output_segments`` those that outputs add behind them; 0 is
    none.
    """

    arrivals_ps: tuple[int, ...]
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    concurrency: int | None = None
    follows: tuple[int, ...] | None = None
    chains: tuple[tuple[tuple[int, int], ...], ...] | None = None
    output_segments: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def starts(self) -> Sequence[int]:
        """The requests that follow no other, in their order."""
        if self.follows is None:
            return range(len(self))
        after = set(self.follows)
        return [request for request in range(len(self)) if request not in after]

    @property
    def rate(self) -> float | None:
        """The mean arrival rate in 1/s; None for unknown or simultaneous arrivals."""
        starts = self.starts
        if self.concurrency is not None or len(starts) < 2:
            return None
        span_ps = self.arrivals_ps[starts[-1]] - self.arrivals_ps[starts[0]]
        turns = len(self) / len(starts)
        return turns * (len(starts) - 1) * PICOSECONDS / span_ps if span_ps else None

    def at_rate(self, rate: float) -> Requests:
        """Stretch arrivals to another mean rate in 1/s."""
        own = self.rate
        if own is None:
            raise ConfigError("a closed load has no rate to change", hint="give a rate")
        factor = own / rate
        starts = set(self.starts)
        arrivals = tuple(
            round(arrival * factor) if request in starts else arrival
            for request, arrival in enumerate(self.arrivals_ps)
        )
        return replace(self, arrivals_ps=arrivals)

    def evenly(self, rate: float) -> Requests:
        """Return the same requests, evenly spaced at a rate in 1/s."""
        gap_ps = PICOSECONDS / rate
        arrivals = tuple(round(number * gap_ps) for number in range(len(self)))
        return replace(self, arrivals_ps=arrivals, concurrency=None)

    def at_once(self) -> Requests:
        """Return the same requests, all there from the start."""
        return replace(self, arrivals_ps=(0,) * len(self), concurrency=None)

    def repeated(self, times: int) -> Requests:
        """Return requests of an open load several times, one round behind the other.

        They share no prefixes, and none follows another.

        >>> two = Requests(arrivals_ps=(0, 4), prompts=(1, 2), outputs=(3, 4))
        >>> two.repeated(2).arrivals_ps, two.at_once().repeated(2).arrivals_ps
        ((0, 4, 8, 12), (0, 0, 0, 0))
        """
        rate = self.rate
        round_ps = 0 if rate is None else round(len(self) / rate * PICOSECONDS)
        return replace(
            self,
            arrivals_ps=tuple(
                number * round_ps + arrival
                for number in range(times)
                for arrival in self.arrivals_ps
            ),
            prompts=self.prompts * times,
            outputs=self.outputs * times,
        )


@frozen
class Lengths:
    """Lengths in tokens: ``mean``, and how far they spread around it.

    ``spread`` is a share of the mean: lengths are uniform from ``mean (1 - spread)`` to ``mean (1 +
    spread)``, as benchmarks draw them.
    """

    mean: int
    spread: float = 0.0

    def __post_init__(self) -> None:
        if self.mean < 1:
            raise ConfigError(f"a length is {self.mean} tokens", hint="give 1 or more")
        if not 0 <= self.spread < 1:
            raise ConfigError(
                f"{option('length_spread')} is {self.spread:g}", hint="give 0 or more, less than 1"
            )

    def drawn(self, generator: np.random.Generator, count: int) -> tuple[int, ...]:
        """Draw lengths."""
        if not self.spread:
            return (self.mean,) * count
        low, high = self.mean * (1 - self.spread), self.mean * (1 + self.spread)
        drawn = generator.integers(max(1, round(low)), round(high), count, endpoint=True)
        return tuple(drawn.tolist())


def drawn_requests(
    count: int,
    *,
    prompts: Lengths,
    outputs: Lengths,
    rate: float | None = None,
    concurrency: int | None = None,
    arrivals: Arrivals = Arrivals.POISSON,
    burstiness: float = 1.0,
    turnaround_s: float = 0.0,
    seed: int = 0,
) -> Requests:
    """Draw requests, at a rate in 1/s or closed.

    Of a closed load ``turnaround_s`` is the mean time from the end of a request to the arrival of
    the next, which is exponential.

    >>> closed = drawn_requests(4, prompts=Lengths(mean=8), outputs=Lengths(mean=2), concurrency=2)
    >>> closed.prompts, closed.concurrency
    ((8, 8, 8, 8), 2)
    """
    if not 1 <= count <= _MOST_REQUESTS:
        raise ConfigError(
            f"{option('requests')} is {count}", hint=f"give 1 to {_MOST_REQUESTS:,} requests"
        )
    generator = np.random.Generator(np.random.PCG64(seed))
    times: tuple[int, ...] = (0,) * count
    if turnaround_s:
        drawn = generator.exponential(turnaround_s * PICOSECONDS, count)
        times = tuple(np.rint(drawn).astype(np.int64).tolist())
    if rate is not None:
        times = _arrivals(generator, count, rate, arrivals, burstiness)
    return Requests(
        arrivals_ps=times,
        prompts=prompts.drawn(generator, count),
        outputs=outputs.drawn(generator, count),
        concurrency=concurrency,
    )


def in_conversations(
    requests: Requests, *, turns: int = 1, shared: int = 0, think_s: float = 0.0, seed: int = 0
) -> Requests:
    """Return requests as turns of conversations.

    The prompts of ``requests`` are what a turn adds; all begin with the same ``shared`` tokens. A
    turn follows the one before after ``think_s`` in the mean, exponential. Conversations arrive as
    often as gives the requests' own rate.

    >>> drawn = drawn_requests(4, prompts=Lengths(mean=8), outputs=Lengths(mean=2), concurrency=1)
    >>> in_conversations(drawn, turns=2, shared=100).prompts
    (108, 118, 108, 118)
    """
    count = len(requests)
    generator = np.random.Generator(np.random.PCG64((seed, turns)))
    thinks_ps = np.rint(generator.exponential(think_s * PICOSECONDS, count)).astype(np.int64)
    arrivals, prompts = list(requests.arrivals_ps), list(requests.prompts)
    chains: list[tuple[tuple[int, int], ...]] = []
    for request in range(count):
        before = ((_SHARED, shared),) if shared else ()
        length = shared + prompts[request]
        if request % turns:
            last = request - 1
            length = prompts[last] + requests.outputs[last] + requests.prompts[request]
            before = (*chains[last], (-2 * request, length - requests.prompts[request]))
            arrivals[request] = int(thinks_ps[request])
        prompts[request] = length
        chains.append((*before, (2 * request + 2, length)))
    follows = tuple(
        request + 1 if (request + 1) % turns and request + 1 < count else -1
        for request in range(count)
    )
    return replace(
        requests,
        arrivals_ps=tuple(arrivals),
        prompts=tuple(prompts),
        follows=follows if turns > 1 else None,
        chains=tuple(chains),
        output_segments=tuple(-2 * after if after >= 0 else 0 for after in follows),
    )


def _arrivals(
    generator: np.random.Generator, count: int, rate: float, kind: Arrivals, variation: float
) -> tuple[int, ...]:
    mean_ps = PICOSECONDS / rate
    match kind:
        case Arrivals.POISSON:
            gaps = generator.exponential(mean_ps, count)
        case Arrivals.GAMMA:
            shape = 1 / variation**2
            gaps = generator.gamma(shape, mean_ps / shape, count)
        case Arrivals.UNIFORM:
            gaps = np.full(count, mean_ps)
    gaps[0] = 0
    return tuple(np.rint(np.cumsum(gaps)).astype(np.int64).tolist())


@frozen
class _Row:
    """A load file's line: seconds, and lengths in tokens.

    ``hashes`` number the blocks of the prompt: a number stands for a block behind those before it.
    """

    time_s: float
    prompt: int
    output: int
    hashes: tuple[int, ...] | None = None


def read_requests(path: Path, *, most: int | None = None) -> Requests:
    """Read a load file: Azure's columns (.csv) or Mooncake's lines (.jsonl).

    A .csv has ``TIMESTAMP`` (a date or seconds), ``ContextTokens`` and ``GeneratedTokens``; a line
    of .jsonl has ``timestamp`` in ms, ``input_length`` and ``output_length``, and may have
    ``hash_ids``, equal for blocks of 512 tokens that prompts share. Of them at most the first
    ``most`` are read. Raises `ConfigError` with the line of what doesn't fit.
    """
    reader = _mooncake if path.suffix == ".jsonl" else _azure
    return _gathered(reader(path), str(path), most)


def _gathered(rows: Iterable[_Row], location: str, most: int | None) -> Requests:
    arrivals: list[int] = []
    prompts: list[int] = []
    outputs: list[int] = []
    chains: list[tuple[tuple[int, int], ...]] = []
    start_s: float | None = None
    before_s = 0.0
    for number, row in enumerate(rows, start=1):
        if most is not None and len(prompts) == most:
            break
        where = f"{location}, request {number}"
        start_s = row.time_s if start_s is None else start_s
        if row.time_s < before_s or row.time_s < 0:
            raise ConfigError(
                f"arrives at {row.time_s:g} s, before the request above it",
                location=where,
                hint="sort the file by time",
            )
        before_s = row.time_s
        if row.prompt < 1 or row.output < 1:
            raise ConfigError(
                f"has {row.prompt} tokens of prompt and {row.output} of output",
                location=where,
                hint="give 1 or more of both",
            )
        arrivals.append(round((row.time_s - start_s) * PICOSECONDS))
        prompts.append(row.prompt)
        outputs.append(row.output)
        chains.append(_chain(row, where))
    if not prompts:
        raise ConfigError("holds no requests", location=location)
    return Requests(
        arrivals_ps=tuple(arrivals),
        prompts=tuple(prompts),
        outputs=tuple(outputs),
        chains=tuple(chains) if any(chains) else None,
    )


def _chain(row: _Row, location: str) -> tuple[tuple[int, int], ...]:
    """Return the segments of a prompt whose blocks are numbered."""
    if row.hashes is None:
        return ()
    blocks = -(-row.prompt // _HASHED_TOKENS)
    if len(row.hashes) != blocks:
        raise ConfigError(
            f"has {len(row.hashes)} hash_ids for {row.prompt} tokens",
            location=location,
            hint=f"give one for each {_HASHED_TOKENS} tokens: {blocks}",
        )
    return tuple(
        (number, min((index + 1) * _HASHED_TOKENS, row.prompt))
        for index, number in enumerate(row.hashes)
    )


def _azure(path: Path) -> Iterator[_Row]:
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    for line in read_table(path, needed=columns, error=ConfigError).lines:
        try:
            time_s = _seconds(line.text("TIMESTAMP"))
        except ValueError as error:
            raise ConfigError(f"{error}", location=line.location) from error
        prompt, output = (line.whole(name, least=0) for name in columns[1:])
        yield _Row(time_s=time_s, prompt=prompt, output=output)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        # Azure's have seven digits of a second, of which a date holds six.
        seconds, _, fraction = text.partition(".")
        date = datetime.fromisoformat(seconds)
        return date.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] | None = None


def _mooncake(path: Path) -> Iterator[_Row]:
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            request = msgspec.json.decode(line, type=_MooncakeLine)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{error}", location=f"{path}:{number}") from error
        yield _Row(
            time_s=request.timestamp / 1e3,
            prompt=request.input_length,
            output=request.output_length,
            hashes=request.hash_ids,
        )
