"""Llama 2, Llama 3 and Mistral 7B, and Llama-3-like models of a published comparison.

Steps of the first group are trained as MaxText's, from which published Llama-3-like programs were
exported: those of 100 M to 3 B have as many heads of keys and values as of queries. Llama 3 is
fully sharded, Llama 2 in the node alone, or not at all.

Sources: H. Touvron et al., Llama 2, 2023, table 1 and the published configurations; A. Grattafiori
et al., The Llama 3 Herd of Models, 2024, table 3; A. Jiang et al., Mistral 7B, 2023, table 1. The
window of Mistral's attention, 4096 tokens, is left out: it decides nothing below it.
"""

from __future__ import annotations

from functools import partial

from hespas.models.families.listing import listed, training
from hespas.models.language import LanguageModel, Sizes, Style, Training
from hespas.models.model import MeshAxes, parse_mesh

_MAXTEXT = Style(query_scale=1.0, one_hot=True, documents=True)
_llama2 = partial(Sizes, vocabulary=32000)
_llama3 = partial(Sizes, vocabulary=128256, rope_theta=500000)
_large = partial(_llama3, kv_heads=8)
_7B = _llama2(embedding=4096, heads=32, kv_heads=32, layers=32, mlp=11008)
_8B = _large(embedding=4096, heads=32, layers=32, mlp=14336)
_70B = _large(embedding=8192, heads=64, layers=80, mlp=28672)
_405B = _large(embedding=16384, heads=128, layers=126, mlp=53248)
_FSDP_4, _FSDP_64 = parse_mesh("fsdp=4"), parse_mesh("fsdp=64")
_LIKE, _STEP = "Llama-3-like training step, {} parameters", "{} training step, {} parameters"


def _square(embedding: int, heads: int, layers: int, mlp: int) -> Sizes:
    return _llama3(embedding=embedding, heads=heads, kv_heads=heads, layers=layers, mlp=mlp)


def _settings(sizes: Sizes, mesh: MeshAxes) -> LanguageModel:
    return LanguageModel(sizes_of_layers=sizes, style=_MAXTEXT, run=Training(mesh=mesh))


_PUBLISHED = (
    ("llama3-100m", _LIKE.format("190.7 M"), _square(576, 9, 7, 2016), _FSDP_4),
    ("llama3-200m", _LIKE.format("341.5 M"), _square(832, 13, 10, 2912), _FSDP_4),
    ("llama3-500m", _LIKE.format("813.3 M"), _square(1280, 20, 16, 4480), _FSDP_4),
    ("llama3-1b", _LIKE.format("1.767 B"), _square(1792, 28, 22, 6272), _FSDP_4),
    ("llama3-2b", _LIKE.format("3.174 B"), _square(2240, 35, 28, 7840), _FSDP_4),
    ("llama3-3b", _LIKE.format("4.749 B"), _square(2624, 41, 32, 9184), _FSDP_4),
    ("llama3-8b", _STEP.format("Llama-3-8B", "8.030 B"), _8B, _FSDP_4),
    ("llama3-70b", _STEP.format("Llama-3-70B", "70.554 B"), _70B, _FSDP_64),
    ("llama3-405b", _STEP.format("Llama-3-405B", "405.853 B"), _405B, _FSDP_64),
    (
        "llama2-7b",
        "Llama-2-7B training step, sharded in the node, data parallel across nodes",
        _7B,
        parse_mesh("data=2,fsdp=4"),
    ),
    (
        "llama2-7b-data-parallel",
        "Llama-2-7B training step, every device with all weights",
        _7B,
        parse_mesh("data=128"),
    ),
)
_SIZES = (
    ("llama2-7b", "Llama 2 7B", 6.738e9, _7B),
    (
        "llama2-70b",
        "Llama 2 70B",
        68.977e9,
        _llama2(embedding=8192, heads=64, kv_heads=8, layers=80, mlp=28672),
    ),
    (
        "mistral-7b",
        "Mistral 7B",
        7.242e9,
        _llama2(embedding=4096, heads=32, kv_heads=8, layers=32, mlp=14336),
    ),
    ("llama3-8b", "Llama 3 8B", 8.030e9, _8B),
    ("llama3-70b", "Llama 3 70B", 70.554e9, _70B),
    ("llama3-405b", "Llama 3 405B", 405.853e9, _405B),
)
_TRAINED = frozenset(name for name, *_ in _PUBLISHED)
_3_1_405B = partial(LanguageModel, sizes_of_layers=_405B, style=Style())
MODELS = (
    *(training(name, summary, _settings(sizes, mesh)) for name, summary, sizes, mesh in _PUBLISHED),
    *(
        model
        for name, title, parameters, sizes in _SIZES
        for model in listed(
            name,
            title,
            parameters,
            partial(LanguageModel, sizes_of_layers=sizes, style=Style()),
            trains=name not in _TRAINED,
        )
    ),
    # It trains as other families do.
    next(listed("llama3.1-405b", "Llama 3.1 405B", 405.853e9, _3_1_405B, sequence=8192)),
)
