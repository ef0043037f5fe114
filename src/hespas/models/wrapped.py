"""The language model inside of a configuration that also has parts for images or sound."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hespas.models.fields import Fields

_PARTS = ("thinker_config", "text_config", "llm_config", "language_config")
"""Where a configuration has its language model: the first that there is."""
_BESIDE = (
    *("vision_config", "audio_config", "vision_tower", "mm_vision_tower"),
    *("img_processor", "audio_processor", "embd_layer"),
)
_QUANTISED = ("quantization_config",)
"""Where a whole file says how weights are stored. What wraps a model of its own library also says
whether its embeddings are tied; what wraps another's (``llm_config``) leaves that to it."""
LEFT_OUT = "the model is the language model alone: what takes in images or sound is left out"
_DEFAULTS = Path(__file__).parents[1] / "configs" / "decoder_defaults.json"


def language_part(fields: Fields) -> tuple[Fields, str]:
    """Return the fields of the language model, and its ``model_type``.

    transformers writes of a part the fields alone that differ from its class' defaults.
    """
    family, part = fields.text("model_type"), fields
    while name := next((name for name in _PARTS if part.values.get(name) is not None), None):
        inner = part.part(name)
        values = dict(inner.values)
        shared = _QUANTISED if name == "llm_config" else (*_QUANTISED, "tie_word_embeddings")
        own = {key: part.values.get(key) for key in shared}
        values |= {key: value for key, value in own.items() if value is not None}
        part = replace(inner, values=values)
        family = part.text("model_type", default=family)
    if part is not fields:
        part = replace(part, defaults=_defaults().get(family.removesuffix("_text"), {}))
    return part, family


def notes_of(fields: Fields, part: Fields) -> list[str]:
    """Return what the model leaves out of, or adds to, its configuration.

    ``part`` are the fields of the language model, after they were read.
    """
    is_wrapped = part is not fields or any(fields.values.get(name) for name in _BESIDE)
    notes = [LEFT_OUT] if is_wrapped else []
    assumed = [
        f"{name} = {json.dumps(part.defaults[name])}"
        for name in sorted(part.assumed)
        if part.defaults[name] is not False
    ]
    if assumed:
        notes.append(
            f"the model is of fields that its file does not have: {', '.join(assumed)}, as in "
            "transformers 5.24"
        )
    return notes


@cache
def _defaults() -> Mapping[str, Mapping[str, Any]]:
    return json.loads(_DEFAULTS.read_bytes())
