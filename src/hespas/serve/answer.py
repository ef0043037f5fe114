"""What serving a load comes to: latencies, rates and their bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from hespas.base.frozen import frozen
from hespas.compile.targets import compute_capability
from hespas.errors import ConfigError, option
from hespas.prediction.figures.expected import engine_errors
from hespas.prediction.figures.schema import PublishedErrors
from hespas.serve.engine import Setup
from hespas.serve.load import PICOSECONDS, Requests
from hespas.serve.simulation import NO_ENTRY, Entry, Served, ServingPlan, StateRow
from hespas.serve.step_times import StepTimes
from hespas.serve.surface import Surface

_BISECTIONS, _BISECTIONS_OF_STEADY = 8, 5
IDLE_QUEUE = "nothing"
"""What the queue waited for where it never waited."""
_SHARE_OF_GOOD = 0.99
"""Requests that meet the objectives where a rate counts as served."""
_SHARES_OF_RATE = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1)
_MOST_FOR_RATES = 5000
"""Requests of a load that is simulated again at other rates."""
_FILLS, _MOST_IN_CROWD = 4, 10_000
"""How many times requests fill replicas to show how fast they work, and how many do at most."""
LEAST_OF_LOAD = 4000
"""Requests that a load has at least to see whether objectives are met for long.

The largest rate of 1,000 is 6 to 10 % above that of 16,000, that of 4,000 at most some 5 %."""
_BACKLOGGED = 2.0
"""How many times as long the last quarter waits as the first where a queue grows."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds over all requests."""

    mean: float
    p50: float
    p90: float
    p99: float


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What limits: iterations that decode, those with prompts, and the queue."""

    decode: str
    prefill: str
    queue: str


class SurfaceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted steps that iterations are interpolated from: seconds by new tokens."""

    tokens_s: tuple[tuple[int, float], ...]
    context_s: tuple[tuple[int, float], ...]
    pair_s: float


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a pipeline; seconds are of a mean decoding batch.

    ``decode_s`` has ``receive_s`` in it.
    """

    layers: int
    weight_bytes: int
    kv_blocks: int
    decode_s: float
    receive_s: float


class LogErrors(msgspec.Struct, frozen=True, kw_only=True):
    """How far predictions of measured requests are off, as shares.

    ``*_mean`` are of means over requests, ``tpot_median`` is the median size of the requests' own.
    """

    tpot_mean: float
    tpot_median: float
    ttft_mean: float
    queue_mean: float | None


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    """A measured log beside its prediction, over requests not fitted to."""

    requests: int
    predicted: LogErrors
    fitted: LogErrors
    decode_factor: float
    prompts_factor: float


class RatePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies of the same requests at another rate, in requests/s."""

    rate: float
    ttft_s: Latency
    tpot_s: Latency | None
    met: Annotated[float, Meta(description="the share that meets all objectives")]


class ServingReport(msgspec.Struct, frozen=True, kw_only=True):
    """A load on an engine's replicas; null is unknown."""

    model: str
    engine: str
    cluster: str
    devices: int
    replicas: int
    prefill_replicas: Annotated[int, Meta(description="those that compute prompts alone")]
    requests: int
    ttft_s: Latency
    tpot_s: Annotated[Latency | None, Meta(description="null where no request has two tokens")]
    latency_s: Latency
    queue_s: Latency
    duration_s: float
    output_tokens_per_s: float
    output_tokens_per_s_per_device: float
    requests_per_s: float
    goodput: Annotated[
        float | None, Meta(description="requests/s that meet all objectives; null without any")
    ]
    max_rate: Annotated[
        float | None,
        Meta(description="largest rate, in requests/s, that is served (within the objectives)"),
    ]
    rates: Annotated[
        list[RatePoint], Meta(description="latencies at other rates; none of closed or long loads")
    ]
    load: str
    prefix_hit_rate: Annotated[
        float | None,
        Meta(description="tokens of prompts that a replica kept; null where none share a prefix"),
    ]
    kv_blocks: int
    block_tokens: int
    mean_batch: float
    prompt_share: Annotated[
        float, Meta(description="iterations that compute prompts, as a share of the work's time")
    ]
    preemptions: int
    iterations: int
    bound: Bound
    expected_error: Annotated[
        float | None,
        Meta(description="of the time between tokens, as `published_errors`; null where not known"),
    ]
    left_out_error: Annotated[
        float, Meta(description="of a step's time between the sizes that are predicted, at most")
    ]
    energy_j_per_output_token: float | None
    usd_per_million_output_tokens: float | None
    launch: str
    steps: SurfaceReport
    states: list[StateRow]
    assumptions: list[str]
    stages: Annotated[
        list[StageRow], Meta(description="of a replica's pipeline; none without one")
    ] = []
    published_errors: Annotated[
        PublishedErrors | None,
        Meta(description="of published points of the engine; null where there are none"),
    ] = None
    log: Annotated[
        LogReport | None, Meta(description="measured requests beside predicted ones; null without")
    ] = None


