"""The options of serving, and what is refused before anything is predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import ClassVar

from hespas.base.fields import (
    Group,
    Use,
    check_needs,
    check_options,
    declare,
    parse_pairs,
    refuse_bare,
    refuse_unused,
)
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.base.units import parse_quantity
from hespas.errors import ConfigError, option
from hespas.models.model import MeshAxes, parse_mesh
from hespas.serve.answer import Objectives
from hespas.serve.calibration import read_factors, read_log
from hespas.serve.engine import Engine, Speculation
from hespas.serve.load import (
    Arrivals,
    Lengths,
    Requests,
    drawn_requests,
    in_conversations,
    read_requests,
)
from hespas.serve.simulation import Entry, Router
from hespas.serve.step_times import StepFactors
from hespas.sources.options import NO_MODEL_OPTIONS, ModelOptions
from hespas.study.executor import ExecutorOptions, Phase

OPEN = Use(f" without {option('rate')}", "add it")
CLOSED = Use(f" without {option('concurrency')}", "add it")
WHOLE = Use(f" with {option('log')}", "drop it: all of the file is read")
SENT = Use(f" with {option('log')}", "drop it: its requests came to the engine itself")
DRAWN = Use(" on a load from a file", "drop it: the file has what it says")
NOT_SERVED = frozenset(
    {
        *("executor", "scheduler", "batch", "global_batch", "micro_batch", "micro_batches"),
        *("sequence", "remat", "scan", "prefill", "decode", "place"),
    }
)
"""Options of models and executors that mean nothing here."""
_PARTS = {"decode": "", "prompts": ""}
_USUAL_UNITS = {"ttft": "ms", "tpot": "ms", "latency": ""}


def _amounts(
    texts: Iterable[str] | str, usual_units: Mapping[str, str], *, name: str, form: str, unit: str
) -> dict[str, float]:
    """Read amounts above 0 by name; ``usual_units`` has the names that there are."""
    pieces = texts.split(",") if isinstance(texts, str) else texts
    amounts: dict[str, float] = {}
    for key, text in parse_pairs(pieces, name=name, form=form).items():
        if key not in usual_units:
            raise ConfigError(
                f"{option(name)} names {key!r}", hint=suggestion(key, tuple(usual_units))
            )
        amounts[key] = parse_quantity(text, unit, location=option(name))
        if amounts[key] <= 0:
            raise ConfigError(f"{option(name)} {key} is {text}", hint="give more than 0")
        refuse_bare(text, unit, usual_units[key], subject=f"{option(name)} {key}")
    return amounts


def parse_objectives(texts: Iterable[str] | str) -> Objectives:
    """Return the objectives of texts such as ``ttft=500ms,tpot=40ms``.

    >>> parse_objectives("ttft=500ms,tpot=40ms").ttft_s
    0.5
    """
    times_s = _amounts(texts, _USUAL_UNITS, name="slo", form="ttft=500ms,tpot=40ms", unit="s")
    return Objectives(**{f"{name}_s": time_s for name, time_s in times_s.items()})


def parse_factors(texts: Iterable[str] | str) -> StepFactors:
    """Return the factors of texts such as ``decode=1.05,prompts=0.9``, or of a calibration.

    >>> parse_factors("decode=1.05").decode
    1.05
    """
    if isinstance(texts, str) and "=" not in texts:
        return read_factors(Path(texts))
    return StepFactors(**_amounts(texts, _PARTS, name="step_factors", form="decode=1.05", unit=""))


@frozen
class LoadOptions:
    """Requests: how they come, and their lengths in tokens."""

    GROUP: ClassVar[Group] = Group.MAIN

    rate: float | None = declare(
        help="Requests a second that arrive, whatever is under way.",
        unit="",
        metavar="R",
        one_of="load",
    )
    concurrency: int | None = declare(
        help="Requests that are under way at a time: one starts when one ends.",
        least=1,
        one_of="load",
    )
    load: Path | None = declare(
        help="A file of requests: Azure's columns (.csv) or Mooncake's lines (.jsonl).",
        one_of="load",
    )
    log: Path | None = declare(
        help="A .csv of measured requests, which step times are fitted to: arrival_s, "
        "input_tokens, output_tokens, queue_s, ttft_s, tpot_s.",
        one_of="load",
    )
    isl: int = declare(
        help="Tokens of a prompt, or that a turn adds to one.",
        least=1,
        applies_to=(DRAWN,),
        default=1024,
    )
    osl: int = declare(help="Tokens of an output.", least=1, applies_to=(DRAWN,), default=256)
    length_spread: float = declare(
        help="How far lengths spread evenly around both, as a share of them.",
        unit="",
        least=0,
        applies_to=(DRAWN,),
        metavar="SHARE",
        default=0.0,
    )
    requests: int | None = declare(
        help="How many requests.",
        least=1,
        applies_to=(WHOLE,),
        default_text="1000, at least 10 of each concurrent one; all of a file",
    )
    arrivals: Arrivals = declare(
        help="How arrivals are spaced.", applies_to=(OPEN,), default=Arrivals.POISSON
    )
    burstiness: float = declare(
        help="The coefficient of variation of gamma arrivals.",
        unit="",
        metavar="X",
        applies_to=(OPEN,),
        default=1.0,
    )
    turnaround_s: float = declare(
        help="The mean time from the end of a request to the arrival of the next, as in 5ms.",
        name="turnaround",
        unit="s",
        usual_unit="ms",
        least=0,
        applies_to=(CLOSED,),
        default=0.0,
    )
    turns: int = declare(
        help="Turns of a conversation: each has all before it in its prompt.",
        least=1,
        applies_to=(DRAWN,),
        default=1,
    )
    think_s: float = declare(
        help="The mean time from an answer to the next turn, as in 20s.",
        name="think",
        unit="s",
        least=0,
        applies_to=(DRAWN,),
        needs="turns",
        default=0.0,
    )
    shared_prefix: int = declare(
        help="Tokens that all prompts begin with, beside their own.",
        least=0,
        applies_to=(DRAWN,),
        default=0,
    )
    seed: int = declare(
        help="What lengths and arrivals are drawn with.",
        least=0,
        applies_to=(DRAWN,),
        default=0,
    )

    def __post_init__(self) -> None:
        check_options(self)
        check_needs(self)
        absent = {
            DRAWN: self.load is not None or self.log is not None,
            WHOLE: self.log is not None,
            OPEN: self.rate is None,
            CLOSED: self.concurrency is None,
        }
        refuse_unused(self, absent)
        if self.burstiness != 1.0 and self.arrivals is not Arrivals.GAMMA:
            raise ConfigError(
                f"{option('burstiness')} has no effect on {self.arrivals.value} arrivals",
                hint=f"add {option('arrivals')} gamma",
            )

    def longer(self, requests: Requests, least: int) -> Requests:
        """Return the load with ``least`` requests or more, if they are drawn.

        ``requests`` are those that the load makes. A file's are returned as they are.
        """
        is_read = self.load is not None or self.log is not None
        if is_read or requests.rate is None or len(requests) >= least:
            return requests
        return replace(self, requests=least).made()

    def made(self) -> Requests:
        """Return the requests; `ConfigError` where nothing says how they come."""
        if self.load is not None:
            return read_requests(self.load, most=self.requests)
        if self.log is not None:
            return read_log(self.log).requests
        if self.rate is None and self.concurrency is None:
            raise ConfigError(
                "no load is given",
                hint=f"give {option('rate')}, {option('concurrency')} or {option('load')}",
            )
        count = self.requests or max(1000, 10 * (self.concurrency or 0))
        requests = drawn_requests(
            count,
            prompts=Lengths(mean=self.isl, spread=self.length_spread),
            outputs=Lengths(mean=self.osl, spread=self.length_spread),
            rate=self.rate,
            concurrency=self.concurrency,
            arrivals=self.arrivals,
            burstiness=self.burstiness,
            turnaround_s=self.turnaround_s,
            seed=self.seed,
        )
        if self.turns == 1 and not self.shared_prefix:
            return requests
        return in_conversations(
            requests,
            turns=self.turns,
            shared=self.shared_prefix,
            think_s=self.think_s,
            seed=self.seed,
        )


@frozen
class EngineOptions:
    """The engine, and what differs from its defaults."""

    GROUP: ClassVar[Group] = Group.SERVER

    engine: str = declare(
        help="The engine: vllm, sglang or trtllm.", group=Group.MAIN, default="vllm"
    )
    max_sequences: int | None = declare(
        help="Sequences of a batch at most.", least=1, default_text="the engine's"
    )
    max_batched_tokens: int | None = declare(
        help="New tokens of an iteration at most.",
        least=1,
        default_text="the engine's",
    )
    memory_share: float | None = declare(
        help="The share of memory that the engine takes, by its own rule.",
        unit="",
        metavar="SHARE",
        default_text="the engine's",
    )
    host_time_s: float = declare(
        help="What each iteration waits for the host, as in 2ms.",
        name="host_time",
        unit="s",
        usual_unit="ms",
        least=0,
        default_text="0: the engine schedules while the device works",
        default=0.0,
    )

    request_time_s: float = declare(
        help="What the server takes for each request before its engine has it, as in 2ms.",
        name="request_time",
        unit="s",
        usual_unit="ms",
        least=0,
        applies_to=(SENT,),
        default_text="2 ms",
        default=2e-3,
    )
    prompt_token_time_s: float = declare(
        help="What it takes beside for each token of a prompt, as in 4us: to read its text.",
        name="prompt_token_time",
        unit="s",
        usual_unit="us",
        least=0,
        applies_to=(SENT,),
        default_text="4 us",
        default=4e-6,
    )
    plan_ahead: bool = declare(
        help="Plan each iteration while the one before it runs.",
        negatable=True,
        default=True,
    )
    poll_interval: int = declare(
        help="Iterations that decode from one look for new requests to the next, as SGLang's "
        "--scheduler-recv-interval.",
        least=1,
        default=1,
    )
    prefix_caching: bool = declare(
        help="Keep prefixes for requests that begin with the same tokens.",
        negatable=True,
        default=True,
    )
    two_batches: bool = declare(
        help="Run iterations as two halves: one computes while tokens of the other travel to "
        "experts.",
        default=False,
    )
    speculative_tokens: int = declare(
        help="Tokens that are guessed ahead in each iteration.",
        least=0,
        default=0,
    )
    acceptance_rate: float | None = declare(
        help="How likely a guessed token is accepted behind accepted ones.",
        unit="",
        least=0,
        metavar="SHARE",
        needs="speculative_tokens",
    )
    draft_share: float | None = declare(
        help="What a guessed token takes, as a share of an iteration.",
        unit="",
        least=0,
        metavar="SHARE",
        needs="speculative_tokens",
        default_text="that of one of the model's layers",
    )

    def __post_init__(self) -> None:
        check_options(self)
        check_needs(self)
        self._check_speculation()
        if self.memory_share is not None and not 0 < self.memory_share <= 1:
            raise ConfigError(
                f"{option('memory_share')} is {self.memory_share:g}", hint="give 1 or less"
            )

    def _check_speculation(self) -> None:
        if self.speculative_tokens and self.acceptance_rate is None:
            raise ConfigError(
                f"{option('speculative_tokens')} says nothing of how many are accepted",
                hint=f"give {option('acceptance_rate')}, as in 0.7",
            )
        for name in ("acceptance_rate", "draft_share"):
            share: float | None = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ConfigError(f"{option(name)} is {share:g}", hint="give 0 to 1")

    def speculation(self, layers: int | None) -> Speculation | None:
        """Return how the engine guesses tokens of a model, or None."""
        if not self.speculative_tokens or self.acceptance_rate is None:
            return None
        share = self.draft_share
        return Speculation(
            tokens=self.speculative_tokens,
            acceptance=self.acceptance_rate,
            draft_share=(1 / layers if layers else 0.0) if share is None else share,
        )

    @property
    def entry(self) -> Entry:
        """What a server does to a request before its engine has it."""
        return Entry(request_s=self.request_time_s, token_s=self.prompt_token_time_s)

    def changed(self, engine: Engine) -> Engine:
        """Return the engine with what these options change."""
        return replace(
            engine,
            most_sequences=self.max_sequences or engine.most_sequences,
            token_budget=self.max_batched_tokens or engine.token_budget,
            memory_share=self.memory_share or engine.memory_share,
            host_s=self.host_time_s,
            plans_ahead=self.plan_ahead,
            poll_interval=self.poll_interval,
            caches_prefixes=engine.caches_prefixes and self.prefix_caching,
        )


@frozen
class ServeOptions:
    """What is served, on what, by what, and under which load."""

    GROUP: ClassVar[Group] = Group.MAIN

    model_name: str = declare(help="The model.", has_flag=False, default="")
    cluster: str = declare(
        help="The cluster of all replicas: COUNTxPART, as in 8xH100_80GB.",
        metavar="CLUSTER",
        default_text="required",
        default="",
    )
    replicas: int | None = declare(
        help="How many replicas of the model.",
        least=1,
        default_text="as many as the mesh leaves room for",
    )
    prefill_replicas: int = declare(
        help="Replicas beside those that compute prompts alone, and send keys and values on.",
        least=0,
        default=0,
    )
    prefill_mesh: MeshAxes | None = declare(
        help="The mesh of one of these, as in tp=4.",
        parse=parse_mesh,
        metavar="AXIS=N,..",
        needs="prefill_replicas",
        default_text="that of the others",
    )
    router: Router = declare(help="Which replica a request goes to.", default=Router.ROUND_ROBIN)
    slo: Objectives = declare(
        help="What requests should meet, as in ttft=500ms,tpot=40ms.",
        parse=parse_objectives,
        metavar="NAME=TIME,..",
        default=Objectives,
    )
    fidelity: Phase | None = declare(
        help="How steps are predicted.",
        choices=("library", "fused", "compiled"),
        default_text="library on GPUs, fused on TPUs",
    )
    step_factors: StepFactors = declare(
        help="How much longer iterations take than predicted, as in decode=1.05,prompts=0.9, or "
        "the directory of hespas calibrate --serving.",
        parse=parse_factors,
        metavar="PART=X,..|DIR",
        default=StepFactors,
    )
    device_hour_usd: float | None = declare(
        help="What a device costs for an hour.", unit="", metavar="USD"
    )
    load: LoadOptions = field(default_factory=LoadOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    model: ModelOptions = NO_MODEL_OPTIONS
    executor: ExecutorOptions = field(default_factory=ExecutorOptions)

    def __post_init__(self) -> None:
        check_options(self)
        check_needs(self)
        refuse_unused(self.engine, {SENT: self.load.log is not None})
        if not self.cluster:
            raise ConfigError(
                "no cluster is given", hint=f"give {option('cluster')}, as in 8xH100_80GB"
            )
