"""DeepSeek-V3: latent attention, and 256 experts of which each token chooses 8 beside a shared one.

Source: DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 4.2, and the configuration
published with its weights. Left out: the module that predicts a second token, and, unless they are
asked for, the restriction of a token's experts to four of eight groups, and 8-bit products. Experts
are balanced by a bias that the step does not change.
"""

from __future__ import annotations

from functools import partial

from hespas.models.families.listing import listed
from hespas.models.language import LanguageModel, Latent, Routing, Sizes, Style

MODELS = tuple(
    listed(
        "deepseek-v3",
        "DeepSeek-V3",
        671.026e9,
        partial(
            LanguageModel,
            sizes_of_layers=Sizes(
                embedding=7168, heads=128, kv_heads=0, layers=61, mlp=18432, vocabulary=129280
            ),
            style=Style(),
            latent=Latent(query_rank=1536, kv_rank=512, rope_size=64, value_size=128),
            routing=Routing(
                experts=256,
                chosen=8,
                expert_mlp=2048,
                shared_experts=1,
                dense_layers=3,
                gate="sigmoid",
            ),
        ),
    )
)
