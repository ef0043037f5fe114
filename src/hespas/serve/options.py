"""The options of serving, and what is refused before anything is predicted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from hespas.base.fields import Group, Use, check_options, declare, parse_pairs, refuse_unused
from hespas.base.suggest import suggestion
from hespas.base.units import parse_quantity
from hespas.errors import ConfigError, option
from hespas.serve.answer import Objectives
from hespas.serve.engine import Engine
from hespas.serve.load import Arrivals, Lengths, Requests, drawn_requests, read_requests
from hespas.serve.simulation import Router
from hespas.sources.options import NO_MODEL_OPTIONS, ModelOptions
from hespas.study.executor import ExecutorOptions, Phase

OPEN = Use(f" without {option('rate')}", "add it")
CLOSED = Use(f" without {option('concurrency')}", "add it")
DRAWN = Use(" on a load from a file", "drop it: the file has what it says")
_OBJECTIVES = ("ttft", "tpot", "latency")


def parse_objectives(texts: Iterable[str] | str) -> Objectives:
    """Return the objectives of texts such as ``ttft=500ms,tpot=40ms``.

    >>> parse_objectives("ttft=500ms,tpot=40ms").ttft_s
    0.5
    """
    pieces = texts.split(",") if isinstance(texts, str) else texts
    pairs = parse_pairs(pieces, name="slo", form="ttft=500ms,tpot=40ms")
    times_s: dict[str, float] = {}
    for name, text in pairs.items():
        if name not in _OBJECTIVES:
            raise ConfigError(f"{option('slo')} names {name!r}", hint=suggestion(name, _OBJECTIVES))
        times_s[f"{name}_s"] = parse_quantity(text, "s", location=option("slo"))
        if times_s[f"{name}_s"] <= 0:
            raise ConfigError(f"{option('slo')} {name} is {text}", hint="give more than 0")
    return Objectives(**times_s)


@dataclass(frozen=True, slots=True, kw_only=True)
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
        metavar="N",
        one_of="load",
    )
    load: Path | None = declare(
        help="A file of requests: Azure's columns (.csv) or Mooncake's lines (.jsonl).",
        metavar="FILE",
        one_of="load",
    )
    isl: int = declare(
        help="Tokens of a prompt.", least=1, metavar="N", applies_to=(DRAWN,), default=1024
    )
    osl: int = declare(
        help="Tokens of an output.", least=1, metavar="N", applies_to=(DRAWN,), default=256
    )
    length_spread: float = declare(
        help="How far lengths spread evenly around both, as a share of them.",
        applies_to=(DRAWN,),
        metavar="SHARE",
        default=0.0,
    )
    requests: int | None = declare(
        help="How many requests.",
        least=1,
        metavar="N",
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
        parse=partial(parse_quantity, unit="s"),
        metavar="TIME",
        applies_to=(CLOSED,),
        default=0.0,
    )
    seed: int = declare(
        help="What lengths and arrivals are drawn with.",
        least=0,
        metavar="N",
        applies_to=(DRAWN,),
        default=0,
    )

    def __post_init__(self) -> None:
        check_options(self)
        absent = {
            DRAWN: self.load is not None,
            OPEN: self.rate is None,
            CLOSED: self.concurrency is None,
        }
        refuse_unused(self, absent)
        if self.burstiness != 1.0 and self.arrivals is not Arrivals.GAMMA:
            raise ConfigError(
                f"{option('burstiness')} has no effect on {self.arrivals.value} arrivals",
                hint=f"add {option('arrivals')} gamma",
            )

    def made(self) -> Requests:
        """Return the requests; `ConfigError` where nothing says how they come."""
        if self.load is not None:
            return read_requests(self.load, most=self.requests)
        if self.rate is None and self.concurrency is None:
            raise ConfigError(
                "no load is given",
                hint=f"give {option('rate')}, {option('concurrency')} or {option('load')}",
            )
        count = self.requests or max(1000, 10 * (self.concurrency or 0))
        return drawn_requests(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The engine, and what differs from its defaults."""

    GROUP: ClassVar[Group] = Group.ENGINE

    engine: str = declare(
        help="The engine: vllm, sglang or trtllm.", group=Group.MAIN, default="vllm"
    )
    max_sequences: int | None = declare(
        help="Sequences of a batch at most.", least=1, metavar="N", default_text="the engine's"
    )
    max_batched_tokens: int | None = declare(
        help="New tokens of an iteration at most.",
        least=1,
        metavar="N",
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
        parse=partial(parse_quantity, unit="s"),
        metavar="TIME",
        default_text="0: the engine schedules while the device works",
        default=0.0,
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.memory_share is not None and not 0 < self.memory_share <= 1:
            raise ConfigError(
                f"{option('memory_share')} is {self.memory_share:g}", hint="give 1 or less"
            )

    def changed(self, engine: Engine) -> Engine:
        """Return the engine with what these options change."""
        return replace(
            engine,
            most_sequences=self.max_sequences or engine.most_sequences,
            token_budget=self.max_batched_tokens or engine.token_budget,
            memory_share=self.memory_share or engine.memory_share,
            host_s=self.host_time_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What is served, on what, by what, and under which load."""

    GROUP: ClassVar[Group] = Group.MAIN

    model_name: str = declare(help="The model.", has_flag=False, default="")
    cluster: str = declare(
        help="The cluster of all replicas: COUNTxPART, as in 8xH100_80GB.",
        metavar="CLUSTER",
        default="",
    )
    replicas: int | None = declare(
        help="How many replicas of the model.",
        least=1,
        metavar="N",
        default_text="as many as the mesh leaves room for",
    )
    router: Router = declare(help="Which replica a request goes to.", default=Router.ROUND_ROBIN)
    slo: Objectives = declare(
        help="What requests should meet, as in ttft=500ms,tpot=40ms.",
        parse=parse_objectives,
        metavar="NAME=TIME,..",
        default=Objectives,
    )
    fidelity: Phase = declare(
        help="How steps are predicted.",
        choices=("library", "fused", "compiled"),
        default=Phase.LIBRARY,
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
        if not self.cluster:
            raise ConfigError(
                "no cluster is given", hint=f"give {option('cluster')}, as in 8xH100_80GB"
            )
