"""``hespas serve``: latencies and throughput of models under load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hespas.cli import flags
from hespas.cli.answers import Answer, answering
from hespas.report.serving import serving_text, together_text
from hespas.serve.options import NOT_SERVED, ServeOptions
from hespas.serve.serving import serving
from hespas.serve.together import is_file_of_models, serving_together


@answering(
    "serve",
    example="hespas serve Qwen/Qwen3-8B --cluster 8xH100_80GB --mesh tp=2 --rate 20",
)
@flags.model_argument
@flags.derived(ServeOptions, without=NOT_SERVED)
def serve(model: str, **values: Any) -> Answer:
    """Predict latencies and throughput of MODEL served under a load.

    Steps of prefill and decode are predicted at some sizes; an engine's scheduler is simulated,
    iteration by iteration, on every replica. MODEL is one, or a .yaml of several that share the
    cluster, each with its load.
    """
    if is_file_of_models(model):
        together = serving_together(Path(model), flags.built(ServeOptions, values))
        return Answer(
            text=lambda: together_text(together), json=lambda: msgspec.to_builtins(together)
        )
    report = serving(flags.built(ServeOptions, {**values, "model_name": model}))
    return Answer(text=lambda: serving_text(report), json=lambda: msgspec.to_builtins(report))
