"""How far predictions of published points of an engine were off."""

from __future__ import annotations

from functools import cache

import msgspec

from hespas.hardware.presets import PRESETS_DIRECTORY
from hespas.serve.answer import PublishedErrors

_FILE = PRESETS_DIRECTORY / "published" / "serving_errors.json"


@cache
def _errors() -> dict[str, PublishedErrors]:
    return msgspec.json.decode(_FILE.read_bytes(), type=dict[str, PublishedErrors])


def published_errors(engine: str) -> PublishedErrors | None:
    """Return the errors of an engine's published points; None where it has none.

    >>> published_errors("vllm").points > 20, published_errors("mine") is None
    (True, True)
    """
    return _errors().get(engine)