def unlike_published(report: ServingReport) -> str:
    """Say in what an answer differs from all its engine's published points.

    Points with stages of a pipeline were looked for, and none found.
    """
    part = report.cluster.partition("x")[2]
    published_parts = () if report.published_errors is None else report.published_errors.parts
    missing = [f"on {part}"] if part not in published_parts else []
    if report.stages:
        missing.append("with stages")
    return f" (none {' or '.join(missing)})" if missing else ""


@frozen
class Objectives:
    """What a request should meet, in seconds; None is no objective."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    latency_s: float | None = None

    @property
    def are_given(self) -> bool:
        """Whether there is an objective."""
        return any(value is not None for value in (self.ttft_s, self.tpot_s, self.latency_s))

    def met(self, figures: Figures) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return which requests meet all objectives."""
        met = np.ones(len(figures.ttft_s), dtype=bool)
        pairs = (
            (self.ttft_s, figures.ttft_s),
            (self.tpot_s, figures.tpot_s),
            (self.latency_s, figures.latency_s),
        )
        for most_s, values in pairs:
            if most_s is not None:
                met &= np.nan_to_num(values) <= most_s
        return met


Seconds = np.ndarray[tuple[int], np.dtype[np.float64]]


@frozen
class Figures:
    """Seconds of each request; ``tpot_s`` is NaN for single tokens."""

    ttft_s: Seconds
    tpot_s: Seconds
    latency_s: Seconds
    queue_s: Seconds
    duration_s: float


def figures_of(requests: Requests, served: Served) -> Figures:
    """Return what each request waited for."""
    arrived, started, first, ended = (
        np.asarray(times, dtype=np.int64)
        for times in (served.arrivals_ps, served.started_ps, served.first_ps, served.ended_ps)
    )
    more = np.asarray(requests.outputs, dtype=np.int64) - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        between = np.where(more > 0, (ended - first) / np.maximum(more, 1), np.nan)
    return Figures(
        ttft_s=(first - arrived) / PICOSECONDS,
        tpot_s=between / PICOSECONDS,
        latency_s=(ended - arrived) / PICOSECONDS,
        queue_s=(started - arrived) / PICOSECONDS,
        duration_s=float(ended.max() - arrived.min()) / PICOSECONDS,
    )


def latency(values: Seconds) -> Latency | None:
    """Return mean and percentiles; None where no value is a number."""
    numbers = values[~np.isnan(values)]
    if not len(numbers):
        return None
    middle, high, highest = (float(value) for value in np.percentile(numbers, (50, 90, 99)))
    return Latency(mean=float(numbers.mean()), p50=middle, p90=high, p99=highest)


