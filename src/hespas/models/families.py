"""Families of language models: the sizes of each, from which its steps are listed.

Sources: H. Touvron et al., Llama 2, 2023, table 1 and the published configurations; A. Grattafiori
et al., The Llama 3 Herd of Models, 2024, table 3; A. Jiang et al., Mistral 7B, 2023, table 1,
without the window of its attention, 4096 tokens, which decides nothing below it; T. Brown et al.,
Language Models are Few-Shot Learners, 2020, table 2.1; A. Jiang et al., Mixtral of Experts, 2024,
table 1; Mistral AI, Mixtral 8x22B, 2024; DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section
4.2; Gemma Team, Gemma 2, 2024, tables 1 and 2, and Gemma 3 Technical Report, 2025, table 1, without
what takes in images; and the configurations published with the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from hespas.models.architecture import Latent, Routing, RoutingStyle, Sizes, Style
from hespas.models.language import LanguageModel
from hespas.models.model import MeshAxes, Model, parse_mesh
from hespas.models.runs import Decode, Prefill, Training

_FSDP_4, _FSDP_8, _FSDP_64 = map(parse_mesh, ("fsdp=4", "fsdp=8", "fsdp=64"))
_LARGE = 30e9
"""Parameters from which the states of training do not fit the memory of eight devices."""
_DEVICE_BYTES = 70e9
_BYTES = 2


def listed(
    name: str,
    title: str,
    parameters: float,
    model: Callable[..., LanguageModel],
    *,
    trains: bool = True,
    sequence: int = 4096,
) -> Iterator[Model]:
    """Yield the steps of a model; ``model(run=..)`` makes its settings.

    ``parameters`` is the count that was published; ``trains`` is False for a model whose training
    step is another.
    """
    count = f"{parameters / 1e9:.3f} B parameters"
    if trains:
        run = Training(mesh=_FSDP_64 if parameters > _LARGE else _FSDP_8, sequence=sequence)
        summary = f"{title} training step, {count}"
        yield Model(name=name, summary=summary, settings=model(run=run))
    alone = model(run=Prefill(mesh=MeshAxes(axes=(("tp", 1),))))
    devices = 1
    while parameters * _BYTES / devices > _DEVICE_BYTES and devices < alone.sizes["kv_heads"]:
        devices *= 2
    mesh = MeshAxes(axes=(("tp", devices),))
    yield Model(
        name=f"{name}-prefill",
        summary=f"{title} on prompts, whose keys and values fill a cache, {count}",
        settings=replace(alone, run=Prefill(mesh=mesh)),
    )
    yield Model(
        name=f"{name}-decode",
        summary=f"{title} making a token for each sequence of a cache, {count}",
        settings=replace(alone, run=Decode(mesh=mesh)),
    )


def _family(
    *rows: tuple[str, str, float, Sizes], sequence: int = 4096, **parts: Any
) -> Iterator[Model]:
    """Yield the steps of models of the same ``parts``: names, titles, parameters and sizes."""
    of_maxtext = {name for name, *_ in _OF_MAXTEXT}
    for name, title, parameters, sizes in rows:
        model = partial(LanguageModel, sizes_of_layers=sizes, **parts)
        trains = name not in of_maxtext
        yield from listed(name, title, parameters, model, trains=trains, sequence=sequence)


_llama2 = partial(Sizes, vocabulary=32000)
_llama3 = partial(Sizes, vocabulary=128256, rope_theta=500000)
_LLAMA2_7B = _llama2(embedding=4096, heads=32, kv_heads=32, layers=32, mlp=11008)
_LLAMA2_70B = _llama2(embedding=8192, heads=64, kv_heads=8, layers=80, mlp=28672)
_MISTRAL_7B = _llama2(embedding=4096, heads=32, kv_heads=8, layers=32, mlp=14336)
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
_LLAMA = (
    ("llama2-7b", "Llama 2 7B", 6.738e9, _LLAMA2_7B),
    ("llama2-70b", "Llama 2 70B", 68.977e9, _LLAMA2_70B),
    ("mistral-7b", "Mistral 7B", 7.242e9, _MISTRAL_7B),
    ("llama3-8b", "Llama 3 8B", 8.030e9, _LLAMA3_8B),
    ("llama3-70b", "Llama 3 70B", 70.554e9, _LLAMA3_70B),
    ("llama3-405b", "Llama 3 405B", 405.853e9, _LLAMA3_405B),
)


def _maxtext() -> Iterator[Model]:
    style = Style(query_scale=1.0, one_hot=True, documents=True)
    for name, summary, sizes, mesh in _OF_MAXTEXT:
        settings = LanguageModel(sizes_of_layers=sizes, style=style, run=Training(mesh=mesh))
        yield Model(name=name, summary=summary, settings=settings)


def _llama31() -> Model:
    model = partial(LanguageModel, sizes_of_layers=_LLAMA3_405B, style=Style())
    return next(listed("llama3.1-405b", "Llama 3.1 405B", 405.853e9, model, sequence=8192))


_GPT3_CONTEXT, _GPT3_VOCABULARY = 2048, 51200
"""50,257 tokens are padded, so that every usual number of tensor-parallel devices divides them, as
Megatron does, and counted so; attention is dense in all layers."""
_GPT3_STYLE = Style(
    norm="layer",
    activation="gelu",
    gated=False,
    attention_biases="all",
    mlp_biases=True,
    tied=True,
    learned_positions=_GPT3_CONTEXT,
)


def _gpt3(embedding: int, heads: int, layers: int) -> Sizes:
    return Sizes(
        embedding=embedding,
        heads=heads,
        kv_heads=heads,
        head_size=embedding // heads,
        layers=layers,
        mlp=4 * embedding,
        vocabulary=_GPT3_VOCABULARY,
        rope_theta=0,
    )


_GPT3 = (
    ("gpt3-125m", "GPT-3 Small", 125.950e6, _gpt3(768, 12, 12)),
    ("gpt3-350m", "GPT-3 Medium", 356.837e6, _gpt3(1024, 16, 24)),
    ("gpt3-760m", "GPT-3 Large", 761.748e6, _gpt3(1536, 16, 24)),
    ("gpt3-1.3b", "GPT-3 XL", 1.318e9, _gpt3(2048, 16, 24)),
    ("gpt3-2.7b", "GPT-3 2.7B", 2.654e9, _gpt3(2560, 32, 32)),
    ("gpt3-6.7b", "GPT-3 6.7B", 6.662e9, _gpt3(4096, 32, 32)),
    ("gpt3-13b", "GPT-3 13B", 12.858e9, _gpt3(5120, 40, 40)),
    ("gpt3-175b", "GPT-3 175B", 174.616e9, _gpt3(12288, 96, 96)),
)
_mixtral = partial(Sizes, kv_heads=8, rope_theta=1000000)
_MIXTRAL_7B = _mixtral(embedding=4096, heads=32, layers=32, mlp=14336, vocabulary=32000)
_MIXTRAL_22B = _mixtral(embedding=6144, heads=48, layers=56, mlp=16384, vocabulary=32768)


def _mixtral_steps() -> Iterator[Model]:
    for row in (
        ("mixtral-8x7b", "Mixtral 8x7B", 46.703e9, _MIXTRAL_7B),
        ("mixtral-8x22b", "Mixtral 8x22B", 140.630e9, _MIXTRAL_22B),
    ):
        routing = Routing(experts=8, chosen=2, expert_mlp=row[-1].mlp)
        yield from _family(row, style=Style(), routing=routing)


_DEEPSEEK_V3 = Sizes(embedding=7168, heads=128, kv_heads=0, layers=61, mlp=18432, vocabulary=129280)
_DEEPSEEK_ROUTING = Routing(
    experts=256,
    chosen=8,
    expert_mlp=2048,
    shared_experts=1,
    dense_layers=3,
    gate="sigmoid",
    style=RoutingStyle(corrected=True),
)
"""Left out: the module that predicts a second token, and, unless they are asked for, the
restriction of a token's experts to four of eight groups, and 8-bit products. Experts are balanced
by a bias that the step does not change."""
_deepseek = partial(
    _family,
    style=Style(),
    latent=Latent(query_rank=1536, kv_rank=512, rope_size=64, value_size=128),
    routing=_DEEPSEEK_ROUTING,
)

_both = partial(Style, activation="gelu", tied=True, norms_after=True)
_GEMMA2_STYLE = _both(window=4096, global_every=2, score_cap=50.0, logit_cap=30.0)
_GEMMA3_STYLE = _both(window=1024, global_every=6, norms_of_heads=True)
_gemma2 = partial(Sizes, vocabulary=256000)
_gemma3 = partial(Sizes, vocabulary=262144, rope_theta=1000000)
_GEMMA2_2B = _gemma2(embedding=2304, heads=8, kv_heads=4, head_size=256, layers=26, mlp=9216)
_GEMMA2_9B = _gemma2(embedding=3584, heads=16, kv_heads=8, head_size=256, layers=42, mlp=14336)
_GEMMA2_27B = _gemma2(embedding=4608, heads=32, kv_heads=16, layers=46, mlp=36864)
_GEMMA3_12B = _gemma3(embedding=3840, heads=16, kv_heads=8, head_size=256, layers=48, mlp=15360)
_GEMMA3_27B = _gemma3(embedding=5376, heads=32, kv_heads=16, layers=62, mlp=21504)
_GEMMA2 = (
    ("gemma2-2b", "Gemma 2 2B", 2.614e9, _GEMMA2_2B),
    ("gemma2-9b", "Gemma 2 9B", 9.242e9, _GEMMA2_9B),
    ("gemma2-27b", "Gemma 2 27B", 27.227e9, _GEMMA2_27B),
)
_GEMMA3 = (
    ("gemma3-12b", "Gemma 3 12B", 11.766e9, _GEMMA3_12B),
    ("gemma3-27b", "Gemma 3 27B", 27.009e9, _GEMMA3_27B),
)

MODELS = (
    *_maxtext(),
    *_family(*_LLAMA, style=Style()),
    _llama31(),
    *_family(*_GPT3, style=_GPT3_STYLE, sequence=_GPT3_CONTEXT),
    *_mixtral_steps(),
    *_deepseek(("deepseek-v3", "DeepSeek-V3", 671.026e9, _DEEPSEEK_V3)),
    *_family(*_GEMMA2, style=_GEMMA2_STYLE),
    *_family(*_GEMMA3, style=_GEMMA3_STYLE),
)
