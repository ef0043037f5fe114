"""``hespas serve``: latencies and throughput of a model under load."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from hespas.cli import flags
from hespas.cli.answers import Answer, answering
from hespas.report.serving import serving_text
from hespas.serve.options import ServeOptions
from hespas.serve.serving import serving

_NOT_SERVED = (
    *("executor", "scheduler", "batch", "global_batch", "micro_batch", "micro_batches"),
    *("sequence", "remat", "scan", "prefill", "decode", "place"),
)
"""Options of models and executors that mean nothing here."""


@answering(
    "serve",
    example="hespas serve Qwen/Qwen3-8B --cluster 8xH100_80GB --mesh tp=2 --rate 20",
)
@click.argument("model")
@flags.derived(ServeOptions, without=_NOT_SERVED)
def serve(model: str, **given: Any) -> Answer:
    """Predict latencies and throughput of MODEL served under a load.

    Steps of prefill and decode are predicted at some sizes; an engine's scheduler is simulated,
    iteration by iteration, on every replica.
    """
    report = serving(flags.built(ServeOptions, {**given, "model_name": model}))
    return Answer(text=lambda: serving_text(report), json=lambda: msgspec.to_builtins(report))
