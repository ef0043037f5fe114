"""Mixtral: Mistral's attention, and layers of eight experts of which each token chooses two.

Sources: A. Jiang et al., Mixtral of Experts, 2024, table 1; Mistral AI, Mixtral 8x22B, 2024, and
the configuration published with its weights.
"""

from __future__ import annotations

from functools import partial

from hespas.models.families.listing import listed
from hespas.models.language import LanguageModel, Routing, Sizes, Style

_sizes = partial(Sizes, kv_heads=8, rope_theta=1000000)
_SIZES = (
    (
        "mixtral-8x7b",
        "Mixtral 8x7B",
        46.703e9,
        _sizes(embedding=4096, heads=32, layers=32, mlp=14336, vocabulary=32000),
    ),
    (
        "mixtral-8x22b",
        "Mixtral 8x22B",
        140.630e9,
        _sizes(embedding=6144, heads=48, layers=56, mlp=16384, vocabulary=32768),
    ),
)

MODELS = tuple(
    model
    for name, title, parameters, sizes in _SIZES
    for model in listed(
        name,
        title,
        parameters,
        partial(
            LanguageModel,
            sizes_of_layers=sizes,
            style=Style(),
            routing=Routing(experts=8, chosen=2, expert_mlp=sizes.mlp),
        ),
    )
)