def largest_rate(
    requests: Requests,
    plan: ServingPlan,
    objectives: Objectives,
    *,
    longer: Requests | None = None,
) -> float | None:
    """Return the largest rate in 1/s that replicas serve within the objectives.

    Loads are drawn from ``longer``, the load with `LEAST_OF_LOAD` requests or more, since the few
    that miss objectives come in bursts, which short loads lack. By default ``requests`` are
    repeated. Without objectives it is the rate at which no queue grows, and that is the most with
    objectives, too. None for a closed load, and where even single requests miss an objective.
    """
    if requests.rate is None:
        return None
    drawn = requests if longer is None else longer
    most = _steady_rate(drawn, plan)
    if not objectives.are_given:
        return most

    long_load = _at_least(drawn, LEAST_OF_LOAD)

    def is_met(rate: float) -> bool:
        load = long_load.at_rate(rate)
        met = objectives.met(figures_of(load, plan.serve(load)))
        return bool(met.mean() >= _SHARE_OF_GOOD)

    # A short load never fills replicas: it may be over before a queue grows too long.
    return _largest_within(0.0, most, is_met, _BISECTIONS) or None


def _largest_within(
    low: float, high: float, is_served: Callable[[float], bool], bisections: int
) -> float:
    """Return the largest rate that replicas serve; they serve ``low``."""
    if is_served(high):
        return high
    for _ in range(bisections):
        middle = (low + high) / 2
        low, high = (middle, high) if is_served(middle) else (low, middle)
    return low


def _steady_rate(requests: Requests, plan: ServingPlan) -> float:
    """Return the largest rate in 1/s of even arrivals that no queue grows at.

    It lies between the rate at which replicas work off requests that are all there at once, where
    full ones preempt, and the one that they cannot go beyond. Requests that share prefixes, or
    follow one another, have the former where they are too few to fill replicas some times.
    """
    filling = _filling(requests, plan)
    crowd = _at_least(requests.at_once(), filling)
    served = plan.serve(crowd)
    most = sustained_rate(crowd, plan, cached=served.cached_tokens)
    at_once = min(most, len(crowd) / figures_of(crowd, served).duration_s)
    if len(crowd) < filling or crowd.follows is not None:
        return at_once

    def keeps_up(rate: float) -> bool:
        load = crowd.evenly(rate)
        figures = figures_of(load, plan.serve(load))
        return not _is_growing(figures, figures.queue_s)

    return _largest_within(at_once, most, keeps_up, _BISECTIONS_OF_STEADY)


def _filling(requests: Requests, plan: ServingPlan) -> int:
    count, setup = len(requests), plan.setup
    length = (sum(requests.prompts) + sum(requests.outputs)) // count
    room = setup.blocks // max(1, setup.blocks_of(length))
    sequences = max(1, min(room, setup.engine.most_sequences * setup.parts))
    return min(_MOST_IN_CROWD, _FILLS * sequences * plan.replicas)


