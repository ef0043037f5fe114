"""How far predictions of published points of an engine were off."""

from __future__ import annotations

from hespas.compile.targets import compute_capability
from hespas.prediction.figures.expected import engine_errors
from hespas.prediction.figures.schema import PublishedErrors


def published_errors(engine: str, part: str) -> PublishedErrors | None:
    """Return an engine's errors at published points, if any.

    All of them are of NVIDIA's parts.

    >>> published_errors("vllm", "H200_141GB").points > 20
    True
    >>> published_errors("mine", "H200_141GB"), published_errors("vllm", "MI300X")
    (None, None)
    """
    return engine_errors().get(engine) if compute_capability(part) is not None else None
