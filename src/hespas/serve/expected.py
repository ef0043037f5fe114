"""How far predictions of published points of an engine were off."""

from __future__ import annotations

from functools import cache

import msgspec

from hespas.compile.targets import compute_capability
from hespas.hardware.presets import PRESETS_DIRECTORY
from hespas.serve.answer import PublishedErrors

_FILE = PRESETS_DIRECTORY / "published" / "serving_errors.json"


@cache
def _errors() -> dict[str, PublishedErrors]:
    return msgspec.json.decode(_FILE.read_bytes(), type=dict[str, PublishedErrors])


def published_errors(engine: str, part: str) -> PublishedErrors | None:
    """Return the errors of an engine's published points; None where it has none.

    All of them are of NVIDIA's parts.

    >>> published_errors("vllm", "H200_141GB").points > 20
    True
    >>> published_errors("mine", "H200_141GB"), published_errors("vllm", "MI300X")
    (None, None)
    """
    return _errors().get(engine) if compute_capability(part) is not None else None
