"""Llama 2, Llama 3 and Mistral 7B: prefill and decode. Their training is `hespas.models.llama`'s.

Sources: H. Touvron et al., Llama 2, 2023, table 1 and the published configurations; A. Grattafiori
et al., The Llama 3 Herd of Models, 2024, table 3; A. Jiang et al., Mistral 7B, 2023, table 1. The
window of Mistral's attention, 4096 tokens, is left out: it decides nothing below it.
"""

from __future__ import annotations

from functools import partial

from hespas.models.families.listing import listed
from hespas.models.language import LanguageModel, Sizes, Style

_llama2 = partial(Sizes, vocabulary=32000)
_llama3 = partial(Sizes, vocabulary=128256, kv_heads=8)
_ROPE_2, _ROPE_3 = Style(rope_theta=10000.0), Style(rope_theta=500000.0)

_SIZES = (
    (
        "llama2-7b",
        "Llama 2 7B",
        6.738e9,
        _ROPE_2,
        _llama2(embedding=4096, heads=32, kv_heads=32, layers=32, mlp=11008),
    ),
    (
        "llama2-70b",
        "Llama 2 70B",
        68.977e9,
        _ROPE_2,
        _llama2(embedding=8192, heads=64, kv_heads=8, layers=80, mlp=28672),
    ),
    (
        "mistral-7b",
        "Mistral 7B",
        7.242e9,
        _ROPE_2,
        _llama2(embedding=4096, heads=32, kv_heads=8, layers=32, mlp=14336),
    ),
    (
        "llama3-8b",
        "Llama 3 8B",
        8.030e9,
        _ROPE_3,
        _llama3(embedding=4096, heads=32, layers=32, mlp=14336),
    ),
    (
        "llama3-70b",
        "Llama 3 70B",
        70.554e9,
        _ROPE_3,
        _llama3(embedding=8192, heads=64, layers=80, mlp=28672),
    ),
    (
        "llama3-405b",
        "Llama 3 405B",
        405.853e9,
        _ROPE_3,
        _llama3(embedding=16384, heads=128, layers=126, mlp=53248),
    ),
)
_HAS_TRAINING = frozenset({"llama2-70b", "mistral-7b"})
"""Those that train here, as other families do."""

_STEPS = tuple(
    model
    for name, title, parameters, style, sizes in _SIZES
    for model in listed(
        name,
        title,
        parameters,
        partial(LanguageModel, sizes_of_layers=sizes, style=style),
        trains=name in _HAS_TRAINING,
    )
)
_405B = next(
    listed(
        "llama3.1-405b",
        "Llama 3.1 405B",
        405.853e9,
        partial(LanguageModel, sizes_of_layers=_SIZES[-1][-1], style=_ROPE_3),
        sequence=8192,
    )
)
"""It trains as other families do; the step of `llama3-405b` is of the form that was published."""
MODELS = (*_STEPS, _405B)
