"""Gemma 2 and 3: windows in most layers, norms before and after, one matrix for tokens in and out.

Gemma 2 bounds scores and logits, so that its attention is not one of cuDNN's fused kernels; Gemma 3
has norms of queries and keys instead. Sources: Gemma Team, Gemma 2, 2024, tables 1 and 2, and
Gemma 3 Technical Report, 2025, table 1, with the configurations published with the weights; Gemma 3
without what takes in images.
"""

from __future__ import annotations

from functools import partial

from hespas.models.families.listing import listed
from hespas.models.language import LanguageModel, Sizes, Style

_BOTH = partial(Style, activation="gelu", tied=True, norms_after=True)
_GEMMA_2 = _BOTH(window=4096, global_every=2, score_cap=50.0, logit_cap=30.0)
_GEMMA_3 = _BOTH(window=1024, global_every=6, norms_of_heads=True)
_two = partial(Sizes, vocabulary=256000)
_three = partial(Sizes, vocabulary=262144, rope_theta=1000000)

_SIZES = (
    (
        "gemma2-2b",
        "Gemma 2 2B",
        2.614e9,
        _GEMMA_2,
        _two(embedding=2304, heads=8, kv_heads=4, head_size=256, layers=26, mlp=9216),
    ),
    (
        "gemma2-9b",
        "Gemma 2 9B",
        9.242e9,
        _GEMMA_2,
        _two(embedding=3584, heads=16, kv_heads=8, head_size=256, layers=42, mlp=14336),
    ),
    (
        "gemma2-27b",
        "Gemma 2 27B",
        27.227e9,
        _GEMMA_2,
        _two(embedding=4608, heads=32, kv_heads=16, layers=46, mlp=36864),
    ),
    (
        "gemma3-12b",
        "Gemma 3 12B",
        11.766e9,
        _GEMMA_3,
        _three(embedding=3840, heads=16, kv_heads=8, head_size=256, layers=48, mlp=15360),
    ),
    (
        "gemma3-27b",
        "Gemma 3 27B",
        27.009e9,
        _GEMMA_3,
        _three(embedding=5376, heads=32, kv_heads=16, layers=62, mlp=21504),
    ),
)

MODELS = tuple(
    model
    for name, title, parameters, style, sizes in _SIZES
    for model in listed(
        name,
        title,
        parameters,
        partial(LanguageModel, sizes_of_layers=sizes, style=style),
    )
)
