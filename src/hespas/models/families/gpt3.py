"""GPT-3: layer norms with biases, learned positions, dense layers of four times the width.

Source: T. Brown et al., Language Models are Few-Shot Learners, 2020, table 2.1. Its 50,257 tokens
are padded to 51,200, which every usual number of tensor-parallel devices divides, as Megatron does,
and counted so; attention is dense in all layers.
"""

from __future__ import annotations

from functools import partial

from hespas.models.families.listing import listed
from hespas.models.language import LanguageModel, Sizes, Style

_CONTEXT = 2048
_STYLE = Style(
    norm="layer",
    activation="gelu",
    gated=False,
    biases=True,
    tied=True,
    learned_positions=_CONTEXT,
)


def _sizes(embedding: int, heads: int, layers: int) -> Sizes:
    return Sizes(
        embedding=embedding,
        heads=heads,
        kv_heads=heads,
        head_size=embedding // heads,
        layers=layers,
        mlp=4 * embedding,
        vocabulary=51200,
        rope_theta=0,
    )


_SIZES = (
    ("gpt3-125m", "GPT-3 Small", 125.950e6, _sizes(768, 12, 12)),
    ("gpt3-350m", "GPT-3 Medium", 356.837e6, _sizes(1024, 16, 24)),
    ("gpt3-760m", "GPT-3 Large", 761.748e6, _sizes(1536, 16, 24)),
    ("gpt3-1.3b", "GPT-3 XL", 1.318e9, _sizes(2048, 16, 24)),
    ("gpt3-2.7b", "GPT-3 2.7B", 2.654e9, _sizes(2560, 32, 32)),
    ("gpt3-6.7b", "GPT-3 6.7B", 6.662e9, _sizes(4096, 32, 32)),
    ("gpt3-13b", "GPT-3 13B", 12.858e9, _sizes(5120, 40, 40)),
    ("gpt3-175b", "GPT-3 175B", 174.616e9, _sizes(12288, 96, 96)),
)

MODELS = tuple(
    model
    for name, title, parameters, sizes in _SIZES
    for model in listed(
        name,
        title,
        parameters,
        partial(LanguageModel, sizes_of_layers=sizes, style=_STYLE),
        sequence=_CONTEXT,
    )
)
