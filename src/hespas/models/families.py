"""Short names of language models, and steps like MaxText's.

A short name means a published configuration, or the fields of one for models that have none.
Sources: H. Touvron et al., Llama 2, 2023, table 1; A. Grattafiori et al., The Llama 3 Herd of
Models, 2024, table 3; T. Brown et al., Language Models are Few-Shot Learners, 2020, table 2.1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from hespas.base.configs import CONFIGS
from hespas.models.architecture import Sizes, Style
from hespas.models.language import LanguageModel
from hespas.models.model import Model, parse_mesh
from hespas.models.runs import Training

_FSDP_4, _FSDP_64 = map(parse_mesh, ("fsdp=4", "fsdp=64"))
_llama3 = partial(Sizes, vocabulary=128256, rope_theta=500000)
_LLAMA2_7B = Sizes(embedding=4096, heads=32, kv_heads=32, layers=32, mlp=11008, vocabulary=32000)
_LLAMA3_8B = _llama3(embedding=4096, heads=32, kv_heads=8, layers=32, mlp=14336)
_LLAMA3_70B = _llama3(embedding=8192, heads=64, kv_heads=8, layers=80, mlp=28672)
_LLAMA3_405B = _llama3(embedding=16384, heads=128, kv_heads=8, layers=126, mlp=53248)


def _square(embedding: int, heads: int, layers: int, mlp: int) -> Sizes:
    return _llama3(embedding=embedding, heads=heads, kv_heads=heads, layers=layers, mlp=mlp)


_LIKE, _STEP = "Llama-3-like training step, {} parameters", "{} training step, {} parameters"
_OF_MAXTEXT = (
    ("llama3-100m", _LIKE.format("190.7 M"), _square(576, 9, 7, 2016), _FSDP_4),
    ("llama3-200m", _LIKE.format("341.5 M"), _square(832, 13, 10, 2912), _FSDP_4),
    ("llama3-500m", _LIKE.format("813.3 M"), _square(1280, 20, 16, 4480), _FSDP_4),
    ("llama3-1b", _LIKE.format("1.767 B"), _square(1792, 28, 22, 6272), _FSDP_4),
    ("llama3-2b", _LIKE.format("3.174 B"), _square(2240, 35, 28, 7840), _FSDP_4),
    ("llama3-3b", _LIKE.format("4.749 B"), _square(2624, 41, 32, 9184), _FSDP_4),
    ("llama3-8b", _STEP.format("Llama-3-8B", "8.030 B"), _LLAMA3_8B, _FSDP_4),
    ("llama3-70b", _STEP.format("Llama-3-70B", "70.554 B"), _LLAMA3_70B, _FSDP_64),
    ("llama3-405b", _STEP.format("Llama-3-405B", "405.853 B"), _LLAMA3_405B, _FSDP_64),
    (
        "llama2-7b",
        "Llama-2-7B training step, sharded in the node, data parallel across nodes",
        _LLAMA2_7B,
        parse_mesh("data=2,fsdp=4"),
    ),
    (
        "llama2-7b-data-parallel",
        "Llama-2-7B training step, every device with all weights",
        _LLAMA2_7B,
        parse_mesh("data=128"),
    ),
)
"""Training steps as MaxText's, from which those of the published comparison were exported."""


def _maxtext() -> Iterator[Model]:
    style = Style(query_scale=1.0, one_hot=True, documents=True)
    for name, summary, sizes, mesh in _OF_MAXTEXT:
        settings = LanguageModel(sizes_of_layers=sizes, style=style, run=Training(mesh=mesh))
        yield Model(name=name, summary=summary, settings=settings)


MODELS = tuple(_maxtext())


SHORT_NAMES: Mapping[str, str | Mapping[str, Any]] = json.loads(
    (CONFIGS / "short_names.json").read_bytes()
)
"""Published configurations, or fields, by name; the training steps above come first.

GPT-3's 50,257 tokens are padded to 51,200, so that every usual number of tensor-parallel devices
divides them, as Megatron does, and counted so; attention is dense in all layers."""
