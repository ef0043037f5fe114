"""Keyword arguments of the Python API for a served load.

Each key is the name of a field of `hespas.serve.options.ServeOptions`, or of a part of it, which
says what it does. Texts are read as on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict


class ServingOverrides(TypedDict, total=False):
    """The options of a served load, of its engine and of its model."""

    mesh: str | None
    replicas: int | None
    prefill_replicas: int
    prefill_mesh: str | None
    router: str | None
    slo: str | None
    fidelity: str | None
    step_factors: str | None
    device_hour_usd: float | None
    rate: float | None
    concurrency: int | None
    load: Path | None
    log: Path | None
    isl: int
    osl: int
    length_spread: float
    requests: int | None
    arrivals: str | None
    burstiness: float
    turnaround_s: float | str | None
    turns: int
    think_s: float | str | None
    shared_prefix: int
    seed: int
    engine: str | None
    max_sequences: int | None
    max_batched_tokens: int | None
    memory_share: float | None
    host_time_s: float | str | None
    request_time_s: float | str | None
    prompt_token_time_s: float | str | None
    plan_ahead: bool
    poll_interval: int
    prefix_caching: bool
    two_batches: bool
    speculative_tokens: int
    acceptance_rate: float | None
    draft_share: float | None
    attention: str | None
    dtype: str | None
    settings: Mapping[str, str | int | float] | None
    software: str | None
    workers: int | None
    time_limit_s: float | str | None