def _at_least(requests: Requests, count: int) -> Requests:
    """Return ``count`` requests or more, repeated.

    Those that share prefixes, or follow one another, are another load if repeated: they stay.
    """
    if requests.chains is not None or requests.follows is not None:
        return requests
    return requests.repeated(-(-count // len(requests)))


def sustained_rate(requests: Requests, plan: ServingPlan, *, cached: int = 0) -> float:
    """Return a rate in 1/s that replicas cannot go beyond for long.

    They compute tokens of prompts, but for ``cached`` ones, and of outputs, as fast as the best
    iteration does, and attention beside them; a pipeline as fast as its slowest stage.
    """
    decoding, prefill = plan.setup, plan.prefill
    pairs = [_request_s(decoding, stage, requests, cached) for stage in _stages(decoding)]
    if prefill is None:
        return plan.replicas * decoding.parts / max(map(sum, pairs))
    own = prefill.setup
    prompts_s = max(_request_s(own, stage, requests, cached)[0] for stage in _stages(own))
    rates = [prefill.replicas * own.parts / prompts_s]
    if outputs_s := max(stage[1] for stage in pairs):
        rates.append(plan.replicas * decoding.parts / outputs_s)
    return min(rates)


def _stages(setup: Setup) -> tuple[StepTimes, ...]:
    return setup.stages or (setup.times,)


def _request_s(
    setup: Setup, times: StepTimes, requests: Requests, cached: int
) -> tuple[float, float]:
    """Return a stage's least seconds for a mean request's prompt and output."""
    count = len(requests)
    prompts, outputs = sum(requests.prompts) / count, sum(requests.outputs) / count
    computed = prompts - cached / count
    token_s = _token_s(setup, times)
    prompts_s = token_s * computed + times.pair_s * computed * prompts / 2
    outputs_s = token_s * (outputs - 1)
    context_s = min((token_s_of_context for _, token_s_of_context in times.context_s), default=0.0)
    outputs_s += context_s * outputs * (prompts + outputs / 2)
    if setup.speculation is not None:
        outputs_s /= setup.speculation.made
    return prompts_s, outputs_s


def _token_s(setup: Setup, times: StepTimes) -> float:
    """Return the seconds per token of the iteration that has the least."""
    most = max(setup.engine.token_budget, setup.engine.most_sequences)
    sizes = {size for size, _ in times.tokens_s if size < most} | {most}
    return min(times.of_tokens(size) / size for size in sizes) / PICOSECONDS


def at_rates(
    requests: Requests, plan: ServingPlan, objectives: Objectives, most: float | None
) -> list[RatePoint]:
    """Return latencies at parts of the served rate, for short open loads."""
    if requests.rate is None or most is None or len(requests) > _MOST_FOR_RATES:
        return []
    points: list[RatePoint] = []
    for share in _SHARES_OF_RATE:
        load = requests.at_rate(share * most)
        figures = figures_of(load, plan.serve(load))
        first = latency(figures.ttft_s)
        if first is not None:
            points.append(
                RatePoint(
                    rate=share * most,
                    ttft_s=first,
                    tpot_s=latency(figures.tpot_s),
                    met=float(objectives.met(figures).mean()),
                )
            )
    return points


def load_word(
    requests: Requests, figures: Figures, most: float | None, entry: Entry = NO_ENTRY
) -> str:
    """Say whether a load is stable, backlogged or overloaded.

    What a server takes for a request, by its ``entry``, is no waiting for others.
    """
    rate = requests.rate
    if rate is None or most is None:
        return "stable"
    lengths, positions = np.unique(requests.prompts, return_inverse=True)
    own_ps = np.asarray([entry.time_ps(length) for length in lengths.tolist()])[positions]
    if not _is_growing(figures, figures.queue_s - own_ps / PICOSECONDS):
        return "stable"
    return "overloaded" if rate > most else "backlogged"


def _is_growing(figures: Figures, queue_s: Seconds) -> bool:
    """Return whether the last quarter waits much longer than the first."""
    quarter = max(1, len(queue_s) // 4)
    first, last = float(queue_s[:quarter].mean()), float(queue_s[-quarter:].mean())
    return last > _BACKLOGGED * first and last > float(figures.ttft_s.min())


def bound_of(surface: Surface, served: Served, batch: float, prompt: int) -> Bound:
    """Return what limits iterations of a batch."""
    causes = served.causes_ps
    queue = max(causes, key=lambda cause: causes[cause]) if causes else IDLE_QUEUE
    return Bound(
        decode=_largest(surface.report_near(round(batch), is_prompt=False).bound),
        prefill=_largest(surface.report_near(prompt, is_prompt=True).bound),
        queue=queue,
    )


def _largest(shares: msgspec.Struct) -> str:
    values: Mapping[str, float] = msgspec.to_builtins(shares)
    return max(values, key=lambda name: values[name] or 0.0).replace("_", " ")


def check_lengths(requests: Requests, longest: int | None) -> None:
    """Raise `ConfigError` for a request that is longer than the model's context."""
    if longest is None:
        return
    for number, lengths in enumerate(zip(requests.prompts, requests.outputs, strict=True), start=1):
        if sum(lengths) > longest:
            raise ConfigError(
                f"request {number} has {lengths[0]} + {lengths[1]} tokens, and the model's context "
                f"{longest}",
                hint=f"give a shorter {option('isl')} or {option('osl')}",
            )


def published_errors(engine: str, part: str) -> PublishedErrors | None:
    """Return an engine's errors at published points, if any.

    All of them are of NVIDIA's parts.

    >>> published_errors("vllm", "H200_141GB").points > 20
    True
    >>> published_errors("mine", "H200_141GB"), published_errors("vllm", "MI300X")
    (None, None)
    """
    return engine_errors().get(engine) if compute_capability(part) is not None else None
